/* The fixed-point products in WebAssembly SIMD. Same whole numbers and same float operations as product.c.
 *
 * One token: a 16-byte load holds 32 codes of a row; two table look-ups (`swizzle`) per 16 codes give the bytes of
 * their levels, `dot_i16x8` multiplies and adds pairs. Four rows share the float work at the end of a group.
 * More tokens: the levels of up to 8 rows of one group are written out once, transposed so that each 32-bit lane is
 * one row; then two or three tokens at a time meet them, each activation pair broadcast. */
#include "product.h"

#ifdef __wasm_simd128__
#include <wasm_simd128.h>

#include "cursor.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define ROWS 4u          /* rows per vector */
#define STEPS 64u        /* vectors of level pairs per group and ROWS rows */
#define TILE_EXACT 2u    /* tokens at a time: what 16 registers hold */
#define TILE_FAST 3u

#define LOW_BYTES(a, b) wasm_i8x16_shuffle(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_BYTES(a, b) wasm_i8x16_shuffle(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

struct tables {
    v128_t low, high;
};

/* 32 codes: the 16 at even places and the 16 at odd places. */
struct codes {
    v128_t even, odd;
};

/* The levels of 16 codes as int16. */
struct level_pair {
    v128_t low, high;
};

/* Codes 32 i .. 32 i + 31 of a group, at `packed` + 4 i code_bits. */
ALWAYS_INLINE struct codes unpack_4(const uint8_t *packed, size_t i) {
    const v128_t bytes = wasm_v128_load(packed + 16 * i);
    const v128_t mask = wasm_i8x16_splat(15);
    return (struct codes){wasm_v128_and(bytes, mask), wasm_v128_and(wasm_u16x8_shr(bytes, 4), mask)};
}

ALWAYS_INLINE struct codes unpack_2(const uint8_t *packed, size_t i) {
    const v128_t bytes = wasm_v128_load64_zero(packed + 8 * i);
    const v128_t mask = wasm_i8x16_splat(3);
    const v128_t code0 = wasm_v128_and(bytes, mask), code1 = wasm_v128_and(wasm_u16x8_shr(bytes, 2), mask);
    const v128_t code2 = wasm_v128_and(wasm_u16x8_shr(bytes, 4), mask);
    const v128_t code3 = wasm_v128_and(wasm_u16x8_shr(bytes, 6), mask);
    return (struct codes){LOW_BYTES(code0, code2), LOW_BYTES(code1, code3)};
}

