/* The kernels in WebAssembly SIMD. Same order of operations as kernels.c, hence the same bits.
 *
 * A code becomes a level by four byte-wise table look-ups (`swizzle`), one per byte of the float; two rounds of
 * interleaving put the bytes together. With one token this goes straight into the sum; with more, the levels of one
 * group stay in 512 bytes of stack while `SG_TOKEN_TILE` tokens at a time use them. */
#include "kernels.h"

#ifdef __wasm_simd128__
#include <wasm_simd128.h>

#include "cursor.h"
#include "vectors.h"

#define TILE_SUMS 8 /* sums, rows and a factor fill the 16 registers that V8 has */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

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
    const v128_t scale = sg_vectors.inverse_sqrt_128;
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

struct sums {
    struct sg_view weights;
    const float *rows;
    size_t width;
    float *out;
    size_t out_stride;
};

/* `height` rows of weights from `i` on against 4 * `vectors` columns: all sums stay in registers. */
ALWAYS_INLINE void tile(const struct sums *job, size_t i, size_t column, size_t height, size_t vectors) {
    const float *weight = job->weights.first + i * job->weights.row_stride, *row = job->rows + column;
    v128_t sum[TILE_SUMS];
    for (size_t n = 0; n < height * vectors; n++) sum[n] = wasm_f32x4_splat(0.0f);
#pragma clang loop unroll(disable)
    for (size_t k = 0; k < job->weights.column_count; k++) {
        v128_t number[TILE_SUMS];
        for (size_t v = 0; v < vectors; v++) number[v] = wasm_v128_load(row + 4 * v);
        for (size_t h = 0; h < height; h++) {
            const v128_t factor = wasm_v128_load32_splat(weight + h * job->weights.row_stride);
            for (size_t v = 0; v < vectors; v++) {
                sum[h * vectors + v] = wasm_f32x4_add(sum[h * vectors + v], wasm_f32x4_mul(factor, number[v]));
            }
        }
        weight += job->weights.column_stride;
        row += job->width;
    }
    float *out = job->out + i * job->out_stride + column;
    for (size_t h = 0; h < height; h++) {
        for (size_t v = 0; v < vectors; v++) wasm_v128_store(out + h * job->out_stride + 4 * v, sum[h * vectors + v]);
    }
}

/* Not inlined: V8 spills registers inside the loop otherwise, which halves the speed. */
#define TILE(height, vectors)                                                                                          \
    static __attribute__((noinline)) void tile_##height##x##vectors(const struct sums *job, size_t i, size_t column) { \
        tile(job, i, column, height, vectors);                                                                         \
    }
TILE(4, 2)
TILE(4, 1)
TILE(2, 4)
TILE(2, 1)
TILE(1, 4)
TILE(1, 1)

/* Columns that fill no vector. */
static void ragged_columns(const struct sums *job, size_t column) {
    const struct sg_view *weights = &job->weights;
    for (; column < job->width; column++) {
        for (size_t i = 0; i < weights->row_count; i++) {
            float sum = 0.0f;
            for (size_t k = 0; k < weights->column_count; k++) {
                sum += weights->first[i * weights->row_stride + k * weights->column_stride] *
                       job->rows[k * job->width + column];
            }
            job->out[i * job->out_stride + column] = sum;
        }
    }
}

void sg_weighted_sums_simd(struct sg_view weights, const float *rows, size_t width, float *out, size_t out_stride) {
    const struct sums job = {weights, rows, width, out, out_stride};
    const size_t whole = width / 4 * 4;
    size_t i = 0;
    for (; i + 4 <= weights.row_count; i += 4) {
        size_t column = 0;
        for (; column + 8 <= width; column += 8) tile_4x2(&job, i, column);
        for (; column < whole; column += 4) tile_4x1(&job, i, column);
    }
    for (; i + 2 <= weights.row_count; i += 2) {
        size_t column = 0;
        for (; column + 16 <= width; column += 16) tile_2x4(&job, i, column);
        for (; column < whole; column += 4) tile_2x1(&job, i, column);
    }
    for (; i < weights.row_count; i++) {
        size_t column = 0;
        for (; column + 16 <= width; column += 16) tile_1x4(&job, i, column);
        for (; column < whole; column += 4) tile_1x1(&job, i, column);
    }
    ragged_columns(&job, whole);
}

/* `pmax` keeps its first operand where the second is not larger, as the scalar code does. */
float sg_largest_simd(const float *a, size_t count, float start) {
    v128_t lanes = wasm_f32x4_splat(start);
    const size_t whole = count / 4 * 4;
    for (size_t i = 0; i < whole; i += 4) lanes = wasm_f32x4_pmax(lanes, wasm_v128_load(a + i));
    float lane[4];
    wasm_v128_store(lane, lanes);
    for (size_t i = whole; i < count; i++) lane[i - whole] = a[i] > lane[i - whole] ? a[i] : lane[i - whole];
    const float low = lane[2] > lane[0] ? lane[2] : lane[0], high = lane[3] > lane[1] ? lane[3] : lane[1];
    return high > low ? high : low;
}

