/* The low-rank shift between two CQ tensors, by maximum likelihood from the two files alone.
 *
 * Owns: all floating point of the patch maker. Nothing here reaches the decoder but the integers that come out, so the
 * patch is right whatever the fit is worth; same inputs and same build give the same fit.
 * Method: the singular vectors of the dequantised difference are the start; then gradient steps in the metric of the
 * likelihood P(new code | old code, shift), for P and Q in turn; then quantisation with a step tied to the information
 * that a code gives about its shift, each entry chosen by likelihood and cost together.
 * Units: shifts in 1 / norm; matrices are (rank, row codes) for Q and (rows, rank) for P. */
#include "patch_fit.h"

#include <string.h>

#include "delta_state.h"

#ifndef STEP_MUL
#define STEP_MUL 0.9
#endif
#ifndef EDGE_MUL
#define EDGE_MUL 1.06
#endif
#define LANES 8u
#define OVERSAMPLE 4u
#define POWER_PASSES 5u

/* The rounding errors' spread that the score table assumes: wide first, where the shift is still rough. */
#ifndef NF
#define NF 8
#endif
#ifndef NR
#define NR 12
#endif
enum { NOISE_ROUGH = NR, NOISE_FINE = NF };

struct small_matrix {
    double at[SG_GUIDE_RANK_MAX][SG_GUIDE_RANK_MAX];
};

struct run {
    struct sg_fit *fit;
    const struct sg_fit_input *input;
    uint32_t rank, columns;
    float level[SG_RANS_SYMBOLS];
    double info_sum, info_count; /* of squared scores; their ratio is the information per code */
    double info;
    float old_norm[SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES];
    float new_norm[SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES];
};

static float half_value(uint32_t bits) {
    return bits >= 0x0400 && bits < 0x7c00 ? sg_float_of_half((uint16_t)bits) : 0.0f;
}

/* ---- rows ---- */