ALWAYS_INLINE struct codes unpack_1(const uint8_t *packed, size_t i) {
    const v128_t bytes = wasm_v128_load32_zero(packed + 4 * i);
    const v128_t each = wasm_i8x16_shuffle(bytes, bytes, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const v128_t even = wasm_i32x4_splat(0x40100401), odd = wasm_i32x4_splat((int32_t)0x80200802u);
    const v128_t one = wasm_i8x16_splat(1);
    return (struct codes){
        wasm_v128_and(wasm_i8x16_eq(wasm_v128_and(each, even), even), one),
        wasm_v128_and(wasm_i8x16_eq(wasm_v128_and(each, odd), odd), one),
    };
}

/* Eight codes fill three bytes: each code's two bytes go to a 16-bit lane, which is masked down to the code at its
 * place p. The product with 2^(13-p) + 1 puts it at bit 13, and again at p, where the shift drops it. (With 2^(13-p) alone
 * the compiler would make shifts of it, lane by lane.) */
ALWAYS_INLINE v128_t codes_of_lanes(v128_t lanes, v128_t mask, v128_t factor) {
    return wasm_u16x8_shr(wasm_i16x8_mul(wasm_v128_and(lanes, mask), factor), 13);
}

#define MASK(p) (int16_t)(7 << (p))
#define FACTOR(p) (int16_t)((1 << (13 - (p))) + 1)
#define EIGHT(f, p0, p1, p2, p3) wasm_i16x8_make(f(p0), f(p1), f(p2), f(p3), f(p0), f(p1), f(p2), f(p3))

ALWAYS_INLINE struct codes unpack_3(const uint8_t *packed, size_t i) {
    const uint8_t *at = packed + 12 * i;
    const v128_t bytes = wasm_v128_load32_lane(at + 8, wasm_v128_load64_zero(at), 2);
    const v128_t even_mask = EIGHT(MASK, 0, 6, 4, 2), even_factor = EIGHT(FACTOR, 0, 6, 4, 2);
    const v128_t odd_mask = EIGHT(MASK, 3, 1, 7, 5), odd_factor = EIGHT(FACTOR, 3, 1, 7, 5);
    const v128_t even_low = wasm_i8x16_shuffle(bytes, bytes, 0, 1, 0, 1, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 6);
    const v128_t even_high = wasm_i8x16_shuffle(bytes, bytes, 6, 7, 6, 7, 7, 8, 8, 9, 9, 10, 9, 10, 10, 11, 11, 12);
    const v128_t odd_low = wasm_i8x16_shuffle(bytes, bytes, 0, 1, 1, 2, 1, 2, 2, 3, 3, 4, 4, 5, 4, 5, 5, 6);
    const v128_t odd_high = wasm_i8x16_shuffle(bytes, bytes, 6, 7, 7, 8, 7, 8, 8, 9, 9, 10, 10, 11, 10, 11, 11, 12);
    return (struct codes){
        wasm_u8x16_narrow_i16x8(codes_of_lanes(even_low, even_mask, even_factor),
                                codes_of_lanes(even_high, even_mask, even_factor)),
        wasm_u8x16_narrow_i16x8(codes_of_lanes(odd_low, odd_mask, odd_factor),
                                codes_of_lanes(odd_high, odd_mask, odd_factor)),
    };
}

ALWAYS_INLINE struct codes unpack(uint32_t code_bits, const uint8_t *packed, size_t i) {
    if (code_bits == 4) return unpack_4(packed, i);
    if (code_bits == 3) return unpack_3(packed, i);
    if (code_bits == 2) return unpack_2(packed, i);
    return unpack_1(packed, i);
}

ALWAYS_INLINE struct level_pair levels_of(v128_t codes, struct tables tables, enum sg_numerics numerics) {
    const v128_t low = wasm_i8x16_swizzle(tables.low, codes);
    if (numerics == SG_NUMERICS_FAST) {
        return (struct level_pair){wasm_i16x8_extend_low_i8x16(low), wasm_i16x8_extend_high_i8x16(low)};
    }
    const v128_t high = wasm_i8x16_swizzle(tables.high, codes);
    return (struct level_pair){LOW_BYTES(low, high), HIGH_BYTES(low, high)};
}

ALWAYS_INLINE v128_t float_of_halves(v128_t halves) {
    const v128_t magnitude = wasm_i32x4_shl(wasm_v128_and(halves, wasm_i32x4_splat(0x7fff)), 13);
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(halves, wasm_i32x4_splat(0x8000)), 16);
    return wasm_v128_or(wasm_f32x4_mul(magnitude, wasm_f32x4_splat(0x1p112f)), sign);
}

/* The places of four rows' data for one group after another. Rows beyond the last repeat it: their sums are not
 * written. */
struct four_rows {
    const uint8_t *codes[ROWS];
    const uint8_t *norms[ROWS];
};

ALWAYS_INLINE struct four_rows rows_at(const struct sg_matrix *matrix, size_t row, size_t row_end) {
    struct four_rows rows;
    for (size_t r = 0; r < ROWS; r++) {
        const size_t group = (row + r < row_end ? row + r : row_end - 1) * matrix->group_count;
        rows.codes[r] = matrix->codes + group * (SG_GROUP / 8 * matrix->code_bits);
        rows.norms[r] = matrix->norms + 2 * group;
    }
    return rows;
}

ALWAYS_INLINE v128_t norms_of(const struct four_rows *rows, size_t group) {
    const uint8_t *const *norms = rows->norms;
    return float_of_halves(wasm_i32x4_make(sg_load_u16(norms[0] + 2 * group), sg_load_u16(norms[1] + 2 * group),
                                           sg_load_u16(norms[2] + 2 * group), sg_load_u16(norms[3] + 2 * group)));
}

/* Four vectors as rows of a 4 x 4 matrix of 32-bit numbers, to its columns. */
ALWAYS_INLINE void transpose(const v128_t in[4], v128_t out[4]) {
    const v128_t low01 = wasm_i32x4_shuffle(in[0], in[1], 0, 4, 1, 5);
    const v128_t low23 = wasm_i32x4_shuffle(in[2], in[3], 0, 4, 1, 5);
    const v128_t high01 = wasm_i32x4_shuffle(in[0], in[1], 2, 6, 3, 7);
    const v128_t high23 = wasm_i32x4_shuffle(in[2], in[3], 2, 6, 3, 7);
    out[0] = wasm_i64x2_shuffle(low01, low23, 0, 2);
    out[1] = wasm_i64x2_shuffle(low01, low23, 1, 3);
    out[2] = wasm_i64x2_shuffle(high01, high23, 0, 2);
    out[3] = wasm_i64x2_shuffle(high01, high23, 1, 3);
}

