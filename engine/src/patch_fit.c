/* The low-rank shift between two CQ tensors, by maximum likelihood from the two files alone.
 *
 * Owns: the course of a fit. Nothing of it reaches the decoder but the integers that come out, so a patch is right
 * whatever the fit is worth; same inputs and same build give the same fit.
 * Method: the singular vectors of the dequantised difference are the start; then gradient steps in the metric of the
 * likelihood P(new code | old code, shift), for P and Q in turn; then quantisation (patch_fit_quantise.c) with a step
 * tied to the information that a code gives about its shift.
 * Units: shifts in 1 / norm; matrices are (rank, row codes) for Q and (rows, rank) for P. */
#include "patch_fit_run.h"

#include <string.h>

#include "delta_state.h"

#define RANK_TRIED 20u
#define POWER_PASSES 5u
/* The start is good enough once a pass finds less than this times what the pass before found. */
#define POWER_GAIN_MIN 1.1
/* Singular values that stand this much above the noise's largest are kept. */
#define EDGE_FACTOR 1.06

/* Spread of prediction errors that the score table assumes: wide first, while the shift is rough (delta_guide.c). */
enum { NOISE_ROUGH = 12, NOISE_FINE = 8 };

/* Every such row tells how much a code says about its shift. */
#define INFORMATION_ROW_STEP 4u

/* A shift of typical size is at most this many buckets; there are 128 on either side. */
#define TYPICAL_BUCKETS 32
#define FIT_BUCKET_SHIFT_MIN 7u

static void random_q(struct sg_fit_run *run) {
    uint32_t state = 1;
    for (size_t i = 0; i < (size_t)run->rank * run->columns; i++) {
        state = state * 1664525u + 1013904223u;
        run->fit->q_real[i] = (float)(int32_t)state * 0x1p-31f;
    }
}

struct sg_fit_energy sg_fit_power_pass(struct sg_fit_run *run, int is_turning) {
    struct sg_fit *fit = run->fit;
    struct sg_fit_energy energy = {0};
    memset(fit->q_sum, 0, (size_t)run->rank * run->columns * sizeof *fit->q_sum);
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        float *p = fit->p_real + (size_t)row * run->rank;
        double product[SG_GUIDE_RANK_MAX];
        sg_fit_open_row(run, row);
        sg_fit_row_difference(run);
        energy.total += sg_fit_dot(run->slope, run->slope, run->columns);
        sg_fit_dots(run->slope, fit->q_real, run->rank, run->columns, product);
        for (uint32_t k = 0; k < run->rank; k++) {
            p[k] = (float)product[k];
            energy.explained += product[k] * product[k];
        }
        if (is_turning)
            sg_fit_row_gather(run, row);
    }
    if (is_turning)
        memcpy(fit->q_real, fit->q_sum, (size_t)run->rank * run->columns * sizeof *fit->q_sum);
    return energy;
}

/* Components that stand out of what rounding noise alone would give: its largest singular value is its spread times
 * (sqrt(rows) + sqrt(columns)). */
static void start(struct sg_fit_run *run, uint32_t rank_tried) {
    const double rows = run->input->row_count, columns = run->columns;
    double sizes[SG_GUIDE_RANK_MAX], explained = 0;
    uint32_t rank = 0;
    run->rank = rank_tried;
    random_q(run);
    for (uint32_t pass = 0; pass < POWER_PASSES; pass++) {
        const double before = explained;
        sg_fit_orthonormalise(run, 0);
        explained = sg_fit_power_pass(run, 1).explained;
        if (explained < POWER_GAIN_MIN * before)
            break;
    }
    sg_fit_orthonormalise(run, 0);
    const double total = sg_fit_power_pass(run, 0).total;
    explained = 0;
    sg_fit_to_singular(run, sizes);
    for (uint32_t k = 0; k < run->rank; k++)
        explained += sizes[k] * sizes[k];
    const double left = total > explained ? total - explained : 0;
    const double freedom = (rows - run->rank) * (columns - run->rank);
    const double edge = sg_fit_root(left / freedom) * (sg_fit_root(rows) + sg_fit_root(columns));
    while (rank < run->rank && sizes[rank] > EDGE_FACTOR * edge)
        rank++;
    sg_fit_cut_rank(run, rank);
}