static void open_row(struct run *run, uint32_t row) {
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

static int is_open_group(const struct run *run, uint32_t g) {
    return run->old_norm[0] > 0 && run->old_norm[g] > 0 && run->new_norm[g] > 0;
}

/* The dequantised difference over the row's first norm, into `slope`. */
static void row_difference(struct run *run) {
    struct sg_fit *fit = run->fit;
    for (uint32_t g = 0; g < run->input->group_count; g++) {
        const int is_open = is_open_group(run, g);
        const float old_scale = is_open ? run->old_norm[g] / run->old_norm[0] : 0;
        const float new_scale = is_open ? run->new_norm[g] / run->old_norm[0] : 0;
        for (uint32_t i = g * SG_PATCH_GROUP_CODES; i < (g + 1) * SG_PATCH_GROUP_CODES; i++)
            fit->slope[i] = run->level[fit->new_row[i]] * new_scale - run->level[fit->old_row[i]] * old_scale;
    }
}

static void row_shift(struct run *run, const float *p) {
    float *shift = run->fit->shift;
    memset(shift, 0, run->columns * sizeof *shift);
    for (uint32_t k = 0; k < run->rank; k++) {
        const float *q = run->fit->q_real + (size_t)k * run->columns;
        for (uint32_t i = 0; i < run->columns; i++)
            shift[i] += p[k] * q[i];
    }
}

/* Derivative of the log likelihood by each shift, into `slope`. */
static void row_slope(struct run *run) {
    struct sg_fit *fit = run->fit;
    const float per_bucket = 65536.0f / (float)(1u << run->input->shape->bucket_shift);
    double info = 0;
    for (uint32_t g = 0; g < run->input->group_count; g++) {
        const int is_open = is_open_group(run, g);
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
static double dot(const float *a, const float *b, uint32_t count) {
    float sum[LANES] = {0};
    for (uint32_t i = 0; i < count; i += LANES)
        for (uint32_t lane = 0; lane < LANES; lane++)
            sum[lane] += a[i + lane] * b[i + lane];
    double total = 0;
    for (uint32_t lane = 0; lane < LANES; lane++)
        total += (double)sum[lane];
    return total;
}

/* ---- small matrices ---- */

static void gram_of_q(const struct run *run, struct small_matrix *gram) {
    for (uint32_t j = 0; j < run->rank; j++)
        for (uint32_t k = 0; k <= j; k++)
            gram->at[j][k] = gram->at[k][j] = dot(run->fit->q_real + (size_t)j * run->columns,
                                                  run->fit->q_real + (size_t)k * run->columns, run->columns);
}

static void gram_of_p(const struct run *run, struct small_matrix *gram) {
    memset(gram, 0, sizeof *gram);
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        const float *p = run->fit->p_real + (size_t)row * run->rank;
        for (uint32_t j = 0; j < run->rank; j++)
            for (uint32_t k = 0; k < run->rank; k++)
                gram->at[j][k] += (double)p[j] * (double)p[k];
    }
}

/* Inverse of a symmetric positive matrix by Gauss-Jordan; a little is added to the diagonal, so that a component
 * that has died does no harm. */
static void invert(struct small_matrix *matrix, uint32_t rank) {
    double trace = 0;
    for (uint32_t k = 0; k < rank; k++)
        trace += matrix->at[k][k];
    for (uint32_t k = 0; k < rank; k++)
        matrix->at[k][k] += trace * 1e-9 + 1e-30;
    for (uint32_t k = 0; k < rank; k++) {
        const double pivot = 1 / matrix->at[k][k];
        matrix->at[k][k] = 1;
        for (uint32_t j = 0; j < rank; j++)
            matrix->at[k][j] *= pivot;
        for (uint32_t i = 0; i < rank; i++) {
            const double factor = matrix->at[i][k];
            if (i == k)
                continue;
            matrix->at[i][k] = 0;
            for (uint32_t j = 0; j < rank; j++)
                matrix->at[i][j] -= factor * matrix->at[k][j];
        }
    }
}

static double square_root(double value) { return value > 0 ? __builtin_sqrt(value) : 0; }

/* Eigenvectors (columns of `vectors`, largest first) by cyclic Jacobi rotations; `matrix` keeps the eigenvalues. */
static void diagonalise(struct small_matrix *matrix, struct small_matrix *vectors, uint32_t rank) {
    memset(vectors, 0, sizeof *vectors);
    for (uint32_t k = 0; k < rank; k++)
        vectors->at[k][k] = 1;
    for (int sweep = 0; sweep < 12; sweep++)
        for (uint32_t p = 0; p + 1 < rank; p++)
            for (uint32_t q = p + 1; q < rank; q++) {
                const double off = matrix->at[p][q];
                if (off * off <= 1e-30 * matrix->at[p][p] * matrix->at[q][q])
                    continue;
                const double theta = (matrix->at[q][q] - matrix->at[p][p]) / (2 * off);
                const double root = square_root(theta * theta + 1);
                const double t = theta >= 0 ? 1 / (theta + root) : 1 / (theta - root);
                const double c = 1 / square_root(t * t + 1), s = t * c;
                for (uint32_t k = 0; k < rank; k++) {
                    const double a = matrix->at[k][p], b = matrix->at[k][q];
                    matrix->at[k][p] = c * a - s * b, matrix->at[k][q] = s * a + c * b;
                }
                for (uint32_t k = 0; k < rank; k++) {
                    const double a = matrix->at[p][k], b = matrix->at[q][k];
                    matrix->at[p][k] = c * a - s * b, matrix->at[q][k] = s * a + c * b;
                }
                for (uint32_t k = 0; k < rank; k++) {
                    const double a = vectors->at[k][p], b = vectors->at[k][q];
                    vectors->at[k][p] = c * a - s * b, vectors->at[k][q] = s * a + c * b;
                }
            }
    for (uint32_t k = 0; k + 1 < rank; k++) {
        uint32_t best = k;
        for (uint32_t j = k + 1; j < rank; j++)
            best = matrix->at[j][j] > matrix->at[best][best] ? j : best;
        for (uint32_t i = 0; best != k && i < rank; i++) {
            const double held = vectors->at[i][k];
            vectors->at[i][k] = vectors->at[i][best], vectors->at[i][best] = held;
        }
        const double held = matrix->at[k][k];
        matrix->at[k][k] = matrix->at[best][best], matrix->at[best][best] = held;
    }
}

/* rows of Q (seen as columns of Q^T) times `factor`: q'_k = sum over j of factor[j][k] q_j. */
static void mix_q(struct run *run, const struct small_matrix *factor) {
    for (uint32_t i = 0; i < run->columns; i++) {
        double mixed[SG_GUIDE_RANK_MAX] = {0};
        for (uint32_t j = 0; j < run->rank; j++)
            for (uint32_t k = 0; k < run->rank; k++)
                mixed[k] += factor->at[j][k] * (double)run->fit->q_real[(size_t)j * run->columns + i];
        for (uint32_t k = 0; k < run->rank; k++)
            run->fit->q_real[(size_t)k * run->columns + i] = (float)mixed[k];
    }
}

static void mix_p(struct run *run, const struct small_matrix *factor) {
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        float *p = run->fit->p_real + (size_t)row * run->rank;
        double mixed[SG_GUIDE_RANK_MAX] = {0};
        for (uint32_t j = 0; j < run->rank; j++)
            for (uint32_t k = 0; k < run->rank; k++)
                mixed[k] += factor->at[j][k] * (double)p[j];
        for (uint32_t k = 0; k < run->rank; k++)
            p[k] = (float)mixed[k];
    }
}

/* Makes Q orthonormal and, with `has_p`, moves what that takes into P: Q^T Q = V E V^T, Q' = Q V / sqrt(E). */
static void orthonormalise(struct run *run, int has_p) {
    struct small_matrix gram, vectors, into_p;
    gram_of_q(run, &gram);
    diagonalise(&gram, &vectors, run->rank);
    for (uint32_t k = 0; k < run->rank; k++) {
        const double size = square_root(gram.at[k][k]);
        for (uint32_t j = 0; j < run->rank; j++) {
            into_p.at[j][k] = vectors.at[j][k] * size;
            vectors.at[j][k] = size > 0 ? vectors.at[j][k] / size : 0;
        }
    }
    mix_q(run, &vectors);
    if (has_p)
        mix_p(run, &into_p);
}

/* Turns both so that P's columns are orthogonal too, largest first; `sizes` are their lengths. */
static void to_singular(struct run *run, double sizes[SG_GUIDE_RANK_MAX]) {
    struct small_matrix gram, vectors;
    orthonormalise(run, 1);
    gram_of_p(run, &gram);
    diagonalise(&gram, &vectors, run->rank);
    mix_q(run, &vectors);
    mix_p(run, &vectors);
    for (uint32_t k = 0; k < run->rank; k++)
        sizes[k] = square_root(gram.at[k][k]);
}

/* ---- the start: singular vectors of the difference ---- */

static void random_q(struct run *run) {
    uint32_t state = 1;
    for (size_t i = 0; i < (size_t)run->rank * run->columns; i++) {
        state = state * 1664525u + 1013904223u;
        run->fit->q_real[i] = (float)(int32_t)state * 0x1p-31f;
    }
}

/* P = difference Q^T; with `is_turning`, Q becomes difference^T P. Returns the difference's squared size. */
static double power_pass(struct run *run, int is_turning) {
    struct sg_fit *fit = run->fit;
    double total = 0;
    memset(fit->q_sum, 0, (size_t)run->rank * run->columns * sizeof *fit->q_sum);
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        float *p = fit->p_real + (size_t)row * run->rank;
        open_row(run, row);
        row_difference(run);
        total += dot(fit->slope, fit->slope, run->columns);
        for (uint32_t k = 0; k < run->rank; k++) {
            p[k] = (float)dot(fit->slope, fit->q_real + (size_t)k * run->columns, run->columns);
            float *sum = fit->q_sum + (size_t)k * run->columns;
            for (uint32_t i = 0; is_turning && i < run->columns; i++)
                sum[i] += p[k] * fit->slope[i];
        }
    }
    if (is_turning)
        memcpy(fit->q_real, fit->q_sum, (size_t)run->rank * run->columns * sizeof *fit->q_sum);
    return total;
}

