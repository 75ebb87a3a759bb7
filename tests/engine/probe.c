/* Exports what the shipped module keeps inside: elementary functions and both versions of each kernel. */
#include "kernels.h"
#include "math.h"

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

/* `values` are the 16 levels; `blob` is a CQ blob: codes, then norms. */
PROBE(probe_matmul)
void probe_matmul(const uint8_t *blob, const float *values, uint32_t code_bits, uint32_t rows, uint32_t columns,
                  const float *x, size_t token_count, float *y, int simd);
void probe_matmul(const uint8_t *blob, const float *values, uint32_t code_bits, uint32_t rows, uint32_t columns,
                  const float *x, size_t token_count, float *y, int simd) {
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
    if (simd) {
        sg_matmul_simd(&matrix, 1, rows - 1, x, token_count, y, rows - 1);
    } else {
        sg_matmul_scalar(&matrix, 1, rows - 1, x, token_count, y, rows - 1);
    }
}

PROBE(probe_trap) void probe_trap(void);
void probe_trap(void) { __builtin_trap(); }