static void set_noise(struct sg_fit_run *run, uint32_t noise) {
    struct sg_fit *fit = run->fit;
    struct sg_guide_shape shape = run->table_shape;
    const uint32_t alphabet = 1u << shape.code_bits;
    const float per_step = 65536.0f / (float)(2u << shape.bucket_shift);
    shape.noise = noise;
    shape.floor = 1;
    sg_guide_table_build(&fit->table, &shape);
    for (uint32_t old_code = 0; old_code < alphabet; old_code++)
        for (uint32_t bucket = 1; bucket + 1 < SG_GUIDE_BUCKETS; bucket++) {
            const struct sg_rans_row *row = &fit->table.row[old_code * SG_GUIDE_BUCKETS + bucket];
            float *score = fit->score + ((size_t)old_code * SG_GUIDE_BUCKETS + bucket) * SG_RANS_SYMBOLS;
            for (uint32_t code = 0; code < alphabet; code++) {
                const uint32_t below = (uint32_t)row[-1].end[code + 1] - row[-1].end[code];
                const uint32_t above = (uint32_t)row[1].end[code + 1] - row[1].end[code];
                const int32_t bits = (int32_t)fit->log2_of[above] - (int32_t)fit->log2_of[below];
                score[code] = (float)bits * 0x1p-16f * 0.69314718f * per_step;
            }
        }
}

/* One step for all rows of P, or for Q. */
void sg_fit_likelihood_pass(struct sg_fit_run *run, int is_for_p) {
    struct sg_fit *fit = run->fit;
    struct sg_small_matrix inverse;
    run->info_sum = run->info_count = 0;
    if (is_for_p)
        sg_fit_gram_of_q(run, &inverse);
    else
        sg_fit_gram_of_p(run, &inverse);
    sg_fit_invert(&inverse, run->rank);
    memset(fit->q_sum, 0, (size_t)run->rank * run->columns * sizeof *fit->q_sum);
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        float *p = fit->p_real + (size_t)row * run->rank;
        double pull[SG_GUIDE_RANK_MAX];
        sg_fit_open_row(run, row);
        sg_fit_row_shift(run, p);
        sg_fit_row_slope(run);
        if (is_for_p)
            sg_fit_dots(run->slope, fit->q_real, run->rank, run->columns, pull);
        else
            sg_fit_row_gather(run, row);
        for (uint32_t k = 0; is_for_p && k < run->rank; k++) {
            double step = 0;
            for (uint32_t j = 0; j < run->rank; j++)
                step += inverse.at[k][j] * pull[j];
            p[k] += (float)(step / run->info);
        }
    }
    for (uint32_t i = 0; !is_for_p && i < run->columns; i++)
        for (uint32_t k = 0; k < run->rank; k++) {
            double step = 0;
            for (uint32_t j = 0; j < run->rank; j++)
                step += inverse.at[k][j] * (double)fit->q_sum[(size_t)j * run->columns + i];
            fit->q_real[(size_t)k * run->columns + i] += (float)(step / run->info);
        }
    run->info = run->info_count > 0 && run->info_sum > 0 ? run->info_sum / run->info_count : run->info;
}

/* Mean square of P Q^T, over the row's first norm. */
static double energy_of_shift(const struct sg_fit_run *run) {
    struct sg_small_matrix p, q;
    double sum = 0;
    sg_fit_gram_of_p(run, &p);
    sg_fit_gram_of_q(run, &q);
    for (uint32_t j = 0; j < run->rank; j++)
        for (uint32_t k = 0; k < run->rank; k++)
            sum += p.at[j][k] * q.at[j][k];
    return sum / run->input->row_count / run->columns;
}