/* Keeps the first `rank` components of P and Q. */
static void cut_rank(struct run *run, uint32_t rank) {
    for (uint32_t row = 0; row < run->input->row_count; row++)
        memmove(run->fit->p_real + (size_t)row * rank, run->fit->p_real + (size_t)row * run->rank,
                rank * sizeof(float));
    run->rank = rank;
}

/* Components that stand out of what rounding noise alone would give: its largest singular value is its spread times
 * (sqrt(rows) + sqrt(columns)). */
static void start(struct run *run) {
    const double rows = run->input->row_count, columns = run->columns;
    double sizes[SG_GUIDE_RANK_MAX], total = 0, explained = 0;
    uint32_t rank = 0;
    random_q(run);
    for (uint32_t pass = 0; pass < POWER_PASSES; pass++) {
        orthonormalise(run, 0);
        power_pass(run, 1);
    }
    orthonormalise(run, 0);
    total = power_pass(run, 0);
    to_singular(run, sizes);
    for (uint32_t k = 0; k < run->rank; k++)
        explained += sizes[k] * sizes[k];
    const double left = total > explained ? total - explained : 0;
    const double freedom = (rows - run->rank) * (columns - run->rank);
    const double edge = square_root(left / freedom) * (square_root(rows) + square_root(columns));
    while (rank < run->rank && sizes[rank] > EDGE_MUL * edge)
        rank++;
    cut_rank(run, rank);
}

