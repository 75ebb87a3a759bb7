/* Products of CQ matrices with activations in fixed point: where nearly all of the time goes.
 *
 * Owns: the order of the few float operations (docs/numerics.md, "Products"); the whole-number sums are exact, so that
 * a kernel may take them in any order. A weight is never expanded to memory beyond 8 rows of one group.
 * Knows nothing of: models, layers, files.
 *
 * `sg_product` exists twice, plain C and WebAssembly SIMD, with the same bits; `-DSG_SCALAR` takes the plain one. */
#ifndef SG_PRODUCT_H
#define SG_PRODUCT_H

#include "fixed.h"
#include "kernels.h"

/* y[t][r] = row (first_row + r) of the matrix times token t; y: (token_count, y_stride), of which row_count columns are
 * written. */
void sg_product(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const struct sg_fixed *x,
                float *y, size_t y_stride);

void sg_product_scalar(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count,
                       const struct sg_fixed *x, float *y, size_t y_stride);
#ifdef __wasm_simd128__
void sg_product_simd(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const struct sg_fixed *x,
                     float *y, size_t y_stride);
#endif

#endif