/* Mean ratio of new and old norms; 1 if no group has both. */
static double mean_norm_ratio(struct sg_fit_run *run) {
    double sum = 0, count = 0;
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        sg_fit_open_row(run, row);
        for (uint32_t g = 0; g < run->input->group_count; g++)
            if (sg_fit_is_open(run, g)) {
                sum += (double)(run->new_norm[g] / run->old_norm[g]);
                count++;
            }
    }
    return count > 0 ? sum / count : 1;
}

/* Where in its cell a weight lay matters less as the norm grows, by which everything is divided. Buckets are as wide as
 * the shift wants them, but for the fit never so narrow that it sees the rounding of frequencies. */
static void choose_widths(struct sg_fit_run *run) {
    struct sg_guide_shape *shape = &run->fit->shape;
    const double ratio = mean_norm_ratio(run);
    const double size = sg_fit_root(energy_of_shift(run)) / ratio * 65536;
    const double width = SG_GUIDE_WIDTH_ONE / ratio + 0.5;
    shape->width = width < 1 ? 1 : width > SG_GUIDE_WIDTH_ONE ? SG_GUIDE_WIDTH_ONE : (uint32_t)width;
    shape->bucket_shift = SG_GUIDE_BUCKET_SHIFT_MIN;
    while (shape->bucket_shift < SG_GUIDE_BUCKET_SHIFT_MAX &&
           size > TYPICAL_BUCKETS * (double)(1u << shape->bucket_shift))
        shape->bucket_shift++;
    run->table_shape = *shape;
    if (run->table_shape.bucket_shift < FIT_BUCKET_SHIFT_MIN)
        run->table_shape.bucket_shift = FIT_BUCKET_SHIFT_MIN;
}

/* Only measures the information per code at the present P and Q, on a sample of rows. */
static void measure_information(struct sg_fit_run *run) {
    run->info_sum = run->info_count = 0;
    for (uint32_t row = 0; row < run->input->row_count; row += INFORMATION_ROW_STEP) {
        sg_fit_open_row(run, row);
        sg_fit_row_shift(run, run->fit->p_real + (size_t)row * run->rank);
        sg_fit_row_slope(run);
    }
    run->info = run->info_count > 0 && run->info_sum > 0 ? run->info_sum / run->info_count : 1;
}

void sg_fit_begin(struct sg_fit *fit) {
    for (uint32_t frequency = 0; frequency <= SG_RANS_ONE; frequency++)
        fit->log2_of[frequency] = sg_log2_fixed(frequency);
}

void sg_fit_run(struct sg_fit *fit, const struct sg_fit_input *input) {
    struct sg_fit_run run = {.fit = fit, .input = input, .columns = input->group_count * SG_PATCH_GROUP_CODES};
    const uint32_t shorter = input->row_count < run.columns ? input->row_count : run.columns;
    uint32_t rank = RANK_TRIED;
    fit->rank = fit->basis.rank = 0;
    fit->shape = *input->shape;
    while (rank && (rank * run.columns > SG_GUIDE_Q_MAX || rank > SG_FIT_P_MAX / input->row_count || rank * 4 > shorter))
        rank--;
    if (!rank)
        return;
    for (uint32_t code = 0; code < 1u << input->code_bits; code++)
        run.level[code] = (float)input->shape->level[code] / 65536.0f;
    start(&run, rank);
    if (!sg_fit_start_from_basis(&run))
        start(&run, rank);
    if (!run.rank)
        return;
    choose_widths(&run);
    set_noise(&run, NOISE_ROUGH);
    measure_information(&run);
    for (uint32_t pass = 0; pass + 1 < 2 * input->effort; pass++) {
        if (pass + 1 == input->effort)
            set_noise(&run, NOISE_FINE);
        sg_fit_likelihood_pass(&run, 1);
        if (!run.q_is_known)
            sg_fit_likelihood_pass(&run, 0);
    }
    if (!sg_fit_quantise(&run))
        fit->rank = 0;
}
