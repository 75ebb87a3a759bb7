/* From a real P and Q to whole numbers.
 *
 * Owns: steps, gains, and the choice of entries by likelihood and cost. Source: docs/formats/patch.md, "Guided codes". */
#include "patch_fit_run.h"

#include <string.h>

/* The step in units of sqrt(12 / information), where the loss by rounding equals the cost of finer entries to first
 * order; measured to be best a little below 1. */
#define STEP_FACTOR 0.9
/* Square of what rounding and the fit's own noise add to an entry, in steps. */
#define FIT_NOISE 0.15
/* Rounding P and Q in turn, each to what the other's rounding left. */
#define SETTLE_ROUNDS 3u
/* Components of less than this, in steps, would round to nothing. */
#define SETTLE_SIZE_MIN 0.3
/* Part of the entries' own cost that holds them back between rounds: coarse columns of P can be nearly parallel, and Q
 * would grow beyond all bounds. */
#define SETTLE_RIDGE 0.01

/* Entries beyond this, and NaN, go through the rounding as they are; `store` refuses what the format cannot hold. */
#define WHOLE_LIMIT 0x1p30

float sg_fit_rounded(float value) {
    if (!(value > -(float)WHOLE_LIMIT && value < (float)WHOLE_LIMIT))
        return value;
    return (float)(int32_t)(value < 0 ? value - 0.5f : value + 0.5f);
}

static double nearest_whole(double value) {
    if (!(value > -WHOLE_LIMIT && value < WHOLE_LIMIT))
        return value;
    const double low = value < 0 ? -(double)(int32_t)(1 - value) : (double)(int32_t)value;
    return value - low > 0.5 ? low + 1 : low;
}

float sg_fit_q_entry(const struct sg_fit_run *run, uint32_t k, uint32_t i) {
    const size_t at = (size_t)k * run->columns + i;
    return (run->fit->q_real[at] - run->fit->q_known[at]) / run->unit[k];
}

/* Spread of a component's entries in Q, without what rounding and the fit's own noise add. */
static double q_spread(const struct sg_fit_run *run, uint32_t k) {
    double sum = 0;
    for (uint32_t i = 0; i < run->columns; i++)
        sum += (double)sg_fit_q_entry(run, k, i) * (double)sg_fit_q_entry(run, k, i);
    const double square = sum / run->columns - FIT_NOISE;
    return sg_fit_root(square > 0.04 ? square : 0.04);
}

static double p_spread(const struct sg_fit_run *run, uint32_t k) {
    double sum = 0;
    for (size_t row = 0; row < run->input->row_count; row++)
        sum += (double)run->fit->p_real[row * run->rank + k] * (double)run->fit->p_real[row * run->rank + k];
    return sg_fit_root(sum / run->input->row_count) + 0.2;
}

/* Whole numbers near `wanted` that cost least: curvature / 2 * error^2 in nats, plus entry^2 / (2 spread^2) for a
 * Gaussian code. */
static void choose_entries(const float *wanted, float *entry, uint32_t rank, const struct sg_small_matrix *curvature,
                           const double *spread) {
    for (uint32_t k = 0; k < rank; k++)
        entry[k] = sg_fit_rounded(wanted[k]);
    for (int sweep = 0; sweep < 2; sweep++)
        for (uint32_t k = 0; k < rank; k++) {
            const double own = curvature->at[k][k];
            double pull = 0;
            for (uint32_t j = 0; j < rank; j++)
                pull += j == k ? 0 : curvature->at[k][j] * (double)(wanted[j] - entry[j]);
            const double best = (double)wanted[k] + (own > 0 ? pull / own : 0);
            const double rate = 1 / (spread[k] * spread[k]);
            entry[k] = (float)nearest_whole(best * own / (own + rate));
        }
}

/* P and Q hold whole numbers from here on; the likelihood passes work in those units through `gain`. */
static void quantise_p(struct sg_fit_run *run) {
    struct sg_small_matrix curvature;
    sg_fit_gram_of_q(run, &curvature);
    for (uint32_t j = 0; j < run->rank; j++)
        for (uint32_t k = 0; k < run->rank; k++)
            curvature.at[j][k] *= run->info;
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        float wanted[SG_GUIDE_RANK_MAX], *p = run->fit->p_real + (size_t)row * run->rank;
        memcpy(wanted, p, run->rank * sizeof *p);
        choose_entries(wanted, p, run->rank, &curvature, run->p_spread);
    }
}

