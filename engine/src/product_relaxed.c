/* The products of `fast` with the relaxed dot product, in the subset in which every machine gives the same bits: the
 * second operand is held to 7 bits, so that neither its sign nor a saturating sum of two products is left open.
 *
 * Rounding to 7 bits: the level (plus 64, hence 0 to 127) is the second operand, and 64 times the sum of the activations
 * comes off. Rounding to 8: the activation is, its positive and its negative part by turns. `relaxed_swizzle` sees only
 * indices below 16, where it is `swizzle`. Whole-number sums are exact: the same bits as product_simd.c.
 *
 * sg_fixed_put_simd gives bytes here: in each run of 32 the even elements before the odd ones; 128 numbers, or 128
 * positive parts and then 128 negative ones. */
#ifdef __wasm_relaxed_simd__
#include "product_rows.h"

#define LEVEL_SHIFT 64
#define TILE_7 4u /* tokens at a time: what 16 registers hold */
#define TILE_8 2u

ALWAYS_INLINE v128_t dot(v128_t sum, v128_t any_byte, v128_t seven_bits) {
    return wasm_i32x4_relaxed_dot_i8x16_i7x16_add(any_byte, seven_bits, sum);
}

ALWAYS_INLINE v128_t table_of(const struct job *job, bool seven) {
    const v128_t low = wasm_v128_load(job->levels->low);
    return seven ? wasm_i8x16_add(low, wasm_i8x16_splat(LEVEL_SHIFT)) : low;
}

/* What the shift of the levels adds too much. */
ALWAYS_INLINE v128_t start_of(const float *sum) {
    return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_mul(wasm_v128_load32_splat(sum), wasm_f32x4_splat(-LEVEL_SHIFT)));
}

ALWAYS_INLINE v128_t lane_sums(uint32_t code_bits, bool seven, const uint8_t *packed, const struct token_group *x,
                               v128_t table) {
    const v128_t *byte = (const v128_t *)(const void *)x->number;
    v128_t sum = wasm_i32x4_splat(0), negative = sum;
#pragma clang loop unroll(full)
    for (size_t i = 0; i < 4; i++) {
        const struct codes codes = unpack(code_bits, packed, i);
        const v128_t even = wasm_i8x16_relaxed_swizzle(table, codes.even);
        const v128_t odd = wasm_i8x16_relaxed_swizzle(table, codes.odd);
        if (seven) {
            sum = dot(dot(sum, byte[2 * i], even), byte[2 * i + 1], odd);
        } else {
            sum = dot(dot(sum, even, byte[2 * i]), odd, byte[2 * i + 1]);
            negative = dot(dot(negative, even, byte[8 + 2 * i]), odd, byte[8 + 2 * i + 1]);
        }
    }
    return seven ? sum : wasm_i32x4_sub(sum, negative);
}

ALWAYS_INLINE void one_token(const struct job *job, uint32_t code_bits, bool seven) {
    const v128_t table = table_of(job, seven), offset = wasm_f32x4_splat(job->levels->offset);
    const size_t group_bytes = SG_GROUP / 8 * code_bits;
    for (size_t row = job->first_row; row < job->row_end; row += ROWS) {
        const struct four_rows rows = rows_at(job->matrix, row, job->row_end);
        v128_t total = wasm_f32x4_splat(0.0f);
        for (size_t first = 0; first < job->matrix->group_count; first += RUN_GROUPS) {
            const size_t left = job->matrix->group_count - first, count = left < RUN_GROUPS ? left : RUN_GROUPS;
            v128_t lanes[RUN_GROUPS][ROWS];
#pragma clang loop unroll(disable)
            for (size_t k = 0; k < ROWS; k++) {
                const uint8_t *codes = rows.codes[k] + first * group_bytes;
#pragma clang loop unroll(disable)
                for (size_t g = 0; g < count; g++, codes += group_bytes) {
                    const struct token_group x = token_group_at(job, first + g, 0);
                    lanes[g][k] = lane_sums(code_bits, seven, codes, &x, table);
                }
            }
            for (size_t g = 0; g < count; g++) {
                const struct token_group x = token_group_at(job, first + g, 0);
                const v128_t norm = norms_of(&rows, first + g);
                v128_t sums = add_lanes(lanes[g]);
                if (seven) sums = wasm_i32x4_add(sums, start_of(x.sum));
                total = add_whole(total, sums, &x, offset, norm);
            }
        }
        store_rows(job, 0, row, total);
    }
}

/* Each 32-bit lane of out[n * stride] is one row: its levels for bytes 4 n to 4 n + 3 of the activations. */
ALWAYS_INLINE void unpack_rows(const struct job *job, uint32_t code_bits, bool seven, const struct four_rows *rows,
                               size_t group, v128_t *out, size_t stride) {
    const v128_t table = table_of(job, seven);
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
                out[(8 * i + 4 * odd + n) * stride] = wasm_i8x16_relaxed_swizzle(table, quads[n]);
            }
        }
    }
}

