/* Does the shift lie in the span of a seeded LoRA start (delta_basis.h)? Then the patch can name it.
 *
 * Owns: the search for seed, group, layer and rank, and Q's coefficients in that basis. */
#include "patch_fit_run.h"

#include <string.h>

/* Upstream trains five projections of each layer. */
#define UPSTREAM_GROUPS 5u
#define LAYERS_SEARCHED 32u
/* Tensors without a find after which the wide search is given up. */
#define MISSES_MAX 2u
/* Share of the shift's leading directions in the span: training moves A by a tenth, so the right basis holds nearly
 * all of them, and any other about rank / columns. */
#define SHARE_MIN 0.6
/* How much of a weak shift the right basis explains, against chance: 1 is chance, which varies by a half at most even
 * for a strong shift of low rank; the right one gives 5 and more where guiding pays at all. */
#define EXPLAINED_MIN 2.0

static void gram_of_basis(const struct sg_fit_run *run, struct sg_small_matrix *gram) {
    const uint32_t rank = run->fit->basis.rank;
    for (uint32_t j = 0; j < rank; j++)
        for (uint32_t k = 0; k <= j; k++) {
            const int16_t *a = run->fit->basis_rows + (size_t)j * run->columns;
            const int16_t *b = run->fit->basis_rows + (size_t)k * run->columns;
            int64_t sum = 0;
            for (uint32_t i = 0; i < run->columns; i++)
                sum += a[i] * b[i];
            gram->at[j][k] = gram->at[k][j] = (double)sum / (SG_BASIS_ONE * (double)SG_BASIS_ONE);
        }
}

/* Products of a row of Q with every basis vector. */
static void basis_products(const struct sg_fit_run *run, const float *q, double *product) {
    for (uint32_t j = 0; j < run->fit->basis.rank; j++) {
        const int16_t *z = run->fit->basis_rows + (size_t)j * run->columns;
        double sum = 0;
        for (uint32_t i = 0; i < run->columns; i++)
            sum += (double)q[i] * z[i];
        product[j] = sum / SG_BASIS_ONE;
    }
}

/* Share of the leading rows of Q (orthonormal) that lies in the basis' span: near 1 for the right one, and about
 * rank / columns for any other. */
static double basis_share(struct sg_fit_run *run) {
    const uint32_t rank = run->fit->basis.rank, count = run->rank < 3 ? run->rank : 3;
    struct sg_small_matrix inverse;
    double share = 0;
    sg_basis_fill(&run->fit->basis, run->columns, run->fit->basis_rows);
    gram_of_basis(run, &inverse);
    sg_fit_invert(&inverse, rank);
    for (uint32_t k = 0; k < count; k++) {
        double product[SG_GUIDE_RANK_MAX];
        basis_products(run, run->fit->q_real + (size_t)k * run->columns, product);
        for (uint32_t i = 0; i < rank; i++)
            for (uint32_t j = 0; j < rank; j++)
                share += product[i] * inverse.at[i][j] * product[j];
    }
    return share / count;
}

static int try_basis(struct sg_fit_run *run, uint32_t group, uint32_t layer, uint32_t rank) {
    struct sg_basis_hint *hint = run->input->hint;
    if (rank > SG_GUIDE_RANK_MAX || rank * run->columns > SG_GUIDE_Q_MAX || 4 * rank > run->columns)
        return 0;
    run->fit->basis = (struct sg_basis){hint->seed, group, layer, run->input->width, rank};
    if (basis_share(run) < SHARE_MIN)
        return 0;
    hint->rank = rank;
    hint->layer = layer;
    hint->found_count++;
    return 1;
}

static int find_near(struct sg_fit_run *run) {
    const struct sg_basis_hint before = *run->input->hint;
    for (uint32_t layer = before.layer; before.found_count && layer < before.layer + 2; layer++)
        for (uint32_t group = 0; group < UPSTREAM_GROUPS; group++)
            if (try_basis(run, group, layer, before.rank))
                return 1;
    run->fit->basis.rank = 0;
    return 0;
}

