/* The products of `fast` with relaxed dot products, in the subset in which every machine gives the same bits: the
 * second operand is a level of 7 bits, so that neither its sign nor a saturating sum of two products is left open.
 * `relaxed_swizzle` sees only indices below 16, where it is `swizzle`. Whole-number sums are exact: the same bits as
 * product_simd.c.
 *
 * Four products are summed in one of two ways. Machines with an instruction for the whole sum take it. For others it
 * is several (x86: five); they sum in 16 bits first, where eight elements cost two of the dear steps less. SG_QUAD_MAX sees
 * to it that the sums of four fit.
 *
 * sg_fixed_put_simd gives bytes here: in each run of 32 the even elements before the odd ones. */
#ifdef __wasm_relaxed_simd__
#include "product_rows.h"

#define TILE_TOKENS 4u /* tokens at a time: what 16 registers hold */

/* Sixteen even and sixteen odd elements. */
struct bytes {
    v128_t even, odd;
};

/* Adds to each lane of `sum` its eight products. */
ALWAYS_INLINE v128_t add_products(v128_t sum, struct bytes number, struct bytes level, bool in_16_bits) {
    if (!in_16_bits) {
        sum = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(number.even, level.even, sum);
        return wasm_i32x4_relaxed_dot_i8x16_i7x16_add(number.odd, level.odd, sum);
    }
    const v128_t fours = wasm_i16x8_add(wasm_i16x8_relaxed_dot_i8x16_i7x16(number.even, level.even),
                                        wasm_i16x8_relaxed_dot_i8x16_i7x16(number.odd, level.odd));
    return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(fours, sg_vectors.ones));
}

/* Two rows of one group, which share the loads of the activations: four would be too many streams for a prefetcher. */
ALWAYS_INLINE void lane_sums(uint32_t code_bits, const uint8_t *const packed[2], const struct token_group *x,
                             v128_t table, bool in_16_bits, v128_t out[2]) {
    const v128_t *number = (const v128_t *)(const void *)x->number;
    v128_t sums[2] = {wasm_i32x4_splat(0), wasm_i32x4_splat(0)};
#pragma clang loop unroll(full)
    for (size_t i = 0; i < 4; i++) {
        const struct bytes numbers = {number[2 * i], number[2 * i + 1]};
        for (size_t r = 0; r < 2; r++) {
            const struct codes codes = unpack(code_bits, packed[r], i);
            const struct bytes level = {wasm_i8x16_relaxed_swizzle(table, codes.even),
                                        wasm_i8x16_relaxed_swizzle(table, codes.odd)};
            sums[r] = add_products(sums[r], numbers, level, in_16_bits);
        }
    }
    for (size_t r = 0; r < 2; r++) out[r] = sums[r];
}

ALWAYS_INLINE void one_token(const struct job *job, uint32_t code_bits, bool in_16_bits) {
    const v128_t table = wasm_v128_load(job->levels->low), offset = wasm_f32x4_splat(job->levels->offset);
    const size_t group_bytes = SG_GROUP / 8 * code_bits;
    for (size_t row = job->first_row; row < job->row_end; row += ROWS) {
        const struct four_rows rows = rows_at(job->matrix, row, job->row_end);
        v128_t total = wasm_f32x4_splat(0.0f);
        for (size_t first = 0; first < job->matrix->group_count; first += RUN_GROUPS) {
            const size_t left = job->matrix->group_count - first, count = left < RUN_GROUPS ? left : RUN_GROUPS;
            v128_t lanes[RUN_GROUPS][ROWS];
#pragma clang loop unroll(disable)
            for (size_t k = 0; k < ROWS; k += 2) {
                const uint8_t *codes[2] = {rows.codes[k] + first * group_bytes, rows.codes[k + 1] + first * group_bytes};
#pragma clang loop unroll(disable)
                for (size_t g = 0; g < count; g++) {
                    const struct token_group x = token_group_at(job, first + g, 0);
                    lane_sums(code_bits, codes, &x, table, in_16_bits, &lanes[g][k]);
                    for (size_t r = 0; r < 2; r++) codes[r] += group_bytes;
                }
            }
            for (size_t g = 0; g < count; g++) {
                const struct token_group x = token_group_at(job, first + g, 0);
                total = add_whole(total, add_lanes(lanes[g]), &x, offset, norms_of(&rows, first + g));
            }
        }
        store_rows(job, 0, row, total);
    }
}

/* Each 32-bit lane of out[n * stride] is one row: four levels, of the run of 32 elements n / 8, in it of the even elements
 * if n is even and of the odd ones if not. */
