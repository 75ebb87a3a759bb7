/* Inner parts of the SIMD products: codes out of bytes, four rows side by side, what a product works on.
 *
 * Included by product_simd.c and product_relaxed.c only: everything here must be inlined into their loops. */
#ifndef SG_PRODUCT_ROWS_H
#define SG_PRODUCT_ROWS_H

#include <wasm_simd128.h>

#include "cursor.h"
#include "product.h"
#include "vectors.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* Keeps clang from seeing how a pointer advances: it would make one index of several pointers, and an addition of each
 * offset that a load can take for nothing. */
#define HIDE_ORIGIN(pointer) __asm__("" : "+r"(pointer))
/* Before a loop over an array of sums: rolled, it would keep them in memory, and V8 leaves clearing them to a call. */
#define IN_REGISTERS _Pragma("clang loop unroll(full)")
#define ROWS 4u /* rows per vector */
#define RUN_GROUPS 8u /* groups of one row that are read in one run: prefetchers follow one stream, not four */

#define LOW_BYTES(a, b) wasm_i8x16_shuffle(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_BYTES(a, b) wasm_i8x16_shuffle(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* 32 codes: the 16 at even places and the 16 at odd places. */
struct codes {
    v128_t even, odd;
};

/* Codes 32 i .. 32 i + 31 of a group, at `packed` + 4 i code_bits. */
ALWAYS_INLINE struct codes unpack_4(const uint8_t *packed, size_t i) {
    const v128_t bytes = wasm_v128_load(packed + 16 * i);
    const v128_t mask = sg_vectors.nibbles;
    return (struct codes){wasm_v128_and(bytes, mask), wasm_v128_and(wasm_u16x8_shr(bytes, 4), mask)};
}

ALWAYS_INLINE struct codes unpack_2(const uint8_t *packed, size_t i) {
    const v128_t bytes = wasm_v128_load64_zero(packed + 8 * i);
    const v128_t mask = sg_vectors.crumbs;
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

ALWAYS_INLINE v128_t float_of_halves(v128_t halves) {
    const v128_t magnitude = wasm_i32x4_shl(wasm_v128_and(halves, sg_vectors.half_magnitude), 13);
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(halves, sg_vectors.half_sign), 16);
    return wasm_v128_or(wasm_f32x4_mul(magnitude, sg_vectors.half_scale), sign);
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

/* The sums of four rows' lanes of whole numbers. */
ALWAYS_INLINE v128_t add_lanes(const v128_t lanes[4]) {
    v128_t lane[4];
    transpose(lanes, lane);
    return wasm_i32x4_add(wasm_i32x4_add(lane[0], lane[1]), wasm_i32x4_add(lane[2], lane[3]));
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

/* Token t's numbers for one group, its unit and the sum of its numbers. */
struct token_group {
    const int16_t *number;
    const float *unit;
    const float *sum;
};

ALWAYS_INLINE struct token_group token_group_at(const struct job *job, size_t group, size_t token) {
    const size_t place = group * job->x->token_count + token;
    return (struct token_group){job->x->number + place * SG_GROUP, job->x->unit + place, job->x->sum + place};
}

/* Adds one group's whole-number sums of four rows to their total: see docs/numerics.md, step 4. */
ALWAYS_INLINE v128_t add_whole(v128_t total, v128_t sums, const struct token_group *x, v128_t offset, v128_t norm) {
    const v128_t shift = wasm_f32x4_mul(offset, wasm_v128_load32_splat(x->sum));
    const v128_t sum = wasm_f32x4_add(wasm_f32x4_convert_i32x4(sums), shift);
    return wasm_f32x4_add(total, wasm_f32x4_mul(sum, wasm_f32x4_mul(norm, wasm_v128_load32_splat(x->unit))));
}

/* How one rounding multiplies: by code_bits - 1, and by row vectors - 1. */
struct method {
    /* Levels of four rows of one group, written for the tiles, every `stride` vectors. */
    void (*unpack_rows[4])(const struct job *job, const struct four_rows *rows, size_t group, v128_t *out,
                           size_t stride);
    void (*one_token[4])(const struct job *job); /* NULL: the block's way serves one token too */
    /* total[token][row vector] += one group, for the tokens from `first` up to `end`; one token at a time, or
     * `tile_tokens`, whose multiple end - first must be. */
    void (*tile[2][2])(const struct job *job, size_t group, size_t first, size_t end, const v128_t *level,
                       const v128_t *norm, v128_t *total);
    size_t tile_tokens;
};

/* As sg_product, by that method. */
void sg_product_by(const struct method *method, const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count,
                   const struct sg_fixed *x, float *y, size_t y_stride);

#ifdef __wasm_relaxed_simd__
/* Sums of four products in 16 bits, or right away in 32; and which of them this machine does quicker. */
extern const struct method sg_method_relaxed_16, sg_method_relaxed_32;
bool sg_is_quicker_in_16_bits(void);
#endif

#endif