float sg_largest_magnitude_simd(const float *a, size_t count) {
    v128_t lanes = wasm_f32x4_splat(0.0f);
    const size_t whole = count / 4 * 4;
    for (size_t i = 0; i < whole; i += 4) lanes = wasm_f32x4_pmax(lanes, wasm_f32x4_abs(wasm_v128_load(a + i)));
    float lane[4];
    wasm_v128_store(lane, lanes);
    const float rest = sg_largest_magnitude_scalar(a + whole, count - whole);
    return sg_largest_scalar(lane, 4, rest);
}

struct whole_sums {
    const int16_t *weights;
    size_t row_stride;
    const int8_t *rows;
    size_t pair_count, width;
    int32_t *out;
};

/* As `tile`, over pairs of 8 bits: a load brings four columns, widened to 16. */
ALWAYS_INLINE void whole_tile(const struct whole_sums *job, size_t i, size_t column, size_t height, size_t vectors) {
    const int16_t *weight = job->weights + i * job->row_stride;
    const int8_t *row = job->rows + 2 * column;
    int32_t *out = job->out + i * job->width + column;
    v128_t sum[TILE_SUMS];
    for (size_t h = 0; h < height; h++) {
        for (size_t v = 0; v < vectors; v++) sum[h * vectors + v] = wasm_v128_load(out + h * job->width + 4 * v);
    }
#pragma clang loop unroll(disable)
    for (size_t p = 0; p < job->pair_count; p++) {
        v128_t factor[TILE_SUMS];
        for (size_t h = 0; h < height; h++) factor[h] = wasm_v128_load32_splat(weight + h * job->row_stride);
        for (size_t v = 0; v < vectors; v++) {
            const v128_t pairs = wasm_i16x8_load8x8(row + 8 * v);
            for (size_t h = 0; h < height; h++) {
                const size_t n = h * vectors + v;
                sum[n] = wasm_i32x4_add(sum[n], wasm_i32x4_dot_i16x8(pairs, factor[h]));
            }
        }
        weight += 2;
        row += 2 * job->width;
    }
    for (size_t h = 0; h < height; h++) {
        for (size_t v = 0; v < vectors; v++) wasm_v128_store(out + h * job->width + 4 * v, sum[h * vectors + v]);
    }
}

#define WHOLE_TILE(height, vectors)                                                                                    \
    static __attribute__((noinline)) void whole_tile_##height##x##vectors(const struct whole_sums *job, size_t i,      \
                                                                          size_t column) {                             \
        whole_tile(job, i, column, height, vectors);                                                                   \
    }
WHOLE_TILE(2, 4)
WHOLE_TILE(2, 1)
WHOLE_TILE(1, 4)
WHOLE_TILE(1, 1)

void sg_add_whole_sums_simd(const int16_t *weights, size_t row_count, size_t row_stride, const int8_t *rows,
                            size_t pair_count, size_t width, int32_t *out) {
    const struct whole_sums job = {weights, row_stride, rows, pair_count, width, out};
    if (width % 4 != 0) { /* no such model exists */
        sg_add_whole_sums_scalar(weights, row_count, row_stride, rows, pair_count, width, out);
        return;
    }
    size_t i = 0;
    for (; i + 2 <= row_count; i += 2) {
        size_t column = 0;
        for (; column + 16 <= width; column += 16) whole_tile_2x4(&job, i, column);
        for (; column < width; column += 4) whole_tile_2x1(&job, i, column);
    }
    if (i == row_count) return;
    size_t column = 0;
    for (; column + 16 <= width; column += 16) whole_tile_1x4(&job, i, column);
    for (; column < width; column += 4) whole_tile_1x1(&job, i, column);
}

#ifndef SG_SCALAR
float sg_largest(const float *a, size_t count, float start) { return sg_largest_simd(a, count, start); }

float sg_largest_magnitude(const float *a, size_t count) { return sg_largest_magnitude_simd(a, count); }

void sg_add_whole_sums(const int16_t *weights, size_t row_count, size_t row_stride, const int8_t *rows,
                       size_t pair_count, size_t width, int32_t *out) {
    sg_add_whole_sums_simd(weights, row_count, row_stride, rows, pair_count, width, out);
}

void sg_weighted_sums(struct sg_view weights, const float *rows, size_t width, float *out, size_t out_stride) {
    sg_weighted_sums_simd(weights, rows, width, out, out_stride);
}

void sg_rotate(float *x, size_t group_count) { sg_rotate_simd(x, group_count); }
#endif
#endif
