/* Exports what the shipped module keeps inside: elementary functions and both versions of each kernel. */
#include "delta_guide.h"
#include "kernels.h"
#include "math.h"
#include "product_rows.h"

#define PROBE(name) __attribute__((export_name(#name)))

PROBE(probe_expf) void probe_expf(const float *x, float *y, size_t count);
void probe_expf(const float *x, float *y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = sg_expf(x[i]);
}

PROBE(probe_exp) void probe_exp(const double *x, double *y, size_t count);
void probe_exp(const double *x, double *y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = sg_exp(x[i]);
}

PROBE(probe_log) void probe_log(const double *x, double *y, size_t count);
void probe_log(const double *x, double *y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = sg_log(x[i]);
}

PROBE(probe_sincos) void probe_sincos(const double *x, double *y, size_t count);
void probe_sincos(const double *x, double *y, size_t count) {
    for (size_t i = 0; i < count; i++) sg_sincos(x[i], &y[2 * i], &y[2 * i + 1]);
}

PROBE(probe_rotate) void probe_rotate(float *x, size_t group_count, int simd);
void probe_rotate(float *x, size_t group_count, int simd) {
    if (simd) {
        sg_rotate_simd(x, group_count);
    } else {
        sg_rotate_scalar(x, group_count);
    }
}

PROBE(probe_guide_row)
void probe_guide_row(const int16_t *p, const int16_t *q, uint32_t rank, uint32_t row_codes, uint32_t pre_shift,
                     int16_t *shift);
void probe_guide_row(const int16_t *p, const int16_t *q, uint32_t rank, uint32_t row_codes, uint32_t pre_shift,
                     int16_t *shift) {
    sg_guide_row(p, q, rank, row_codes, pre_shift, shift);
}

/* How a product is to be found. */
enum way { PLAIN_C, AS_THE_ENGINE_DOES, SUMS_OF_16_BITS, SUMS_OF_32_BITS };

static void find_product(enum way way, const struct sg_matrix *matrix, const struct sg_fixed *x, float *y) {
    const uint32_t row_count = matrix->row_count - 1;
#ifdef __wasm_relaxed_simd__
    if (way >= SUMS_OF_16_BITS && x->rounding == SG_ROUNDING_7) {
        const struct method *method = way == SUMS_OF_16_BITS ? &sg_method_relaxed_16 : &sg_method_relaxed_32;
        sg_product_by(method, matrix, 1, row_count, x, y, row_count);
        return;
    }
#endif
    (way == PLAIN_C ? sg_product_scalar : sg_product_simd)(matrix, 1, row_count, x, y, row_count);
}

/* `values` are the 16 levels; `blob` is a CQ blob: codes, then norms; x: (token_count, columns). `room` holds the tokens in
 * fixed point: 2 bytes per padded column, then 8 per group. Rows from 1 on. */
PROBE(probe_product)
void probe_product(const uint8_t *blob, const float *values, uint32_t code_bits, uint32_t rows, uint32_t columns,
                   const float *x, uint32_t token_count, int16_t *room, float *y, uint32_t rounding, uint32_t way);
void probe_product(const uint8_t *blob, const float *values, uint32_t code_bits, uint32_t rows, uint32_t columns,
                   const float *x, uint32_t token_count, int16_t *room, float *y, uint32_t rounding, uint32_t way) {
    struct sg_levels levels;
    sg_levels_set(&levels, values, 16);
    const size_t padded = sg_padded(columns);
    const struct sg_matrix matrix = {.codes = blob,
                                     .norms = blob + rows * padded / 8 * code_bits,
                                     .levels = &levels,
                                     .row_count = rows,
                                     .column_count = columns,
                                     .group_count = (uint32_t)(padded / SG_GROUP),
                                     .code_bits = code_bits};
    struct sg_fixed fixed = {.number = room, .rounding = (enum sg_rounding)rounding};
    fixed.unit = (float *)(void *)(room + token_count * padded);
    fixed.sum = fixed.unit + token_count * (padded / SG_GROUP);
    sg_fixed_begin(&fixed, columns, token_count);
    for (uint32_t t = 0; t < token_count; t++) {
        (way == PLAIN_C ? sg_fixed_put_scalar : sg_fixed_put_simd)(&fixed, t, x + (size_t)t * columns, columns);
    }
    find_product((enum way)way, &matrix, &fixed, y);
}

/* out (height, width) = weights (height, depth) rows (depth, width); with `turned`, weights stand as (depth, height). */
PROBE(probe_weighted_sums)
void probe_weighted_sums(const float *weights, size_t height, size_t depth, int turned, const float *rows, size_t width,
                         float *out, int simd);
void probe_weighted_sums(const float *weights, size_t height, size_t depth, int turned, const float *rows, size_t width,
                         float *out, int simd) {
    const struct sg_view view = {weights, height, depth, turned ? 1 : depth, turned ? height : 1};
    (simd ? sg_weighted_sums_simd : sg_weighted_sums_scalar)(view, rows, width, out, width);
}

/* out (height, width) += weights (height, row_stride) rows (pair_count, width, 2). */
PROBE(probe_whole_sums)
void probe_whole_sums(const int16_t *weights, size_t height, size_t row_stride, const int8_t *rows, size_t pair_count,
                      size_t width, int32_t *out, int simd);
void probe_whole_sums(const int16_t *weights, size_t height, size_t row_stride, const int8_t *rows, size_t pair_count,
                      size_t width, int32_t *out, int simd) {
    (simd ? sg_add_whole_sums_simd : sg_add_whole_sums_scalar)(weights, height, row_stride, rows, pair_count, width,
                                                               out);
}

/* out[0]: the largest of x and `start`; out[1]: the largest magnitude of x. */
PROBE(probe_largest) void probe_largest(const float *x, size_t count, float start, float *out, int simd);
void probe_largest(const float *x, size_t count, float start, float *out, int simd) {
    out[0] = (simd ? sg_largest_simd : sg_largest_scalar)(x, count, start);
    out[1] = (simd ? sg_largest_magnitude_simd : sg_largest_magnitude_scalar)(x, count);
}

PROBE(probe_trap) void probe_trap(void);
void probe_trap(void) { __builtin_trap(); }