/* Q's entries are `(q_real - q_known) / unit`; `unit` is what one step of component k is worth. */
static void quantise_q(struct sg_fit_run *run) {
    struct sg_small_matrix curvature;
    sg_fit_gram_of_p(run, &curvature);
    for (uint32_t j = 0; j < run->rank; j++)
        for (uint32_t k = 0; k < run->rank; k++)
            curvature.at[j][k] *= run->info * (double)run->unit[j] * (double)run->unit[k];
    for (uint32_t i = 0; i < run->columns; i++) {
        float wanted[SG_GUIDE_RANK_MAX], entry[SG_GUIDE_RANK_MAX];
        for (uint32_t k = 0; k < run->rank; k++)
            wanted[k] = sg_fit_q_entry(run, k, i);
        choose_entries(wanted, entry, run->rank, &curvature, run->q_spread);
        for (uint32_t k = 0; k < run->rank; k++)
            run->fit->q_real[(size_t)k * run->columns + i] =
                run->fit->q_known[(size_t)k * run->columns + i] + entry[k] * run->unit[k];
    }
}

/* Gains as the decoder wants them: whole, and no product with an entry of Q above 16 bits. Returns 0 if there is no
 * such scale, which takes absurd input. */
static int settle_gains(struct sg_fit_run *run) {
    struct sg_fit *fit = run->fit;
    double largest = 0;
    for (uint32_t k = 0; k < run->rank; k++)
        for (uint32_t i = 0; i < run->columns; i++) {
            const double entry = (double)fit->q_real[(size_t)k * run->columns + i];
            const double size = (entry < 0 ? -entry : entry) + (run->is_settling ? (double)run->unit[k] / 2 : 0);
            largest = size > largest ? size : largest;
        }
    uint32_t pre_shift = SG_GUIDE_PRE_SHIFT_MAX;
    while (pre_shift && largest * 65536 * (double)(1u << pre_shift) > 24000)
        pre_shift--;
    fit->pre_shift = pre_shift;
    for (uint32_t k = 0; k < run->rank; k++) {
        const double exact = (double)run->unit[k] * 65536 * (double)(1u << pre_shift);
        uint32_t exponent = 0;
        while (exponent < 11 && exact >= (double)(31u << exponent) * 0.5)
            exponent++;
        const double mantissa = exact / (double)(1u << exponent);
        fit->gain[k] = (mantissa < 8.5 ? 8 : mantissa <= 14.5 ? (uint32_t)(mantissa + 0.5) : 15) << exponent;
        run->unit[k] = (float)fit->gain[k] / (65536.0f * (float)(1u << pre_shift));
    }
    return largest * 65536 <= 24000;
}

static int store(struct sg_fit_run *run) {
    struct sg_fit *fit = run->fit;
    for (size_t i = 0; i < (size_t)run->rank * run->columns; i++) {
        const uint32_t k = (uint32_t)(i / run->columns);
        const float entry = sg_fit_rounded(sg_fit_q_entry(run, k, (uint32_t)(i % run->columns)));
        if (!(entry <= 32767 && entry >= -32767))
            return 0;
        fit->q[i] = (int16_t)entry;
    }
    for (size_t i = 0; i < (size_t)run->rank * run->input->row_count; i++) {
        if (!(fit->p_real[i] <= 32767 && fit->p_real[i] >= -32767))
            return 0;
        fit->p[i] = (int16_t)fit->p_real[i];
    }
    fit->rank = run->rank;
    return 1;
}

/* P = U S in steps of sqrt(12 / information), and V S in Q likewise, where U S V^T is the shift: then every entry's
 * rounding adds the same noise. */
static int to_steps(struct sg_fit_run *run) {
    const float step = (float)(STEP_FACTOR * sg_fit_root(12 / run->info));
    struct sg_fit *fit = run->fit;
    double sizes[SG_GUIDE_RANK_MAX];
    sg_fit_to_singular(run, sizes);
    sg_fit_find_basis(run);
    while (run->rank && sizes[run->rank - 1] < (run->is_settling ? SETTLE_SIZE_MIN * (double)step : 1e-6 * sizes[0]))
        sg_fit_cut_rank(run, run->rank - 1);
    for (size_t i = 0; i < (size_t)run->rank * run->input->row_count; i++)
        fit->p_real[i] /= step;
    for (uint32_t k = 0; k < run->rank; k++) {
        for (uint32_t i = 0; i < run->columns; i++)
            fit->q_real[(size_t)k * run->columns + i] *= step;
        run->unit[k] = step * step / (float)sizes[k];
    }
    return run->rank && settle_gains(run);
}

/* Everything up to the first rounding. Returns 0 if there is nothing worth storing. */
static int open_quantiser(struct sg_fit_run *run) {
    struct sg_fit *fit = run->fit;
    if (!to_steps(run))
        return 0;
    memset(fit->q_known, 0, (size_t)run->rank * run->columns * sizeof *fit->q_known);
    if (fit->basis.rank)
        sg_fit_settle_mix(run);
    for (uint32_t k = 0; k < run->rank; k++) {
        run->p_spread[k] = p_spread(run, k);
        run->q_spread[k] = q_spread(run, k);
    }
    return 1;
}

