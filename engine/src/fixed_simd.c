/* Fixed point in WebAssembly SIMD: the same operations as fixed.c, hence the same bits. */
#include "fixed.h"

#ifdef __wasm_simd128__
#include <stdbool.h>
#include <string.h>
#include <wasm_simd128.h>

#include "vectors.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Strides 1, 2 and 4 of the rotation, of 16 elements; the result is parted into even and odd elements: out[0], out[1]
 * are the evens of the first and second 8, out[2], out[3] the odds. */
ALWAYS_INLINE void rotate_16(const float *x, v128_t out[4]) {
    for (size_t k = 0; k < 2; k++) {
        const v128_t a = wasm_v128_load(x + 8 * k), b = wasm_v128_load(x + 8 * k + 4);
        const v128_t even = wasm_i32x4_shuffle(a, b, 0, 2, 4, 6), odd = wasm_i32x4_shuffle(a, b, 1, 3, 5, 7);
        out[k] = wasm_f32x4_add(even, odd);
        out[k + 2] = wasm_f32x4_sub(even, odd);
    }
    for (size_t k = 0; k < 4; k += 2) { /* stride 2: neighbours among the evens, and among the odds */
        const v128_t a = wasm_i32x4_shuffle(out[k], out[k + 1], 0, 2, 4, 6);
        const v128_t b = wasm_i32x4_shuffle(out[k], out[k + 1], 1, 3, 5, 7);
        const v128_t sum = wasm_f32x4_add(a, b), difference = wasm_f32x4_sub(a, b);
        const v128_t first = wasm_i32x4_shuffle(sum, difference, 0, 4, 1, 5);
        const v128_t second = wasm_i32x4_shuffle(sum, difference, 2, 6, 3, 7);
        const v128_t c = wasm_i64x2_shuffle(first, second, 0, 2), d = wasm_i64x2_shuffle(first, second, 1, 3);
        const v128_t sum4 = wasm_f32x4_add(c, d), difference4 = wasm_f32x4_sub(c, d); /* stride 4 */
        out[k] = wasm_i64x2_shuffle(sum4, difference4, 0, 2);
        out[k + 1] = wasm_i64x2_shuffle(sum4, difference4, 1, 3);
    }
}

ALWAYS_INLINE float largest_lane(v128_t v) {
    v = wasm_f32x4_pmax(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
    v = wasm_f32x4_pmax(v, wasm_i32x4_shuffle(v, v, 1, 0, 3, 2));
    return wasm_f32x4_extract_lane(v, 0);
}

/* The four sums of neighbouring pairs of 8 elements, of two times 8. */
ALWAYS_INLINE v128_t sums_of_quads(v128_t pairs0, v128_t pairs1) {
    return wasm_f32x4_add(wasm_i32x4_shuffle(pairs0, pairs1, 0, 2, 4, 6), wasm_i32x4_shuffle(pairs0, pairs1, 1, 3, 5, 7));
}

/* unit_of_group of fixed.c; v holds 8 times the four vectors of rotate_16. */
ALWAYS_INLINE float unit_of_group(const v128_t v[32], enum sg_rounding rounding) {
    const bool exact = rounding == SG_ROUNDING_16;
    v128_t most = wasm_f32x4_splat(0.0f), most_sum = most, before = most;
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < 8; i++) {
        const v128_t *part = v + 4 * i;
        v128_t pairs[2];
        for (size_t k = 0; k < 2; k++) {
            const v128_t even = wasm_f32x4_abs(part[k]), odd = wasm_f32x4_abs(part[k + 2]);
            most = wasm_f32x4_pmax(wasm_f32x4_pmax(most, even), odd);
            pairs[k] = wasm_f32x4_add(even, odd);
        }
        const v128_t quads = sums_of_quads(pairs[0], pairs[1]);
        if (!exact) {
            const v128_t net = sums_of_quads(wasm_f32x4_add(part[0], part[2]), wasm_f32x4_add(part[1], part[3]));
            most_sum = wasm_f32x4_pmax(most_sum, wasm_f32x4_add(quads, wasm_f32x4_abs(net)));
        } else if (i % 2 == 0) {
            before = quads;
        } else {
            most_sum = wasm_f32x4_pmax(most_sum, wasm_f32x4_add(before, quads));
        }
    }
    const float by_value = largest_lane(most) * (exact ? 1.0f / SG_EXACT_VALUE_MAX : 1.0f / SG_FAST_MAX);
    const float by_sum = largest_lane(most_sum) * (exact ? 1.0f / SG_EXACT_RUN_SUM_MAX : 0.5f / SG_QUAD_MAX);
    return by_value > by_sum ? by_value : by_sum;
}

ALWAYS_INLINE v128_t round_half_away(v128_t v) {
    const v128_t half = wasm_v128_or(wasm_v128_and(v, sg_vectors.float_sign), sg_vectors.float_half);
    return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_add(v, half));
}

