/* The kernels in plain C: the definition of what the SIMD ones must give, bit for bit. */
#include "kernels.h"

#include "cursor.h"

#define INVERSE_SQRT_128 0x1.6a09e6p-4f

void sg_levels_set(struct sg_levels *levels, const float *values, size_t count) {
    for (size_t i = 0; i < 16; i++) {
        levels->value[i] = i < count ? values[i] : 0.0f;
        const uint32_t bits = sg_bits_of_float(levels->value[i]);
        for (size_t byte = 0; byte < 4; byte++) levels->plane[byte][i] = (uint8_t)(bits >> 8 * byte);
    }
}

void sg_unpack_group(const uint8_t *packed, uint32_t code_bits, uint8_t codes[SG_GROUP]) {
    const uint32_t mask = (1u << code_bits) - 1;
    for (size_t i = 0; i < SG_GROUP; i += 8) { /* eight codes fill `code_bits` whole bytes */
        uint32_t word = 0;
        for (uint32_t byte = 0; byte < code_bits; byte++) word |= (uint32_t)packed[byte] << 8 * byte;
        for (uint32_t k = 0; k < 8; k++) codes[i + k] = (uint8_t)(word >> code_bits * k & mask);
        packed += code_bits;
    }
}

void sg_rotate_scalar(float *x, size_t group_count) {
    for (; group_count > 0; group_count--, x += SG_GROUP) {
        for (size_t half = 1; half < SG_GROUP; half *= 2) {
            for (size_t start = 0; start < SG_GROUP; start += 2 * half) {
                for (size_t i = start; i < start + half; i++) {
                    const float a = x[i], b = x[i + half];
                    x[i] = a + b;
                    x[i + half] = a - b;
                }
            }
        }
        for (size_t i = 0; i < SG_GROUP; i++) x[i] *= INVERSE_SQRT_128;
    }
}

/* acc[0..3] and acc[4..7] take turns of four elements, then meet: the order of the SIMD kernel's two registers. */
static void add_group(float total[4], const float levels[SG_GROUP], const float *x, float norm) {
    float acc[8] = {0};
    for (size_t i = 0; i < SG_GROUP; i += 8) {
        for (size_t k = 0; k < 8; k++) acc[k] += levels[i + k] * x[i + k];
    }
    for (size_t k = 0; k < 4; k++) total[k] += norm * (acc[k] + acc[k + 4]);
}

void sg_matmul_scalar(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const float *x,
                      size_t token_count, float *y, size_t y_stride) {
    const size_t group_bytes = SG_GROUP / 8 * matrix->code_bits;
    const size_t x_stride = (size_t)SG_GROUP * matrix->group_count;
    for (size_t r = 0; r < row_count; r++) {
        const size_t first_group = (first_row + r) * matrix->group_count;
        for (size_t t = 0; t < token_count; t++) {
            float total[4] = {0};
            for (size_t g = 0; g < matrix->group_count; g++) {
                uint8_t codes[SG_GROUP];
                float levels[SG_GROUP];
                sg_unpack_group(matrix->codes + (first_group + g) * group_bytes, matrix->code_bits, codes);
                for (size_t i = 0; i < SG_GROUP; i++) levels[i] = matrix->levels->value[codes[i]];
                const float norm = sg_float_of_half(sg_load_u16(matrix->norms + 2 * (first_group + g)));
                add_group(total, levels, x + t * x_stride + g * SG_GROUP, norm);
            }
            y[t * y_stride + r] = (total[0] + total[1]) + (total[2] + total[3]);
        }
    }
}

void sg_matrix_row(const struct sg_matrix *matrix, uint32_t row, float *buffer, float *out) {
    const size_t group_bytes = SG_GROUP / 8 * matrix->code_bits;
    const size_t first_group = (size_t)row * matrix->group_count;
    for (size_t g = 0; g < matrix->group_count; g++) {
        uint8_t codes[SG_GROUP];
        sg_unpack_group(matrix->codes + (first_group + g) * group_bytes, matrix->code_bits, codes);
        const float norm = sg_float_of_half(sg_load_u16(matrix->norms + 2 * (first_group + g)));
        for (size_t i = 0; i < SG_GROUP; i++) buffer[g * SG_GROUP + i] = norm * matrix->levels->value[codes[i]];
    }
    sg_rotate(buffer, matrix->group_count);
    memcpy(out, buffer, matrix->column_count * sizeof *out);
}

static float sum_of_lanes(const float acc[8]) {
    return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

float sg_dot(const float *a, const float *b, size_t count) {
    float acc[8] = {0};
    const size_t whole = count / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        for (size_t k = 0; k < 8; k++) acc[k] += a[i + k] * b[i + k];
    }
    for (size_t i = whole; i < count; i++) acc[i - whole] += a[i] * b[i];
    return sum_of_lanes(acc);
}

float sg_sum(const float *a, size_t count) {
    float acc[8] = {0};
    const size_t whole = count / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        for (size_t k = 0; k < 8; k++) acc[k] += a[i + k];
    }
    for (size_t i = whole; i < count; i++) acc[i - whole] += a[i];
    return sum_of_lanes(acc);
}

/* Sixteen columns at a time stay in registers; the order over k is the same for any width. */
void sg_weighted_sum(const float *weights, size_t weight_stride, const float *rows, size_t row_count, size_t width,
                     float *out) {
    size_t column = 0;
    for (; column + 16 <= width; column += 16) {
        float acc[16] = {0};
        for (size_t k = 0; k < row_count; k++) {
            const float weight = weights[k * weight_stride];
            for (size_t i = 0; i < 16; i++) acc[i] += weight * rows[k * width + column + i];
        }
        memcpy(out + column, acc, sizeof acc);
    }
    for (; column < width; column++) {
        float acc = 0.0f;
        for (size_t k = 0; k < row_count; k++) acc += weights[k * weight_stride] * rows[k * width + column];
        out[column] = acc;
    }
}

#if !defined(__wasm_simd128__) || defined(SG_SCALAR)
void sg_rotate(float *x, size_t group_count) { sg_rotate_scalar(x, group_count); }

void sg_matmul(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const float *x,
               size_t token_count, float *y, size_t y_stride) {
    sg_matmul_scalar(matrix, first_row, row_count, x, token_count, y, y_stride);
}
#endif