ALWAYS_INLINE v128_t dot(v128_t a, v128_t b) {
    return wasm_i32x4_dot_i16x8(a, b);
}

/* Lane l: the sum over the group's elements that lane l of the fixed order takes (product.c). int32 in `fast`. */
ALWAYS_INLINE v128_t lane_sums(uint32_t code_bits, enum sg_numerics numerics, const uint8_t *packed,
                               const int16_t *number, struct tables tables) {
    const v128_t *x = (const v128_t *)(const void *)number;
    v128_t sum = wasm_i32x4_splat(0);
#pragma clang loop unroll(full)
    for (size_t i = 0; i < 4; i++) {
        const struct codes codes = unpack(code_bits, packed, i);
        const struct level_pair even = levels_of(codes.even, tables, numerics);
        const struct level_pair odd = levels_of(codes.odd, tables, numerics);
        const v128_t first = wasm_i32x4_add(dot(even.low, x[4 * i]), dot(odd.low, x[4 * i + 1]));
        const v128_t rest = wasm_i32x4_add(dot(even.high, x[4 * i + 2]), dot(odd.high, x[4 * i + 3]));
        const v128_t run = wasm_i32x4_add(first, rest);
        if (numerics == SG_NUMERICS_FAST) sum = wasm_i32x4_add(sum, run);
        else sum = i == 0 ? wasm_f32x4_convert_i32x4(run) : wasm_f32x4_add(sum, wasm_f32x4_convert_i32x4(run));
    }
    return sum;
}

/* Sums of one group for four rows, one per lane, from four vectors of lane sums. */
ALWAYS_INLINE v128_t rows_of_lanes(enum sg_numerics numerics, const v128_t lanes[4]) {
    v128_t lane[4];
    transpose(lanes, lane);
    if (numerics == SG_NUMERICS_FAST) {
        return wasm_f32x4_convert_i32x4(
            wasm_i32x4_add(wasm_i32x4_add(lane[0], lane[1]), wasm_i32x4_add(lane[2], lane[3])));
    }
    return wasm_f32x4_add(wasm_f32x4_add(wasm_f32x4_add(lane[0], lane[1]), lane[2]), lane[3]);
}

/* What all functions of one product share. Rows count from the matrix's first. */
struct job {
    const struct sg_matrix *matrix;
    const struct sg_fixed_levels *levels;
    const struct sg_fixed *x;
    size_t first_row, row_end;
    float *y;
    size_t y_stride;
};

/* The lanes of `sums` that are rows, from `row` on. */
ALWAYS_INLINE void store_rows(const struct job *job, size_t token, size_t row, v128_t sums) {
    float *y = job->y + token * job->y_stride + (row - job->first_row);
    sums = wasm_f32x4_mul(sums, wasm_f32x4_splat(job->levels->unit));
    if (row + ROWS <= job->row_end) {
        wasm_v128_store(y, sums);
        return;
    }
    float lanes[ROWS];
    wasm_v128_store(lanes, sums);
    for (size_t r = 0; row + r < job->row_end; r++) y[r] = lanes[r];
}

ALWAYS_INLINE struct tables tables_of(const struct job *job) {
    return (struct tables){wasm_v128_load(job->levels->low), wasm_v128_load(job->levels->high)};
}

ALWAYS_INLINE void one_token(const struct job *job, uint32_t code_bits, enum sg_numerics numerics) {
    const struct tables tables = tables_of(job);
    const size_t group_bytes = SG_GROUP / 8 * code_bits;
    for (size_t row = job->first_row; row < job->row_end; row += ROWS) {
        const struct four_rows rows = rows_at(job->matrix, row, job->row_end);
        v128_t total = wasm_f32x4_splat(0.0f);
        for (size_t g = 0; g < job->matrix->group_count; g++) {
            const int16_t *number = job->x->number + g * SG_GROUP;
            v128_t lanes[ROWS];
#pragma clang loop unroll(full)
            for (size_t k = 0; k < ROWS; k++) {
                lanes[k] = lane_sums(code_bits, numerics, rows.codes[k] + g * group_bytes, number, tables);
            }
            const v128_t unit = wasm_f32x4_mul(norms_of(&rows, g), wasm_v128_load32_splat(job->x->unit + g));
            total = wasm_f32x4_add(total, wasm_f32x4_mul(rows_of_lanes(numerics, lanes), unit));
        }
        store_rows(job, 0, row, total);
    }
}