/* ---- maximum likelihood ---- */

static void set_noise(struct run *run, uint32_t noise) {
    struct sg_fit *fit = run->fit;
    struct sg_guide_shape shape = *run->input->shape;
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
                const int32_t bits = (int32_t)sg_log2_fixed(above) - (int32_t)sg_log2_fixed(below);
                score[code] = (float)bits * 0x1p-16f * 0.69314718f * per_step;
            }
        }
}

/* One step for all rows of P, or for Q. */
static void likelihood_pass(struct run *run, int is_for_p) {
    struct sg_fit *fit = run->fit;
    struct small_matrix inverse;
    run->info_sum = run->info_count = 0;
    if (is_for_p)
        gram_of_q(run, &inverse);
    else
        gram_of_p(run, &inverse);
    invert(&inverse, run->rank);
    memset(fit->q_sum, 0, (size_t)run->rank * run->columns * sizeof *fit->q_sum);
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        float *p = fit->p_real + (size_t)row * run->rank;
        double pull[SG_GUIDE_RANK_MAX];
        open_row(run, row);
        row_shift(run, p);
        row_slope(run);
        for (uint32_t k = 0; k < run->rank; k++) {
            float *sum = fit->q_sum + (size_t)k * run->columns;
            if (is_for_p)
                pull[k] = dot(fit->slope, fit->q_real + (size_t)k * run->columns, run->columns);
            for (uint32_t i = 0; !is_for_p && i < run->columns; i++)
                sum[i] += p[k] * fit->slope[i];
        }
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

/* Only measures the information per code at the present P and Q. */
static void measure_information(struct run *run) {
    run->info_sum = run->info_count = 0;
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        open_row(run, row);
        row_shift(run, run->fit->p_real + (size_t)row * run->rank);
        row_slope(run);
    }
    run->info = run->info_count > 0 && run->info_sum > 0 ? run->info_sum / run->info_count : 1;
}

/* ---- quantisation ---- */

static float rounded(float value) { return (float)(int32_t)(value < 0 ? value - 0.5f : value + 0.5f); }

/* Whole numbers near `wanted` that cost least: curvature / 2 * error^2 in nats, plus entry^2 / (2 spread^2) for a
 * Gaussian code. `step[k]` is the unit of component k; both `wanted` and the result are in units. */