int sg_fit_quantise(struct sg_fit_run *run) {
    const uint32_t effort = run->input->effort, round_count = 1 + effort / 3;
    if (!open_quantiser(run))
        return 0;
    for (uint32_t round = 0; round < round_count; round++) {
        if (round && !run->q_is_known)
            sg_fit_likelihood_pass(run, 0);
        quantise_q(run);
        sg_fit_likelihood_pass(run, 1);
        quantise_p(run);
    }
    sg_fit_refine(run, effort / 2);
    return store(run);
}

/* P or Q such that P Q^T is nearest to exact P times exact Q^T, given the other: exact P (exact Q^T Q) (Q^T Q)^-1. */
static void project_p(struct sg_fit_run *run, const float *exact_p, const float *exact_q) {
    struct sg_small_matrix gram, factor = {0};
    sg_fit_gram_of_q(run, &gram);
    for (uint32_t k = 0; k < run->rank; k++)
        gram.at[k][k] += SETTLE_RIDGE / (run->info * run->p_spread[k] * run->p_spread[k]);
    sg_fit_invert(&gram, run->rank);
    for (uint32_t j = 0; j < run->rank; j++)
        for (uint32_t i = 0; i < run->rank; i++) {
            const double product = sg_fit_dot(exact_q + (size_t)j * run->columns,
                                              run->fit->q_real + (size_t)i * run->columns, run->columns);
            for (uint32_t k = 0; k < run->rank; k++)
                factor.at[j][k] += product * gram.at[i][k];
        }
    memcpy(run->fit->p_real, exact_p, (size_t)run->rank * run->input->row_count * sizeof *exact_p);
    sg_fit_mix_p(run, &factor);
}

static void project_q(struct sg_fit_run *run, const float *exact_p, const float *exact_q) {
    struct sg_small_matrix gram, product = {0};
    sg_fit_gram_of_p(run, &gram);
    for (uint32_t k = 0; k < run->rank; k++) {
        const double spread = run->q_spread[k] * (double)run->unit[k];
        gram.at[k][k] += SETTLE_RIDGE / (run->info * spread * spread);
    }
    sg_fit_invert(&gram, run->rank);
    for (size_t row = 0; row < run->input->row_count; row++)
        for (uint32_t j = 0; j < run->rank; j++)
            for (uint32_t k = 0; k < run->rank; k++)
                product.at[j][k] += (double)exact_p[row * run->rank + j] * (double)run->fit->p_real[row * run->rank + k];
    for (uint32_t k = 0; k < run->rank; k++) {
        float *q = run->fit->q_real + (size_t)k * run->columns;
        memset(q, 0, run->columns * sizeof *q);
        for (uint32_t j = 0; j < run->rank; j++) {
            double factor = 0;
            for (uint32_t i = 0; i < run->rank; i++)
                factor += product.at[j][i] * gram.at[i][k];
            for (uint32_t i = 0; i < run->columns; i++)
                q[i] += (float)factor * exact_q[(size_t)j * run->columns + i];
        }
    }
}

/* Is a component's column of P, or its row of Q, all zero? */
static int is_dead(const struct sg_fit_run *run, uint32_t k) {
    float p_sum = 0, q_sum = 0;
    for (size_t row = 0; row < run->input->row_count; row++)
        p_sum += run->fit->p_real[row * run->rank + k] * run->fit->p_real[row * run->rank + k];
    for (size_t i = 0; i < run->columns; i++)
        q_sum += run->fit->q_real[k * run->columns + i] * run->fit->q_real[k * run->columns + i];
    return !(p_sum > 0 && q_sum > 0);
}

void sg_fit_settle(struct sg_fit *fit, const struct sg_fit_input *input, uint32_t rank, float step) {
    struct sg_fit_run run = {.fit = fit,
                             .input = input,
                             .rank = rank,
                             .columns = input->group_count * SG_PATCH_GROUP_CODES,
                             .is_settling = 1,
                             .info = 12 * STEP_FACTOR * STEP_FACTOR / ((double)step * (double)step)};
    float *exact_p = fit->place, *exact_q = fit->direction; /* not otherwise in use here */
    fit->rank = fit->basis.rank = 0;
    if (!open_quantiser(&run))
        return;
    memcpy(exact_p, fit->p_real, (size_t)run.rank * input->row_count * sizeof *exact_p);
    memcpy(exact_q, fit->q_real, (size_t)run.rank * run.columns * sizeof *exact_q);
    for (uint32_t round = 0; round < SETTLE_ROUNDS; round++) {
        if (round)
            project_q(&run, exact_p, exact_q);
        quantise_q(&run);
        project_p(&run, exact_p, exact_q);
        quantise_p(&run);
    }
    while (run.rank && is_dead(&run, run.rank - 1))
        sg_fit_cut_rank(&run, run.rank - 1);
    if (!run.rank || !store(&run))
        fit->rank = 0;
}