/* Near the last find first; everywhere only for the first tensors of a patch. */
void sg_fit_find_basis(struct sg_fit_run *run) {
    static const uint8_t ranks[] = {8, 16, 4, 32};
    struct sg_basis_hint *hint = run->input->hint;
    if (run->fit->basis.rank || find_near(run))
        return;
    for (uint32_t i = 0; hint->miss_count < MISSES_MAX && i < sizeof ranks; i++)
        for (uint32_t layer = 0; layer < LAYERS_SEARCHED; layer++)
            for (uint32_t group = 0; group < UPSTREAM_GROUPS; group++)
                if (try_basis(run, group, layer, ranks[i]))
                    return;
    hint->miss_count++;
    run->fit->basis.rank = 0;
}

/* P = difference Z^T (Z Z^T)^-1 with Q = Z. Returns the energy that it explains per entry of P, against the energy of
 * the difference per code: about 1 for a basis that has nothing to do with it. */
static double fit_to_basis(struct sg_fit_run *run) {
    const uint32_t rank = run->fit->basis.rank, rows = run->input->row_count;
    struct sg_small_matrix gram, inverse;
    double explained = 0;
    run->rank = rank;
    for (size_t i = 0; i < (size_t)rank * run->columns; i++)
        run->fit->q_real[i] = (float)run->fit->basis_rows[i] / SG_BASIS_ONE;
    const double total = sg_fit_power_pass(run, 0).total;
    gram_of_basis(run, &gram);
    inverse = gram;
    sg_fit_invert(&inverse, rank);
    sg_fit_mix_p(run, &inverse);
    for (uint32_t row = 0; row < rows; row++) {
        const float *p = run->fit->p_real + (size_t)row * rank;
        for (uint32_t j = 0; j < rank; j++)
            for (uint32_t k = 0; k < rank; k++)
                explained += (double)p[j] * gram.at[j][k] * (double)p[k];
    }
    return total > 0 ? explained / rank * run->columns / total : 0;
}

int sg_fit_start_from_basis(struct sg_fit_run *run) {
    struct sg_basis_hint *hint = run->input->hint;
    const uint32_t rank = hint->rank;
    if (!hint->found_count || 4 * rank > run->columns || rank * run->columns > SG_GUIDE_Q_MAX ||
        rank > SG_FIT_P_MAX / run->input->row_count || (run->rank && find_near(run)))
        return 1;
    for (uint32_t layer = hint->layer; layer < hint->layer + 2; layer++)
        for (uint32_t group = 0; group < UPSTREAM_GROUPS; group++) {
            run->fit->basis = (struct sg_basis){hint->seed, group, layer, run->input->width, rank};
            sg_basis_fill(&run->fit->basis, run->columns, run->fit->basis_rows);
            if (fit_to_basis(run) > EXPLAINED_MIN) {
                hint->layer = layer;
                run->q_is_known = 1;
                return 1;
            }
        }
    run->fit->basis.rank = 0;
    return 0;
}

/* Coefficients of Q in the basis, whole, and what they give. */
void sg_fit_settle_mix(struct sg_fit_run *run) {
    struct sg_fit *fit = run->fit;
    const uint32_t rank = fit->basis.rank;
    const float per_unit = (float)(1 << SG_GUIDE_MIX_SHIFT) / SG_BASIS_ONE;
    struct sg_small_matrix inverse;
    gram_of_basis(run, &inverse);
    sg_fit_invert(&inverse, rank);
    for (uint32_t k = 0; k < run->rank; k++) {
        const float *q = fit->q_real + (size_t)k * run->columns;
        float *known = fit->q_known + (size_t)k * run->columns;
        double product[SG_GUIDE_RANK_MAX];
        basis_products(run, q, product);
        memset(known, 0, run->columns * sizeof *known);
        for (uint32_t j = 0; j < rank; j++) {
            double share = 0;
            for (uint32_t i = 0; i < rank; i++)
                share += inverse.at[j][i] * product[i];
            const float steps = sg_fit_rounded((float)share / run->unit[k] * per_unit);
            fit->mix[k][j] = (int16_t)(steps >= SG_GUIDE_MIX_MAX   ? SG_GUIDE_MIX_MAX
                                       : steps > -SG_GUIDE_MIX_MAX ? (int32_t)steps
                                                                   : -SG_GUIDE_MIX_MAX);
            const float factor = run->unit[k] * (float)fit->mix[k][j] / (float)(1 << SG_GUIDE_MIX_SHIFT);
            for (uint32_t i = 0; i < run->columns; i++)
                known[i] += factor * (float)fit->basis_rows[(size_t)j * run->columns + i];
        }
    }
}