static void choose_entries(const float *wanted, float *entry, uint32_t rank, const struct small_matrix *curvature,
                           const double *spread) {
    for (uint32_t k = 0; k < rank; k++)
        entry[k] = rounded(wanted[k]);
    for (int sweep = 0; sweep < 2; sweep++)
        for (uint32_t k = 0; k < rank; k++) {
            const double own = curvature->at[k][k];
            double pull = 0;
            for (uint32_t j = 0; j < rank; j++)
                pull += j == k ? 0 : curvature->at[k][j] * (double)(wanted[j] - entry[j]);
            const double best = (double)wanted[k] + (own > 0 ? pull / own : 0);
            const double rate = 1 / (spread[k] * spread[k]);
            const double shrunk = best * own / (own + rate);
            const double low = shrunk < 0 ? -(double)(int32_t)(1 - shrunk) : (double)(int32_t)shrunk;
            entry[k] = (float)(shrunk - low > 0.5 ? low + 1 : low);
        }
}

static void spreads(const float *entries, size_t stride, size_t step, size_t count, uint32_t rank, double *spread) {
    for (uint32_t k = 0; k < rank; k++) {
        double sum = 0;
        for (size_t i = 0; i < count; i++)
            sum += (double)entries[k * stride + i * step] * (double)entries[k * stride + i * step];
        spread[k] = square_root(sum / (double)count) + 0.2;
    }
}

/* P and Q hold whole numbers from here on; the likelihood passes work in those units through `gain`. */
static void quantise_p(struct run *run, const double *spread) {
    struct small_matrix curvature;
    gram_of_q(run, &curvature);
    for (uint32_t j = 0; j < run->rank; j++)
        for (uint32_t k = 0; k < run->rank; k++)
            curvature.at[j][k] *= run->info;
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        float wanted[SG_GUIDE_RANK_MAX], *p = run->fit->p_real + (size_t)row * run->rank;
        memcpy(wanted, p, run->rank * sizeof *p);
        choose_entries(wanted, p, run->rank, &curvature, spread);
    }
}

/* Q's entries are `q_real / unit`; `unit` is what one step of component k is worth. */
static void quantise_q(struct run *run, const float *unit, const double *spread) {
    struct small_matrix curvature;
    gram_of_p(run, &curvature);
    for (uint32_t j = 0; j < run->rank; j++)
        for (uint32_t k = 0; k < run->rank; k++)
            curvature.at[j][k] *= run->info * (double)unit[j] * (double)unit[k];
    for (uint32_t i = 0; i < run->columns; i++) {
        float wanted[SG_GUIDE_RANK_MAX], entry[SG_GUIDE_RANK_MAX];
        for (uint32_t k = 0; k < run->rank; k++)
            wanted[k] = run->fit->q_real[(size_t)k * run->columns + i] / unit[k];
        choose_entries(wanted, entry, run->rank, &curvature, spread);
        for (uint32_t k = 0; k < run->rank; k++)
            run->fit->q_real[(size_t)k * run->columns + i] = entry[k] * unit[k];
    }
}

/* Gains as the decoder wants them: whole, and no product with an entry of Q above 16 bits. Returns 0 if there is no
 * such scale, which takes absurd input. */
static int settle_gains(struct run *run, float *unit) {
    struct sg_fit *fit = run->fit;
    double largest = 0;
    for (uint32_t k = 0; k < run->rank; k++)
        for (uint32_t i = 0; i < run->columns; i++) {
            const double entry = (double)fit->q_real[(size_t)k * run->columns + i];
            largest = entry > largest ? entry : -entry > largest ? -entry : largest;
        }
    uint32_t pre_shift = SG_GUIDE_PRE_SHIFT_MAX;
    while (pre_shift && largest * 65536 * (double)(1u << pre_shift) > 24000)
        pre_shift--;
    fit->pre_shift = pre_shift;
    for (uint32_t k = 0; k < run->rank; k++) {
        const double exact = (double)unit[k] * 65536 * (double)(1u << pre_shift);
        fit->gain[k] = exact < 1 ? 1 : exact > 32767 ? 32767 : (uint32_t)(exact + 0.5);
        unit[k] = (float)fit->gain[k] / (65536.0f * (float)(1u << pre_shift));
    }
    return largest * 65536 <= 24000;
}

