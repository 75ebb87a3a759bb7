/* Arithmetic on vectors and on CQ matrices, in a summation order that is part of the contract (docs/numerics.md).
 *
 * Owns: the products in which nearly all of the time goes. A weight is never expanded to memory: activations are
 * rotated once per group of 128, then multiplied with the levels that the codes stand for.
 * Knows nothing of: models, layers, files.
 *
 * Each kernel exists twice, plain C and WebAssembly SIMD, with the same bits; `sg_matmul` and `sg_rotate` are the fast
 * one of the build. `-DSG_SCALAR` takes the plain ones everywhere. */
#ifndef SG_KERNELS_H
#define SG_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define SG_GROUP 128u        /* weights per norm, and the size of the Hadamard rotation */
#define SG_TOKEN_TILE 4u   /* tokens in registers at once, against the levels of one group */
#define SG_TOKEN_BLOCK 32u /* tokens that share one reading of a weight; prefill works in blocks of this size */

/* What the codes of one width stand for. `plane[i][code]` is byte i of `value[code]`, for byte-wise table look-up. */
struct sg_levels {
    float value[16];
    uint8_t plane[4][16];
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

/* y[t][r] = row (first_row + r) of the matrix times x[t]; x: (token_count, 128 * group_count) rotated, zero-padded;
 * y: (token_count, y_stride), of which row_count columns are written. */
void sg_matmul(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const float *x,
               size_t token_count, float *y, size_t y_stride);

/* One row as numbers: out (column_count,). `buffer` holds 128 * group_count floats. */
void sg_matrix_row(const struct sg_matrix *matrix, uint32_t row, float *buffer, float *out);

/* Codes of one group, least significant bit first, into 128 bytes. */
void sg_unpack_group(const uint8_t *packed, uint32_t code_bits, uint8_t codes[SG_GROUP]);

/* Eight partial sums (lane i takes elements i, i + 8, ...), then added as a tree. */
float sg_dot(const float *a, const float *b, size_t count);
float sg_sum(const float *a, size_t count);

/* out = sum over k of weights[k * weight_stride] * rows[k], in order of k; rows: (row_count, width). */
void sg_weighted_sum(const float *weights, size_t weight_stride, const float *rows, size_t row_count, size_t width,
                     float *out);

/* y += a x */
static inline void sg_axpy(float *restrict y, float a, const float *restrict x, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] += a * x[i];
}

/* The two versions, for the tests that compare them. */
void sg_rotate_scalar(float *x, size_t group_count);
void sg_matmul_scalar(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const float *x,
                      size_t token_count, float *y, size_t y_stride);
#ifdef __wasm_simd128__
void sg_rotate_simd(float *x, size_t group_count);
void sg_matmul_simd(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const float *x,
                    size_t token_count, float *y, size_t y_stride);
#endif

#endif
