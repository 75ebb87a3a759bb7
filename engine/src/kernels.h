/* Arithmetic on vectors and CQ matrices, in a summation order that is part of the contract (docs/numerics.md).
 *
 * Owns: CQ matrices and their levels, the rotation, and float32 sums. The products with CQ matrices are product.h's.
 * Knows nothing of: models, layers, files.
 *
 * `sg_rotate`, `sg_largest` (of magnitudes too), `sg_weighted_sums` and `sg_add_whole_sums` exist twice, plain C and WebAssembly SIMD, with the same bits; `-DSG_SCALAR` takes
 * the plain ones. */
#ifndef SG_KERNELS_H
#define SG_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "fixed.h"

#define SG_TOKEN_BLOCK 64u /* tokens that share one reading of a weight; prefill works in blocks of this size */

/* What the codes of one width stand for: as floats, and in fixed point by rounding. */
struct sg_levels {
    float value[16];
    struct sg_fixed_levels fixed[SG_ROUNDING_COUNT];
};

/* A (row_count, column_count) matrix in its file form: codes packed least significant bit first, row after row, each
 * row padded to whole groups; one binary16 norm per row and group. */
struct sg_matrix {
    const uint8_t *codes;
    const uint8_t *norms;
    const struct sg_levels *levels;
    uint32_t row_count;
    uint32_t column_count;
    uint32_t group_count;
    uint32_t code_bits; /* stored bits per code: 1, 2, 3 or 4 */
};

static inline size_t sg_padded(size_t column_count) {
    return (column_count + SG_GROUP - 1) / SG_GROUP * SG_GROUP;
}

void sg_levels_set(struct sg_levels *levels, const float *values, size_t count);

/* Rotates each of the `group_count` groups of x, in place: x_g := H x_g, H the normalised Walsh-Hadamard matrix. */
void sg_rotate(float *x, size_t group_count);

/* One row as numbers: out (column_count,). `buffer` holds 128 * group_count floats. */
void sg_matrix_row(const struct sg_matrix *matrix, uint32_t row, float *buffer, float *out);

/* Codes of one group, least significant bit first, into 128 bytes. */
void sg_unpack_group(const uint8_t *packed, uint32_t code_bits, uint8_t codes[SG_GROUP]);

/* Eight partial sums (lane i takes elements i, i + 8, ...), then added as a tree. */
float sg_dot(const float *a, const float *b, size_t count);
float sg_sum(const float *a, size_t count);
/* The largest of `count` numbers and `start`; NaN is none. */
float sg_largest(const float *a, size_t count, float start);
float sg_largest_magnitude(const float *a, size_t count);

/* Numbers seen as a matrix: element (i, k) stands at first[i * row_stride + k * column_stride]. */
struct sg_view {
    const float *first;
    size_t row_count, column_count;
    size_t row_stride, column_stride;
};

/* out[i] = sum over k, ascending, of weights(i, k) * rows[k]; rows: (weights.column_count, width) without gaps; out:
 * (weights.row_count, out_stride), of which `width` columns are written. */
void sg_weighted_sums(struct sg_view weights, const float *rows, size_t width, float *out, size_t out_stride);

/* out[i][c] += sum over p and k < 2 of weights[i * row_stride + 2 p + k] * rows[p][c][k]; rows: (pair_count, width, 2);
 * out: (row_count, width). The caller sees to it that no sum leaves 32 bits. */
void sg_add_whole_sums(const int16_t *weights, size_t row_count, size_t row_stride, const int8_t *rows,
                       size_t pair_count, size_t width, int32_t *out);

/* y += a x */
static inline void sg_axpy(float *restrict y, float a, const float *restrict x, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] += a * x[i];
}

/* The two versions, for the tests that compare them. */
void sg_rotate_scalar(float *x, size_t group_count);
void sg_weighted_sums_scalar(struct sg_view weights, const float *rows, size_t width, float *out,
                             size_t out_stride);
float sg_largest_scalar(const float *a, size_t count, float start);
float sg_largest_magnitude_scalar(const float *a, size_t count);
void sg_add_whole_sums_scalar(const int16_t *weights, size_t row_count, size_t row_stride, const int8_t *rows,
                              size_t pair_count, size_t width, int32_t *out);
#ifdef __wasm_simd128__
void sg_rotate_simd(float *x, size_t group_count);
float sg_largest_simd(const float *a, size_t count, float start);
float sg_largest_magnitude_simd(const float *a, size_t count);
void sg_add_whole_sums_simd(const int16_t *weights, size_t row_count, size_t row_stride, const int8_t *rows,
                            size_t pair_count, size_t width, int32_t *out);
void sg_weighted_sums_simd(struct sg_view weights, const float *rows, size_t width, float *out, size_t out_stride);
#endif

#endif
