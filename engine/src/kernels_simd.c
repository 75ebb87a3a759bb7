/* The kernels in WebAssembly SIMD. Same order of operations as kernels.c, hence the same bits.
 *
 * A code becomes a level by four byte-wise table look-ups (`swizzle`), one per byte of the float; two rounds of
 * interleaving put the bytes together. With one token this goes straight into the sum; with more, the levels of one
 * group stay in 512 bytes of stack while `SG_TOKEN_TILE` tokens at a time use them. */
#include "kernels.h"

#ifdef __wasm_simd128__
#include <wasm_simd128.h>

#include "cursor.h"

#define INVERSE_SQRT_128 0x1.6a09e6p-4f
#define ALWAYS_INLINE static inline __attribute__((always_inline))

struct planes {
    v128_t byte[4];
};

/* Levels of 16 codes, four per vector. */
ALWAYS_INLINE void levels_of(v128_t codes, const struct planes *planes, v128_t out[4]) {
    const v128_t b0 = wasm_i8x16_swizzle(planes->byte[0], codes);
    const v128_t b1 = wasm_i8x16_swizzle(planes->byte[1], codes);
    const v128_t b2 = wasm_i8x16_swizzle(planes->byte[2], codes);
    const v128_t b3 = wasm_i8x16_swizzle(planes->byte[3], codes);
    const v128_t low01 = wasm_i8x16_shuffle(b0, b1, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const v128_t low23 = wasm_i8x16_shuffle(b2, b3, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const v128_t high01 = wasm_i8x16_shuffle(b0, b1, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const v128_t high23 = wasm_i8x16_shuffle(b2, b3, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    out[0] = wasm_i16x8_shuffle(low01, low23, 0, 8, 1, 9, 2, 10, 3, 11);
    out[1] = wasm_i16x8_shuffle(low01, low23, 4, 12, 5, 13, 6, 14, 7, 15);
    out[2] = wasm_i16x8_shuffle(high01, high23, 0, 8, 1, 9, 2, 10, 3, 11);
    out[3] = wasm_i16x8_shuffle(high01, high23, 4, 12, 5, 13, 6, 14, 7, 15);
}

/* 16 bytes of 4-bit codes (low nibble first) to 32 codes in order. */
ALWAYS_INLINE void unpack_nibbles(v128_t packed, v128_t out[2]) {
    const v128_t even = wasm_v128_and(packed, wasm_i8x16_splat(15));
    const v128_t odd = wasm_u8x16_shr(packed, 4);
    out[0] = wasm_i8x16_shuffle(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    out[1] = wasm_i8x16_shuffle(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Codes of one group, 16 per vector, in order. */
ALWAYS_INLINE void unpack(const uint8_t *packed, uint32_t code_bits, v128_t codes[8]) {
    if (code_bits == 4) {
        for (size_t i = 0; i < 4; i++) unpack_nibbles(wasm_v128_load(packed + 16 * i), codes + 2 * i);
    } else if (code_bits == 2) {
        for (size_t i = 0; i < 2; i++) { /* a nibble is two codes: split it as a nibble, then each half again */
            v128_t nibbles[2];
            unpack_nibbles(wasm_v128_load(packed + 16 * i), nibbles);
            for (size_t k = 0; k < 2; k++) {
                const v128_t even = wasm_v128_and(nibbles[k], wasm_i8x16_splat(3));
                const v128_t odd = wasm_u8x16_shr(nibbles[k], 2);
                codes[4 * i + 2 * k] =
                    wasm_i8x16_shuffle(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                codes[4 * i + 2 * k + 1] =
                    wasm_i8x16_shuffle(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            }
        }
    } else {
        uint8_t bytes[SG_GROUP];
        sg_unpack_group(packed, code_bits, bytes);
        for (size_t i = 0; i < 8; i++) codes[i] = wasm_v128_load(bytes + 16 * i);
    }
}

ALWAYS_INLINE v128_t multiply_add(v128_t sum, v128_t a, v128_t b) {
    return wasm_f32x4_add(sum, wasm_f32x4_mul(a, b));
}

ALWAYS_INLINE float sum_of_lanes(v128_t total) {
    return (wasm_f32x4_extract_lane(total, 0) + wasm_f32x4_extract_lane(total, 1)) +
           (wasm_f32x4_extract_lane(total, 2) + wasm_f32x4_extract_lane(total, 3));
}

ALWAYS_INLINE v128_t norm_of(const struct sg_matrix *matrix, size_t group) {
    return wasm_f32x4_splat(sg_float_of_half(sg_load_u16(matrix->norms + 2 * group)));
}

/* One token: codes to levels to sum, nothing stored. */
ALWAYS_INLINE float row_times_vector(const struct sg_matrix *matrix, const struct planes *planes, uint32_t code_bits,
                                     size_t first_group, const float *x) {
    v128_t total = wasm_f32x4_splat(0.0f);
    for (size_t g = 0; g < matrix->group_count; g++, x += SG_GROUP) {
        v128_t codes[8];
        unpack(matrix->codes + (first_group + g) * (SG_GROUP / 8 * code_bits), code_bits, codes);
        v128_t even = wasm_f32x4_splat(0.0f), odd = even;
        for (size_t i = 0; i < 8; i++) {
            v128_t levels[4];
            levels_of(codes[i], planes, levels);
            even = multiply_add(even, levels[0], wasm_v128_load(x + 16 * i));
            odd = multiply_add(odd, levels[1], wasm_v128_load(x + 16 * i + 4));
            even = multiply_add(even, levels[2], wasm_v128_load(x + 16 * i + 8));
            odd = multiply_add(odd, levels[3], wasm_v128_load(x + 16 * i + 12));
        }
        total = multiply_add(total, norm_of(matrix, first_group + g), wasm_f32x4_add(even, odd));
    }
    return sum_of_lanes(total);
}

/* Adds one group's product to the totals of `count` tokens (1 to SG_TOKEN_TILE). */
ALWAYS_INLINE void add_group(const v128_t levels[32], const float *x, size_t x_stride, size_t count, v128_t norm,
                             v128_t *total) {
    v128_t even[SG_TOKEN_TILE], odd[SG_TOKEN_TILE];
    for (size_t t = 0; t < count; t++) even[t] = odd[t] = wasm_f32x4_splat(0.0f);
    for (size_t i = 0; i < 32; i += 2) {
        for (size_t t = 0; t < count; t++) {
            even[t] = multiply_add(even[t], levels[i], wasm_v128_load(x + t * x_stride + 4 * i));
            odd[t] = multiply_add(odd[t], levels[i + 1], wasm_v128_load(x + t * x_stride + 4 * i + 4));
        }
    }
    for (size_t t = 0; t < count; t++) {
        total[t] = multiply_add(total[t], norm, wasm_f32x4_add(even[t], odd[t]));
    }
}

/* Up to SG_TOKEN_BLOCK tokens: each group's levels are found once. */
ALWAYS_INLINE void row_times_block(const struct sg_matrix *matrix, const struct planes *planes, uint32_t code_bits,
                                   size_t first_group, const float *x, size_t token_count, float *y,
                                   size_t y_stride) {
    const size_t x_stride = (size_t)SG_GROUP * matrix->group_count;
    v128_t total[SG_TOKEN_BLOCK];
    for (size_t t = 0; t < token_count; t++) total[t] = wasm_f32x4_splat(0.0f);
    for (size_t g = 0; g < matrix->group_count; g++, x += SG_GROUP) {
        v128_t codes[8], levels[32];
        unpack(matrix->codes + (first_group + g) * (SG_GROUP / 8 * code_bits), code_bits, codes);
        for (size_t i = 0; i < 8; i++) levels_of(codes[i], planes, levels + 4 * i);
        const v128_t norm = norm_of(matrix, first_group + g);
        size_t t = 0;
        for (; t + SG_TOKEN_TILE <= token_count; t += SG_TOKEN_TILE) {
            add_group(levels, x + t * x_stride, x_stride, SG_TOKEN_TILE, norm, total + t);
        }
        for (; t < token_count; t++) add_group(levels, x + t * x_stride, x_stride, 1, norm, total + t);
    }
    for (size_t t = 0; t < token_count; t++) y[t * y_stride] = sum_of_lanes(total[t]);
}

/* Specialised by the compiler for each width. */
ALWAYS_INLINE void matmul(const struct sg_matrix *matrix, uint32_t code_bits, uint32_t first_row, uint32_t row_count,
                          const float *x, size_t token_count, float *y, size_t y_stride) {
    struct planes planes;
    for (size_t i = 0; i < 4; i++) planes.byte[i] = wasm_v128_load(matrix->levels->plane[i]);
    for (size_t r = 0; r < row_count; r++) {
        const size_t first_group = (first_row + r) * matrix->group_count;
        if (token_count == 1) {
            y[r] = row_times_vector(matrix, &planes, code_bits, first_group, x);
        } else {
            row_times_block(matrix, &planes, code_bits, first_group, x, token_count, y + r, y_stride);
        }
    }
}

void sg_matmul_simd(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const float *x,
                    size_t token_count, float *y, size_t y_stride) {
    const size_t x_stride = (size_t)SG_GROUP * matrix->group_count;
    for (size_t t = 0; t < token_count; t += SG_TOKEN_BLOCK) {
        const size_t count = token_count - t < SG_TOKEN_BLOCK ? token_count - t : SG_TOKEN_BLOCK;
        const float *x_block = x + t * x_stride;
        float *y_block = y + t * y_stride;
        switch (matrix->code_bits) {
        case 4: matmul(matrix, 4, first_row, row_count, x_block, count, y_block, y_stride); break;
        case 2: matmul(matrix, 2, first_row, row_count, x_block, count, y_block, y_stride); break;
        default: matmul(matrix, matrix->code_bits, first_row, row_count, x_block, count, y_block, y_stride);
        }
    }
}

/* Strides 1 and 2 lie inside a vector: [a b c d] -> [a+b a-b c+d c-d] -> [.. + ..]. */
ALWAYS_INLINE v128_t rotate_inside(v128_t v) {
    const v128_t minus_odd = wasm_i32x4_make(0, INT32_MIN, 0, INT32_MIN);
    const v128_t minus_high = wasm_i32x4_make(0, 0, INT32_MIN, INT32_MIN);
    v = wasm_f32x4_add(wasm_i32x4_shuffle(v, v, 0, 0, 2, 2),
                       wasm_v128_xor(wasm_i32x4_shuffle(v, v, 1, 1, 3, 3), minus_odd));
    return wasm_f32x4_add(wasm_i32x4_shuffle(v, v, 0, 1, 0, 1),
                          wasm_v128_xor(wasm_i32x4_shuffle(v, v, 2, 3, 2, 3), minus_high));
}

void sg_rotate_simd(float *x, size_t group_count) {
    const v128_t scale = wasm_f32x4_splat(INVERSE_SQRT_128);
    for (; group_count > 0; group_count--, x += SG_GROUP) {
        v128_t v[32];
        for (size_t i = 0; i < 32; i++) v[i] = rotate_inside(wasm_v128_load(x + 4 * i));
        for (size_t half = 1; half < 32; half *= 2) {
            for (size_t start = 0; start < 32; start += 2 * half) {
                for (size_t i = start; i < start + half; i++) {
                    const v128_t a = v[i], b = v[i + half];
                    v[i] = wasm_f32x4_add(a, b);
                    v[i + half] = wasm_f32x4_sub(a, b);
                }
            }
        }
        for (size_t i = 0; i < 32; i++) wasm_v128_store(x + 4 * i, wasm_f32x4_mul(v[i], scale));
    }
}

#ifndef SG_SCALAR
void sg_rotate(float *x, size_t group_count) { sg_rotate_simd(x, group_count); }

void sg_matmul(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const float *x,
               size_t token_count, float *y, size_t y_stride) {
    sg_matmul_simd(matrix, first_row, row_count, x, token_count, y, y_stride);
}
#endif
#endif