/* Pairs of codes as rows of a 4 x 8 matrix: out[n] holds the pairs 2 n and 2 n + 1 of all four rows. */
ALWAYS_INLINE void transpose_pairs(const v128_t in[ROWS], v128_t out[4]) {
    const v128_t low01 = wasm_i16x8_shuffle(in[0], in[1], 0, 8, 1, 9, 2, 10, 3, 11);
    const v128_t low23 = wasm_i16x8_shuffle(in[2], in[3], 0, 8, 1, 9, 2, 10, 3, 11);
    const v128_t high01 = wasm_i16x8_shuffle(in[0], in[1], 4, 12, 5, 13, 6, 14, 7, 15);
    const v128_t high23 = wasm_i16x8_shuffle(in[2], in[3], 4, 12, 5, 13, 6, 14, 7, 15);
    out[0] = wasm_i32x4_shuffle(low01, low23, 0, 4, 1, 5);
    out[1] = wasm_i32x4_shuffle(low01, low23, 2, 6, 3, 7);
    out[2] = wasm_i32x4_shuffle(high01, high23, 0, 4, 1, 5);
    out[3] = wasm_i32x4_shuffle(high01, high23, 2, 6, 3, 7);
}

/* Levels of four rows of one group, each 32-bit lane of a vector being one row: out[((lane * 4 + i) * 4 + k) * stride],
 * where lane and i are those of the fixed order and k is 0 for the even and 1 for the odd elements of the first 16,
 * 2 and 3 for those of the second. */
ALWAYS_INLINE void unpack_rows(uint32_t code_bits, enum sg_numerics numerics, const struct four_rows *rows, size_t g,
                               const struct tables *tables, v128_t *out, size_t stride) {
    const size_t group_bytes = SG_GROUP / 8 * code_bits;
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < 4; i++) {
        struct codes codes[ROWS];
        for (size_t r = 0; r < ROWS; r++) codes[r] = unpack(code_bits, rows->codes[r] + g * group_bytes, i);
        for (size_t odd = 0; odd < 2; odd++) {
            v128_t in[ROWS], pairs[4];
            for (size_t r = 0; r < ROWS; r++) in[r] = odd ? codes[r].odd : codes[r].even;
            transpose_pairs(in, pairs);
            for (size_t n = 0; n < 4; n++) {
                const struct level_pair level = levels_of(pairs[n], *tables, numerics);
                v128_t *place = out + ((2 * (n % 2) * 4 + i) * 4 + n / 2 * 2 + odd) * stride;
                place[0] = level.low;
                place[16 * stride] = level.high; /* the next lane */
            }
        }
    }
}

/* Adds one group's product of `row_vectors` x 4 rows with `tokens` tokens to total[token][row vector]. Not inlined, not
 * unrolled, few values alive at a time: V8 spills registers inside the loop otherwise, which costs a third. */
ALWAYS_INLINE void tile_exact(const v128_t *level, const int16_t *number, const float *unit, const v128_t *norm,
                              v128_t *total, size_t row_vectors, size_t tokens) {
    v128_t group[2 * TILE_EXACT];
#pragma clang loop unroll(disable)
    for (size_t lane = 0; lane < 4; lane++) {
        v128_t sum[2 * TILE_EXACT];
        for (size_t n = 0; n < row_vectors * tokens; n++) sum[n] = wasm_f32x4_splat(0.0f);
#pragma clang loop unroll(disable)
        for (size_t i = 0; i < 4; i++) {
            v128_t run[2 * TILE_EXACT];
            for (size_t k = 0; k < 4; k++) {
                v128_t row[2];
                for (size_t h = 0; h < row_vectors; h++) row[h] = level[k * row_vectors + h];
                for (size_t t = 0; t < tokens; t++) {
                    const v128_t pair = wasm_v128_load32_splat(number + t * SG_GROUP + 8 * k);
                    for (size_t h = 0; h < row_vectors; h++) {
                        const v128_t product = dot(row[h], pair);
                        const size_t n = t * row_vectors + h;
                        run[n] = k == 0 ? product : wasm_i32x4_add(run[n], product);
                    }
                }
            }
            for (size_t n = 0; n < row_vectors * tokens; n++) {
                sum[n] = wasm_f32x4_add(sum[n], wasm_f32x4_convert_i32x4(run[n]));
            }
            level += 4 * row_vectors;
            number += 32;
        }
        for (size_t n = 0; n < row_vectors * tokens; n++) {
            group[n] = lane == 0 ? sum[n] : wasm_f32x4_add(group[n], sum[n]);
        }
        number += 2 - (ptrdiff_t)SG_GROUP;
    }
    for (size_t t = 0; t < tokens; t++) {
        const v128_t unit_t = wasm_v128_load32_splat(unit + t);
        for (size_t h = 0; h < row_vectors; h++) {
            const size_t n = t * row_vectors + h;
            total[n] = wasm_f32x4_add(total[n], wasm_f32x4_mul(group[n], wasm_f32x4_mul(norm[h], unit_t)));
        }
    }
}