static int store(struct run *run, const float *unit) {
    struct sg_fit *fit = run->fit;
    for (size_t i = 0; i < (size_t)run->rank * run->columns; i++) {
        const float entry = rounded(fit->q_real[i] / unit[i / run->columns]);
        const float product = entry * (float)fit->gain[i / run->columns];
        if (product > 32767 || product < -32767)
            return 0;
        fit->q[i] = (int16_t)entry;
    }
    for (size_t i = 0; i < (size_t)run->rank * run->input->row_count; i++) {
        if (fit->p_real[i] > 32767 || fit->p_real[i] < -32767)
            return 0;
        fit->p[i] = (int16_t)fit->p_real[i];
    }
    fit->rank = run->rank;
    return 1;
}

/* The step ties each component's noise to the information: P = U S in units of sqrt(12 / information), Q likewise. */
static int quantise(struct run *run, uint32_t rounds) {
    const float step = (float)(STEP_MUL * square_root(12 / run->info));
    double sizes[SG_GUIDE_RANK_MAX], p_spread[SG_GUIDE_RANK_MAX], q_spread[SG_GUIDE_RANK_MAX];
    float unit[SG_GUIDE_RANK_MAX];
    struct sg_fit *fit = run->fit;
    to_singular(run, sizes);
    while (run->rank && sizes[run->rank - 1] < 1e-6 * sizes[0])
        cut_rank(run, run->rank - 1);
    if (!run->rank)
        return 0;
    for (uint32_t k = 0; k < run->rank; k++)
        for (uint32_t row = 0; row < run->input->row_count; row++)
            fit->p_real[(size_t)row * run->rank + k] /= step;
    for (uint32_t k = 0; k < run->rank; k++) {
        for (uint32_t i = 0; i < run->columns; i++)
            fit->q_real[(size_t)k * run->columns + i] *= step;
        unit[k] = step * step / (float)sizes[k];
    }
    if (!settle_gains(run, unit))
        return 0;
    spreads(fit->p_real, 1, run->rank, run->input->row_count, run->rank, p_spread);
    spreads(fit->q_real, run->columns, 1, run->columns, run->rank, q_spread);
    for (uint32_t k = 0; k < run->rank; k++)
        q_spread[k] = (q_spread[k] - 0.2) / (double)unit[k] + 0.2;
    for (uint32_t round = 0; round < rounds; round++) {
        if (round)
            likelihood_pass(run, 0);
        quantise_q(run, unit, q_spread);
        likelihood_pass(run, 1);
        quantise_p(run, p_spread);
    }
    return store(run, unit);
}

void sg_fit_run(struct sg_fit *fit, const struct sg_fit_input *input) {
    struct run run = {.fit = fit, .input = input, .columns = input->group_count * SG_PATCH_GROUP_CODES};
    const uint32_t shorter = input->row_count < run.columns ? input->row_count : run.columns;
    uint32_t rank = 16 + OVERSAMPLE;
    fit->rank = 0;
    while (rank && (rank * run.columns > SG_GUIDE_Q_MAX || rank > SG_FIT_P_MAX / input->row_count || rank * 4 > shorter))
        rank--;
    if (!rank)
        return;
    run.rank = rank;
    for (uint32_t code = 0; code < 1u << input->code_bits; code++)
        run.level[code] = (float)input->shape->level[code] / 65536.0f;
    start(&run);
    if (!run.rank)
        return;
    set_noise(&run, NOISE_ROUGH);
    measure_information(&run);
    for (uint32_t pass = 0; pass < 2 * input->effort; pass++) {
        if (pass == input->effort)
            set_noise(&run, NOISE_FINE);
        likelihood_pass(&run, 1);
        likelihood_pass(&run, 0);
    }
    if (!quantise(&run, 1 + input->effort / 2))
        fit->rank = 0;
}