/* 16-bit numbers: out[0] evens and out[1] odds of 16 elements; returns the sums of four lanes. */
ALWAYS_INLINE v128_t round_16(const v128_t v[4], v128_t inverse, v128_t out[2]) {
    for (size_t k = 0; k < 2; k++) {
        out[k] = wasm_i16x8_narrow_i32x4(round_half_away(wasm_f32x4_mul(v[2 * k], inverse)),
                                         round_half_away(wasm_f32x4_mul(v[2 * k + 1], inverse)));
    }
    return wasm_i32x4_add(wasm_i32x4_dot_i16x8(out[0], sg_vectors.ones), wasm_i32x4_dot_i16x8(out[1], sg_vectors.ones));
}

#ifdef __wasm_relaxed_simd__
/* Bytes as product_relaxed.c reads them: 32 elements from four vectors of numbers. */
ALWAYS_INLINE void store_bytes(const v128_t number[4], int8_t *out) {
    for (size_t k = 0; k < 2; k++) {
        wasm_v128_store(out + 16 * k, wasm_i8x16_narrow_i16x8(number[k], number[k + 2]));
    }
}
#endif

/* Stores the rounded numbers of one group; returns their sum. */
ALWAYS_INLINE float store_group(const v128_t v[32], enum sg_rounding rounding, v128_t inverse, int16_t *number) {
    v128_t sums = wasm_i32x4_splat(0);
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < 4; i++) {
        v128_t rounded[4];
        for (size_t k = 0; k < 2; k++) {
            sums = wasm_i32x4_add(sums, round_16(v + 8 * i + 4 * k, inverse, rounded + 2 * k));
        }
#ifdef __wasm_relaxed_simd__
        if (rounding != SG_ROUNDING_16) {
            store_bytes(rounded, (int8_t *)number + 32 * i);
            continue;
        }
#else
        (void)rounding;
#endif
        for (size_t k = 0; k < 4; k++) wasm_v128_store(number + 32 * i + 8 * k, rounded[k]);
    }
    return (float)(wasm_i32x4_extract_lane(sums, 0) + wasm_i32x4_extract_lane(sums, 1) +
                   wasm_i32x4_extract_lane(sums, 2) + wasm_i32x4_extract_lane(sums, 3));
}

/* v := H x, in the order of rotate_16; two passes, each of few enough values for the registers. */
ALWAYS_INLINE void rotate_group(const float *x, v128_t v[32]) {
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < 32; i += 4) {
        v128_t part[4];
        rotate_16(x + 4 * i, part);
        for (size_t k = 0; k < 4; k += 2) { /* stride 8: the first and second eight of each sixteen */
            v[i + k] = wasm_f32x4_add(part[k], part[k + 1]);
            v[i + k + 1] = wasm_f32x4_sub(part[k], part[k + 1]);
        }
    }
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < 4; i++) { /* strides 16, 32 and 64 */
        v128_t part[8];
        for (size_t j = 0; j < 8; j++) part[j] = v[i + 4 * j];
#pragma clang loop unroll(full)
        for (size_t half = 1; half < 8; half *= 2) {
#pragma clang loop unroll(full)
            for (size_t j = 0; j < 8; j++) {
                if (j & half) continue;
                const v128_t a = part[j], b = part[j + half];
                part[j] = wasm_f32x4_add(a, b);
                part[j + half] = wasm_f32x4_sub(a, b);
            }
        }
        for (size_t j = 0; j < 8; j++) v[i + 4 * j] = wasm_f32x4_mul(part[j], sg_vectors.inverse_sqrt_128);
    }
}

static void put_group(const float *x, struct sg_fixed *fixed, size_t place) {
    v128_t v[32];
    rotate_group(x, v);
    float unit = unit_of_group(v, fixed->rounding);
    if (!(unit >= SG_UNIT_MIN)) unit = 0.0f;
    const v128_t inverse = wasm_f32x4_splat(unit > 0.0f ? 1.0f / unit : 0.0f);
    fixed->unit[place] = unit;
    fixed->sum[place] = store_group(v, fixed->rounding, inverse, fixed->number + place * SG_GROUP);
}

void sg_fixed_put_simd(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count) {
    for (size_t g = 0; g < fixed->group_count; g++) {
        const size_t place = g * fixed->token_count + token, left = column_count - g * SG_GROUP;
        const float *at = x + g * SG_GROUP;
        float padded[SG_GROUP];
        if (left < SG_GROUP) {
            memset(padded, 0, sizeof padded);
            memcpy(padded, at, left * sizeof *padded);
            at = padded;
        }
        put_group(at, fixed, place);
    }
}

#ifndef SG_SCALAR
void sg_fixed_put(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count) {
    sg_fixed_put_simd(fixed, token, x, column_count);
}
#endif
#endif