ALWAYS_INLINE void tile_fast(const v128_t *level, const int16_t *number, const float *unit, const v128_t *norm,
                             v128_t *total, size_t row_vectors, size_t tokens) {
    v128_t sum[2 * TILE_FAST];
    for (size_t n = 0; n < row_vectors * tokens; n++) sum[n] = wasm_i32x4_splat(0);
#pragma clang loop unroll(disable)
    for (size_t lane = 0; lane < 4; lane++) {
#pragma clang loop unroll(disable)
        for (size_t i = 0; i < 8; i++) {
            for (size_t k = 0; k < 2; k++) {
                v128_t row[2];
                for (size_t h = 0; h < row_vectors; h++) row[h] = level[k * row_vectors + h];
                for (size_t t = 0; t < tokens; t++) {
                    const v128_t pair = wasm_v128_load32_splat(number + t * SG_GROUP + 8 * k);
                    for (size_t h = 0; h < row_vectors; h++) {
                        const size_t n = t * row_vectors + h;
                        sum[n] = wasm_i32x4_add(sum[n], dot(row[h], pair));
                    }
                }
            }
            level += 2 * row_vectors;
            number += 16;
        }
        number += 2 - (ptrdiff_t)SG_GROUP;
    }
    for (size_t t = 0; t < tokens; t++) {
        const v128_t unit_t = wasm_v128_load32_splat(unit + t);
        for (size_t h = 0; h < row_vectors; h++) {
            const size_t n = t * row_vectors + h;
            total[n] = wasm_f32x4_add(
                total[n], wasm_f32x4_mul(wasm_f32x4_convert_i32x4(sum[n]), wasm_f32x4_mul(norm[h], unit_t)));
        }
    }
}

#define TILE(name, kind, row_vectors, tokens)                                                                          \
    static __attribute__((noinline)) void name(const v128_t *level, const int16_t *number, const float *unit,          \
                                               const v128_t *norm, v128_t *total) {                                    \
        kind(level, number, unit, norm, total, row_vectors, tokens);                                                   \
    }
TILE(exact_1x1, tile_exact, 1, 1)
TILE(exact_1x2, tile_exact, 1, 2)
TILE(exact_2x1, tile_exact, 2, 1)
TILE(exact_2x2, tile_exact, 2, 2)
TILE(fast_1x1, tile_fast, 1, 1)
TILE(fast_1x3, tile_fast, 1, 3)
TILE(fast_2x1, tile_fast, 2, 1)
TILE(fast_2x3, tile_fast, 2, 3)

/* The loops with their constants: one copy per numerics, and per code width where that is worth its bytes. */
#define SPECIALISE(name, numerics, bits)                                                                               \
    static void unpack_rows_##name##_##bits(const struct four_rows *rows, size_t g, const struct tables *tables,       \
                                            v128_t *out, size_t stride) {                                              \
        unpack_rows(bits, numerics, rows, g, tables, out, stride);                                                     \
    }
#define SPECIALISE_ONE(name, numerics, bits)                                                                           \
    static void one_token_##name##_##bits(const struct job *job) { one_token(job, bits, numerics); }
