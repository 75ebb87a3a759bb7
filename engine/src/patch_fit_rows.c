/* Row by row through a tensor pair: its difference, its shift, and the slope of its likelihood.
 *
 * Owns: the inner loops of the fit. Knows nothing of: what is done with them (patch_fit.c). */
#include "patch_fit_run.h"

#include <string.h>

#include "delta_state.h"

#define LANES 8u
/* Four floats, for the operations that vectorisers miss. */
typedef float four_floats __attribute__((vector_size(16)));
/* Vectors that share the loads of what they are multiplied with. */
#define VECTORS_AT_ONCE 4u

static float half_value(uint32_t bits) {
    return bits >= 0x0400 && bits < 0x7c00 ? sg_float_of_half((uint16_t)bits) : 0.0f;
}

void sg_fit_open_row(struct sg_fit_run *run, uint32_t row) {
    const struct sg_fit_input *input = run->input;
    const size_t row_bytes = (size_t)run->columns / 8 * input->code_bits;
    sg_unpack_codes(input->old_codes + row * row_bytes, input->code_bits, run->columns, run->fit->old_row);
    sg_unpack_codes(input->new_codes + row * row_bytes, input->code_bits, run->columns, run->fit->new_row);
    run->slope = run->fit->slope + (size_t)(row % SG_FIT_ROWS_AT_ONCE) * run->columns;
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
            run->slope[i] = run->level[fit->new_row[i]] * new_scale - run->level[fit->old_row[i]] * old_scale;
    }
}

static four_floats load_four(const float *from) {
    four_floats four;
    memcpy(&four, from, sizeof four);
    return four;
}

static void store_four(float *to, four_floats four) { memcpy(to, &four, sizeof four); }

/* Adds to `sum` each vector times its factor; the order of additions is that of the vectors. */
static void add_products(float *restrict sum, uint32_t count, const float *factor, size_t factor_step,
                         const float *restrict vectors, uint32_t vector_count) {
    for (; vector_count >= VECTORS_AT_ONCE; vector_count -= VECTORS_AT_ONCE) {
        const float a = factor[0], b = factor[factor_step], c = factor[2 * factor_step], d = factor[3 * factor_step];
        const float *first = vectors, *second = first + count, *third = second + count, *fourth = third + count;
        for (uint32_t i = 0; i < count; i += 4)
            store_four(sum + i, load_four(sum + i) + a * load_four(first + i) + b * load_four(second + i) +
                                    c * load_four(third + i) + d * load_four(fourth + i));
        vectors += VECTORS_AT_ONCE * (size_t)count;
        factor += VECTORS_AT_ONCE * factor_step;
    }
    for (; vector_count; vector_count--, vectors += count, factor += factor_step)
        for (uint32_t i = 0; i < count; i++)
            sum[i] += *factor * vectors[i];
}

void sg_fit_row_shift(struct sg_fit_run *run, const float *p) {
    float *shift = run->fit->shift;
    memset(shift, 0, run->columns * sizeof *shift);
    add_products(shift, run->columns, p, 1, run->fit->q_real, run->rank);
}

void sg_fit_row_gather(struct sg_fit_run *run, uint32_t row) {
    struct sg_fit *fit = run->fit;
    const uint32_t row_count = row % SG_FIT_ROWS_AT_ONCE + 1;
    const float *p = fit->p_real + (size_t)(row + 1 - row_count) * run->rank;
    if (row_count < SG_FIT_ROWS_AT_ONCE && row + 1 < run->input->row_count)
        return;
    for (uint32_t k = 0; k < run->rank; k++)
        add_products(fit->q_sum + (size_t)k * run->columns, run->columns, p + k, run->rank, fit->slope, row_count);
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
            const uint32_t bucket = !(moved >= 1) ? 1 : moved > 254 ? 254 : (uint32_t)moved; /* NaN is 1 */
            const float slope =
                fit->score[(fit->old_row[i] * SG_GUIDE_BUCKETS + bucket) * SG_RANS_SYMBOLS + fit->new_row[i]];
            run->slope[i] = slope * weight;
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

static void four_dots(const float *a, const float *vectors, uint32_t count, double *products) {
    four_floats low[VECTORS_AT_ONCE] = {{0}}, high[VECTORS_AT_ONCE] = {{0}};
    for (uint32_t i = 0; i < count; i += LANES) {
        const four_floats a_low = load_four(a + i), a_high = load_four(a + i + 4);
        for (uint32_t k = 0; k < VECTORS_AT_ONCE; k++) {
            low[k] += a_low * load_four(vectors + (size_t)k * count + i);
            high[k] += a_high * load_four(vectors + (size_t)k * count + i + 4);
        }
    }
    for (uint32_t k = 0; k < VECTORS_AT_ONCE; k++) {
        products[k] = 0;
        for (uint32_t lane = 0; lane < LANES; lane++)
            products[k] += (double)(lane < 4 ? low[k][lane] : high[k][lane - 4]);
    }
}

void sg_fit_dots(const float *a, const float *vectors, uint32_t vector_count, uint32_t count, double *products) {
    uint32_t k = 0;
    for (; k + VECTORS_AT_ONCE <= vector_count; k += VECTORS_AT_ONCE)
        four_dots(a, vectors + (size_t)k * count, count, products + k);
    for (; k < vector_count; k++)
        products[k] = sg_fit_dot(a, vectors + (size_t)k * count, count);
}
