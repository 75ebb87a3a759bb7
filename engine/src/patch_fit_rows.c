/* Row by row through a tensor pair: its difference, its shift, and the slope of its likelihood.
 *
 * Owns: the inner loops of the fit. Knows nothing of: what is done with them (patch_fit.c). */
#include "patch_fit_run.h"

#include <string.h>

#include "delta_state.h"

#define LANES 8u

static float half_value(uint32_t bits) {
    return bits >= 0x0400 && bits < 0x7c00 ? sg_float_of_half((uint16_t)bits) : 0.0f;
}

void sg_fit_open_row(struct sg_fit_run *run, uint32_t row) {
    const struct sg_fit_input *input = run->input;
    const size_t row_bytes = (size_t)run->columns / 8 * input->code_bits;
    sg_unpack_codes(input->old_codes + row * row_bytes, input->code_bits, run->columns, run->fit->old_row);
    sg_unpack_codes(input->new_codes + row * row_bytes, input->code_bits, run->columns, run->fit->new_row);
    for (uint32_t g = 0; g < input->group_count; g++) {
        const size_t at = 2 * ((size_t)row * input->group_count + g);
        run->old_norm[g] = half_value(sg_load_u16(input->old_norms + at));
        run->new_norm[g] = half_value(sg_load_u16(input->new_norms + at));
    }
}

int sg_fit_is_open(const struct sg_fit_run *run, uint32_t g) {
    return run->old_norm[0] > 0 && run->old_norm[g] > 0 && run->new_norm[g] > 0;
}

/* The dequantised difference over the row's first norm, into `slope`. */
void sg_fit_row_difference(struct sg_fit_run *run) {
    struct sg_fit *fit = run->fit;
    for (uint32_t g = 0; g < run->input->group_count; g++) {
        const int is_open = sg_fit_is_open(run, g);
        const float old_scale = is_open ? run->old_norm[g] / run->old_norm[0] : 0;
        const float new_scale = is_open ? run->new_norm[g] / run->old_norm[0] : 0;
        for (uint32_t i = g * SG_PATCH_GROUP_CODES; i < (g + 1) * SG_PATCH_GROUP_CODES; i++)
            fit->slope[i] = run->level[fit->new_row[i]] * new_scale - run->level[fit->old_row[i]] * old_scale;
    }
}

void sg_fit_row_shift(struct sg_fit_run *run, const float *p) {
    float *shift = run->fit->shift;
    memset(shift, 0, run->columns * sizeof *shift);
    for (uint32_t k = 0; k < run->rank; k++) {
        const float *q = run->fit->q_real + (size_t)k * run->columns;
        for (uint32_t i = 0; i < run->columns; i++)
            shift[i] += p[k] * q[i];
    }
}

/* Derivative of the log likelihood by each shift, into `slope`. */
void sg_fit_row_slope(struct sg_fit_run *run) {
    struct sg_fit *fit = run->fit;
    const float per_bucket = 65536.0f / (float)(1u << run->table_shape.bucket_shift);
    double info = 0;
    for (uint32_t g = 0; g < run->input->group_count; g++) {
        const int is_open = sg_fit_is_open(run, g);
        const float ratio = is_open ? run->old_norm[g] / run->new_norm[g] - 1 : 0;
        const float weight = is_open ? run->old_norm[0] / run->new_norm[g] : 0;
        float group_info = 0;
        for (uint32_t i = g * SG_PATCH_GROUP_CODES; i < (g + 1) * SG_PATCH_GROUP_CODES; i++) {
            const float moved = (run->level[fit->old_row[i]] * ratio + fit->shift[i] * weight) * per_bucket + 128.0f;
            const uint32_t bucket = moved < 1 ? 1 : moved > 254 ? 254 : (uint32_t)moved;
            const float slope =
                fit->score[(fit->old_row[i] * SG_GUIDE_BUCKETS + bucket) * SG_RANS_SYMBOLS + fit->new_row[i]];
            fit->slope[i] = slope * weight;
            group_info += slope * slope;
        }
        info += is_open ? (double)group_info : 0;
        run->info_count += is_open ? SG_PATCH_GROUP_CODES : 0;
    }
    run->info_sum += info;
}

/* Eight running sums, so that the order of additions is fixed and still suits vectors. */
double sg_fit_dot(const float *a, const float *b, uint32_t count) {
    float sum[LANES] = {0};
    for (uint32_t i = 0; i < count; i += LANES)
        for (uint32_t lane = 0; lane < LANES; lane++)
            sum[lane] += a[i + lane] * b[i + lane];
    double total = 0;
    for (uint32_t lane = 0; lane < LANES; lane++)
        total += (double)sum[lane];
    return total;
}