SPECIALISE(exact, SG_NUMERICS_EXACT, 1)
SPECIALISE(exact, SG_NUMERICS_EXACT, 2)
SPECIALISE(exact, SG_NUMERICS_EXACT, 3)
SPECIALISE(exact, SG_NUMERICS_EXACT, 4)
SPECIALISE(fast, SG_NUMERICS_FAST, 1)
SPECIALISE(fast, SG_NUMERICS_FAST, 2)
SPECIALISE(fast, SG_NUMERICS_FAST, 3)
SPECIALISE(fast, SG_NUMERICS_FAST, 4)
SPECIALISE_ONE(exact, SG_NUMERICS_EXACT, 2)
SPECIALISE_ONE(exact, SG_NUMERICS_EXACT, 4)
SPECIALISE_ONE(fast, SG_NUMERICS_FAST, 2)
SPECIALISE_ONE(fast, SG_NUMERICS_FAST, 4)

struct method {
    void (*unpack_rows[4])(const struct four_rows *rows, size_t g, const struct tables *tables, v128_t *out,
                           size_t stride); /* by code_bits - 1 */
    void (*one_token[4])(const struct job *job); /* NULL: the block's way serves one token too */
    void (*tile[2][2])(const v128_t *level, const int16_t *number, const float *unit, const v128_t *norm,
                       v128_t *total); /* by row vectors - 1; then one token, and `tile_tokens` */
    size_t tile_tokens;
};

static const struct method methods[2] = {
    [SG_NUMERICS_EXACT] = {{unpack_rows_exact_1, unpack_rows_exact_2, unpack_rows_exact_3, unpack_rows_exact_4},
                           {NULL, one_token_exact_2, NULL, one_token_exact_4},
                           {{exact_1x1, exact_1x2}, {exact_2x1, exact_2x2}},
                           TILE_EXACT},
    [SG_NUMERICS_FAST] = {{unpack_rows_fast_1, unpack_rows_fast_2, unpack_rows_fast_3, unpack_rows_fast_4},
                          {NULL, one_token_fast_2, NULL, one_token_fast_4},
                          {{fast_1x1, fast_1x3}, {fast_2x1, fast_2x3}},
                          TILE_FAST},
};

/* 4 or 8 rows from `row` on, all groups, all tokens. */
static void block_rows(const struct job *job, const struct method *method, size_t row, size_t row_vectors) {
    const struct tables tables = tables_of(job);
    const uint32_t token_count = job->x->token_count;
    v128_t total[2 * SG_TOKEN_BLOCK], level[2 * STEPS], norm[2];
    struct four_rows rows[2];
    for (size_t h = 0; h < row_vectors; h++) rows[h] = rows_at(job->matrix, row + h * ROWS, job->row_end);
    for (size_t n = 0; n < row_vectors * token_count; n++) total[n] = wasm_f32x4_splat(0.0f);
    for (size_t g = 0; g < job->matrix->group_count; g++) {
        for (size_t h = 0; h < row_vectors; h++) {
            method->unpack_rows[job->matrix->code_bits - 1](rows + h, g, &tables, level + h, row_vectors);
            norm[h] = norms_of(rows + h, g);
        }
        for (size_t t = 0; t < token_count;) {
            const size_t place = g * token_count + t;
            const bool whole = token_count - t >= method->tile_tokens;
            method->tile[row_vectors - 1][whole](level, job->x->number + place * SG_GROUP, job->x->unit + place, norm,
                                                 total + t * row_vectors);
            t += whole ? method->tile_tokens : 1;
        }
    }
    for (size_t t = 0; t < token_count; t++) {
        for (size_t h = 0; h < row_vectors; h++) store_rows(job, t, row + h * ROWS, total[t * row_vectors + h]);
    }
}

void sg_product_simd(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const struct sg_fixed *x,
                     float *y, size_t y_stride) {
    const struct method *method = &methods[x->numerics];
    const struct job job = {.matrix = matrix,
                            .levels = &matrix->levels->fixed[x->numerics],
                            .x = x,
                            .first_row = first_row,
                            .row_end = (size_t)first_row + row_count,
                            .y = y,
                            .y_stride = y_stride};
    if (x->token_count == 1 && method->one_token[matrix->code_bits - 1]) {
        method->one_token[matrix->code_bits - 1](&job);
        return;
    }
    for (size_t row = job.first_row; row < job.row_end; row += 2 * ROWS) {
        const size_t row_vectors = job.row_end - row > ROWS ? 2 : 1;
        block_rows(&job, method, row, row_vectors);
    }
}

#ifndef SG_SCALAR
void sg_product(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const struct sg_fixed *x,
                float *y, size_t y_stride) {
    sg_product_simd(matrix, first_row, row_count, x, y, y_stride);
}
#endif
#endif