/* As tile_fast of product_simd.c. */
ALWAYS_INLINE void tile(const struct job *job, bool seven, const v128_t *level, struct token_group x,
                        const v128_t *norm, v128_t *total, size_t row_vectors, size_t tokens) {
    const int8_t *byte = (const int8_t *)x.number;
    v128_t sum[2 * TILE_7], negative[2 * TILE_8];
    for (size_t n = 0; n < row_vectors * tokens; n++) {
        sum[n] = seven ? start_of(x.sum + n / row_vectors) : wasm_i32x4_splat(0);
        if (!seven) negative[n] = wasm_i32x4_splat(0);
    }
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < SG_GROUP / 4; i++) {
        v128_t row[2];
        for (size_t h = 0; h < row_vectors; h++) row[h] = level[h];
        for (size_t t = 0; t < tokens; t++) {
            const int8_t *place = byte + t * SG_GROUP * sizeof *x.number;
            const v128_t quad = wasm_v128_load32_splat(place);
            for (size_t h = 0; h < row_vectors; h++) {
                v128_t *place_sum = sum + t * row_vectors + h;
                *place_sum = seven ? dot(*place_sum, quad, row[h]) : dot(*place_sum, row[h], quad);
            }
            if (seven) continue;
            const v128_t minus = wasm_v128_load32_splat(place + SG_GROUP);
            for (size_t h = 0; h < row_vectors; h++) {
                negative[t * row_vectors + h] = dot(negative[t * row_vectors + h], row[h], minus);
            }
        }
        level += row_vectors;
        byte += 4;
    }
    const v128_t offset = wasm_f32x4_splat(job->levels->offset);
    for (size_t n = 0; n < row_vectors * tokens; n++) {
        const struct token_group place = {NULL, x.unit + n / row_vectors, x.sum + n / row_vectors};
        const v128_t whole = seven ? sum[n] : wasm_i32x4_sub(sum[n], negative[n]);
        total[n] = add_whole(total[n], whole, &place, offset, norm[n % row_vectors]);
    }
}

#define TILE(bits, row_vectors, tokens)                                                                                \
    static __attribute__((noinline)) void tile_##bits##_##row_vectors##x##tokens(                                      \
        const struct job *job, size_t group, size_t first, size_t end, const v128_t *level, const v128_t *norm,        \
        v128_t *total) {                                                                                               \
        for (size_t t = first; t < end; t += tokens) {                                                                 \
            tile(job, bits == 7, level, token_group_at(job, group, t), norm, total + t * row_vectors, row_vectors,     \
                 tokens);                                                                                              \
        }                                                                                                              \
    }
#define UNPACK(bits, code_bits)                                                                                        \
    static void unpack_rows_##bits##_##code_bits(const struct job *job, const struct four_rows *rows, size_t group,    \
                                                 v128_t *out, size_t stride) {                                         \
        unpack_rows(job, code_bits, bits == 7, rows, group, out, stride);                                              \
    }
#define ONE_TOKEN(bits, code_bits)                                                                                     \
    static void one_token_##bits##_##code_bits(const struct job *job) { one_token(job, code_bits, bits == 7); }
#define WAYS(bits)                                                                                                     \
    UNPACK(bits, 1) UNPACK(bits, 2) UNPACK(bits, 3) UNPACK(bits, 4)                                                    \
    ONE_TOKEN(bits, 2) ONE_TOKEN(bits, 4)                                                                              \
    TILE(bits, 1, 1) TILE(bits, 2, 1)
WAYS(7)
WAYS(8)
TILE(7, 1, 4)
TILE(7, 2, 4)
TILE(8, 1, 2)
TILE(8, 2, 2)

const struct method sg_method_relaxed_7 = {
    {unpack_rows_7_1, unpack_rows_7_2, unpack_rows_7_3, unpack_rows_7_4},
    {NULL, one_token_7_2, NULL, one_token_7_4},
    {{tile_7_1x1, tile_7_1x4}, {tile_7_2x1, tile_7_2x4}},
    TILE_7,
};
const struct method sg_method_relaxed_8 = {
    {unpack_rows_8_1, unpack_rows_8_2, unpack_rows_8_3, unpack_rows_8_4},
    {NULL, one_token_8_2, NULL, one_token_8_4},
    {{tile_8_1x1, tile_8_1x2}, {tile_8_2x1, tile_8_2x2}},
    TILE_8,
};
#else
typedef int sg_product_relaxed_is_empty; /* ISO C wants a declaration in every file */
#endif
