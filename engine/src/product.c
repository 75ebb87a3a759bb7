/* The products in plain C: the definition of what product_simd.c must give, bit for bit. */
#include "product.h"

#include "cursor.h"

/* Four sums in float, each over four runs in order; then the four in order. */
static float group_sum_exact(const int16_t *level, const int16_t *number) {
    float lane_sum[4];
    for (size_t lane = 0; lane < 4; lane++) {
        for (size_t start = 0; start < SG_GROUP; start += 32) {
            int32_t run = 0;
            for (size_t k = 0; k < SG_RUN; k++) {
                const size_t i = start + 16 * (k / 4) + 4 * lane + k % 4;
                run += level[i] * number[sg_fixed_place(i)];
            }
            lane_sum[lane] = start == 0 ? (float)run : lane_sum[lane] + (float)run;
        }
    }
    return ((lane_sum[0] + lane_sum[1]) + lane_sum[2]) + lane_sum[3];
}

static float group_sum_fast(const int16_t *level, const int16_t *number) {
    int32_t sum = 0;
    for (size_t i = 0; i < SG_GROUP; i++) sum += level[i] * number[sg_fixed_place(i)];
    return (float)sum;
}

void sg_product_scalar(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count,
                       const struct sg_fixed *x, float *y, size_t y_stride) {
    const struct sg_fixed_levels *levels = &matrix->levels->fixed[x->rounding];
    const size_t group_bytes = SG_GROUP / 8 * matrix->code_bits;
    for (size_t r = 0; r < row_count; r++) {
        for (size_t t = 0; t < x->token_count; t++) y[t * y_stride + r] = 0.0f;
        for (size_t g = 0; g < matrix->group_count; g++) {
            const size_t group = (first_row + r) * matrix->group_count + g;
            uint8_t codes[SG_GROUP];
            int16_t level[SG_GROUP];
            sg_unpack_group(matrix->codes + group * group_bytes, matrix->code_bits, codes);
            for (size_t i = 0; i < SG_GROUP; i++) level[i] = levels->number[codes[i]];
            const float norm = sg_float_of_half(sg_load_u16(matrix->norms + 2 * group));
            for (size_t t = 0; t < x->token_count; t++) {
                const size_t place = g * x->token_count + t;
                const int16_t *number = x->number + place * SG_GROUP;
                const float sum = x->rounding == SG_ROUNDING_16
                                      ? group_sum_exact(level, number)
                                      : group_sum_fast(level, number) + levels->offset * x->sum[place];
                y[t * y_stride + r] += sum * (norm * x->unit[place]);
            }
        }
        for (size_t t = 0; t < x->token_count; t++) y[t * y_stride + r] *= levels->unit;
    }
}

#if !defined(__wasm_simd128__) || defined(SG_SCALAR)
void sg_product(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const struct sg_fixed *x,
                float *y, size_t y_stride) {
    sg_product_scalar(matrix, first_row, row_count, x, y, y_stride);
}
#endif
