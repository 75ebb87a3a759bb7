/* What a WebAssembly machine can do at most, for bench.engine: how fast memory is copied, and how fast a plain loop
 * multiplies and adds whole numbers. */
#include <string.h>
#include <wasm_simd128.h>

#define EXPORT(name) __attribute__((export_name(#name)))
#define CHAINS 8 /* sums that do not wait for each other */

EXPORT(limit_copy) void limit_copy(void *to, const void *from, size_t byte_count, size_t rounds);
void limit_copy(void *to, const void *from, size_t byte_count, size_t rounds) {
    for (size_t i = 0; i < rounds; i++) memcpy(to, from, byte_count);
}

/* 2 * CHAINS vectors of 8 numbers at `from`; 8 * CHAINS products a round. */
EXPORT(limit_dot) int limit_dot(const void *from, size_t rounds);
int limit_dot(const void *from, size_t rounds) {
    const v128_t *number = from;
    v128_t sum[CHAINS];
    for (size_t k = 0; k < CHAINS; k++) sum[k] = number[k];
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < rounds; i++) {
        const v128_t a = number[i % CHAINS];
        for (size_t k = 0; k < CHAINS; k++) {
            sum[k] = wasm_i32x4_add(sum[k], wasm_i32x4_dot_i16x8(a, number[CHAINS + k]));
        }
    }
    for (size_t k = 1; k < CHAINS; k++) sum[0] = wasm_i32x4_add(sum[0], sum[k]);
    return wasm_i32x4_extract_lane(sum[0], 0);
}
