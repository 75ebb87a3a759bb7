/* The kernels in plain C: the definition of what the SIMD ones must give, bit for bit. */
#include "kernels.h"

#include "cursor.h"
#include "fixed.h"

#define INVERSE_SQRT_128 0x1.6a09e6p-4f

void sg_levels_set(struct sg_levels *levels, const float *values, size_t count) {
    for (size_t i = 0; i < 16; i++) {
        levels->value[i] = i < count ? values[i] : 0.0f;
    }
    for (int rounding = 0; rounding < SG_ROUNDING_COUNT; rounding++) {
        sg_fixed_levels_set(&levels->fixed[rounding], levels->value, (enum sg_rounding)rounding);
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

float sg_largest_scalar(const float *a, size_t count, float start) {
    float lane[4] = {start, start, start, start};
    for (size_t i = 0; i < count; i++) lane[i % 4] = a[i] > lane[i % 4] ? a[i] : lane[i % 4];
    const float low = lane[2] > lane[0] ? lane[2] : lane[0], high = lane[3] > lane[1] ? lane[3] : lane[1];
    return high > low ? high : low;
}

float sg_largest_magnitude_scalar(const float *a, size_t count) {
    float largest = 0.0f;
    for (size_t i = 0; i < count; i++) {
        const float magnitude = a[i] < 0.0f ? -a[i] : a[i];
        if (magnitude > largest) largest = magnitude;
    }
    return largest;
}

void sg_add_whole_sums_scalar(const int16_t *weights, size_t row_count, size_t row_stride, const int8_t *rows,
                              size_t pair_count, size_t width, int32_t *out) {
    for (size_t i = 0; i < row_count; i++) {
        for (size_t column = 0; column < width; column++) {
            int32_t sum = out[i * width + column];
            for (size_t p = 0; p < pair_count; p++) {
                const int16_t *weight = weights + i * row_stride + 2 * p;
                const int8_t *pair = rows + (p * width + column) * 2;
                sum += weight[0] * pair[0] + weight[1] * pair[1];
            }
            out[i * width + column] = sum;
        }
    }
}

void sg_weighted_sums_scalar(struct sg_view weights, const float *rows, size_t width, float *out, size_t out_stride) {
    for (size_t i = 0; i < weights.row_count; i++) {
        const float *weight = weights.first + i * weights.row_stride;
        for (size_t column = 0; column < width; column++) {
            float sum = 0.0f;
            for (size_t k = 0; k < weights.column_count; k++) {
                sum += weight[k * weights.column_stride] * rows[k * width + column];
            }
            out[i * out_stride + column] = sum;
        }
    }
}

#if !defined(__wasm_simd128__) || defined(SG_SCALAR)
void sg_weighted_sums(struct sg_view weights, const float *rows, size_t width, float *out, size_t out_stride) {
    sg_weighted_sums_scalar(weights, rows, width, out, out_stride);
}

void sg_rotate(float *x, size_t group_count) { sg_rotate_scalar(x, group_count); }

float sg_largest(const float *a, size_t count, float start) { return sg_largest_scalar(a, count, start); }

float sg_largest_magnitude(const float *a, size_t count) { return sg_largest_magnitude_scalar(a, count); }

void sg_add_whole_sums(const int16_t *weights, size_t row_count, size_t row_stride, const int8_t *rows,
                       size_t pair_count, size_t width, int32_t *out) {
    sg_add_whole_sums_scalar(weights, row_count, row_stride, rows, pair_count, width, out);
}
#endif