ALWAYS_INLINE void unpack_rows(const struct job *job, uint32_t code_bits, const struct four_rows *rows, size_t group,
                               v128_t *out, size_t stride) {
    const v128_t table = wasm_v128_load(job->levels->low);
    const size_t group_bytes = SG_GROUP / 8 * code_bits;
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < 4; i++) {
        struct codes codes[ROWS];
        for (size_t r = 0; r < ROWS; r++) codes[r] = unpack(code_bits, rows->codes[r] + group * group_bytes, i);
        for (size_t odd = 0; odd < 2; odd++) {
            v128_t in[ROWS], quads[4];
            for (size_t r = 0; r < ROWS; r++) in[r] = odd ? codes[r].odd : codes[r].even;
            transpose(in, quads);
            for (size_t n = 0; n < 4; n++) {
                out[(8 * i + 2 * n + odd) * stride] = wasm_i8x16_relaxed_swizzle(table, quads[n]);
            }
        }
    }
}

/* As tile_fast of product_simd.c. */
ALWAYS_INLINE void tile(const struct job *job, const v128_t *level, struct token_group x, const v128_t *norm,
                        v128_t *total, size_t row_vectors, size_t tokens, bool in_16_bits) {
    const int8_t *number = (const int8_t *)x.number;
    v128_t sum[2 * TILE_TOKENS];
    IN_REGISTERS
    for (size_t n = 0; n < row_vectors * tokens; n++) sum[n] = wasm_i32x4_splat(0);
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < SG_GROUP / 8; i++) {
        struct bytes row[2];
        HIDE_ORIGIN(level);
        for (size_t h = 0; h < row_vectors; h++) row[h] = (struct bytes){level[h], level[row_vectors + h]};
        for (size_t t = 0; t < tokens; t++) {
            const int8_t *at = number + t * SG_GROUP * sizeof *x.number;
            const struct bytes fours = {wasm_v128_load32_splat(at), wasm_v128_load32_splat(at + 16)};
            for (size_t h = 0; h < row_vectors; h++) {
                sum[t * row_vectors + h] = add_products(sum[t * row_vectors + h], fours, row[h], in_16_bits);
            }
        }
        level += 2 * row_vectors;
        number += i % 4 == 3 ? 20 : 4; /* from the even elements of one run to those of the next */
    }
    const v128_t offset = wasm_f32x4_splat(job->levels->offset);
    IN_REGISTERS
    for (size_t n = 0; n < row_vectors * tokens; n++) {
        const struct token_group place = {NULL, x.unit + n / row_vectors, x.sum + n / row_vectors};
        total[n] = add_whole(total[n], sum[n], &place, offset, norm[n % row_vectors]);
    }
}

#define TILE(row_vectors, tokens, in_16_bits, name)                                                                     \
    static __attribute__((noinline)) void tile_##row_vectors##x##tokens##name(                                         \
        const struct job *job, size_t group, size_t first, size_t end, const v128_t *level, const v128_t *norm,        \
        v128_t *total) {                                                                                               \
        for (size_t t = first; t < end; t += tokens) {                                                                 \
            tile(job, level, token_group_at(job, group, t), norm, total + t * row_vectors, row_vectors, tokens,        \
                 in_16_bits);                                                                                          \
        }                                                                                                              \
    }
#define UNPACK(code_bits)                                                                                              \
    static void unpack_rows_##code_bits(const struct job *job, const struct four_rows *rows, size_t group,             \
                                        v128_t *out, size_t stride) {                                                  \
        unpack_rows(job, code_bits, rows, group, out, stride);                                                         \
    }
#define ONE_TOKEN(code_bits, in_16_bits, name)                                                                         \
    static void one_token_##code_bits##name(const struct job *job) { one_token(job, code_bits, in_16_bits); }
#define METHOD(in_16_bits, name)                                                                                       \
    ONE_TOKEN(2, in_16_bits, name)                                                                                     \
    ONE_TOKEN(4, in_16_bits, name)                                                                                     \
    TILE(1, 1, in_16_bits, name)                                                                                       \
    TILE(2, 1, in_16_bits, name)                                                                                       \
    TILE(1, 4, in_16_bits, name)                                                                                       \
    TILE(2, 4, in_16_bits, name)                                                                                       \
    const struct method sg_method_relaxed##name = {                                                                    \
        {unpack_rows_1, unpack_rows_2, unpack_rows_3, unpack_rows_4},                                                  \
        {NULL, one_token_2##name, NULL, one_token_4##name},                                                            \
        {{tile_1x1##name, tile_1x4##name}, {tile_2x1##name, tile_2x4##name}},                                          \
        TILE_TOKENS,                                                                                                   \
    };
UNPACK(1)
UNPACK(2)
UNPACK(3)
UNPACK(4)
METHOD(false, _32)
METHOD(true, _16)

/* The one look beyond the subset: at which way is quicker, never at a logit. Four products of 127 and the byte 255 are
 * 129540 for an instruction that takes the second operand as unsigned (VNNI), -508 for one that takes it as signed
 * (ARM), and 65534 where sums of two saturate, which is x86 without such an instruction. */
bool sg_is_quicker_in_16_bits(void) {
    const v128_t sum = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(wasm_i8x16_splat(127), wasm_i8x16_splat(-1),
                                                              wasm_i32x4_splat(0));
    return wasm_i32x4_extract_lane(sum, 0) == 65534;
}
#else
typedef int sg_product_relaxed_is_empty; /* ISO C wants a declaration in every file */
#endif
