/* Small dense matrices of the fit, and the changes of basis that leave P Q^T as it is.
 *
 * Owns: everything whose size is the rank. Knows nothing of: codes, likelihood. */
#include "patch_fit_run.h"

#include <string.h>

double sg_fit_root(double value) { return value > 0 ? __builtin_sqrt(value) : 0; }

void sg_fit_gram_of_q(const struct sg_fit_run *run, struct sg_small_matrix *gram) {
    for (uint32_t j = 0; j < run->rank; j++) {
        sg_fit_dots(run->fit->q_real + (size_t)j * run->columns, run->fit->q_real, j + 1, run->columns, gram->at[j]);
        for (uint32_t k = 0; k < j; k++)
            gram->at[k][j] = gram->at[j][k];
    }
}

void sg_fit_gram_of_p(const struct sg_fit_run *run, struct sg_small_matrix *gram) {
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
void sg_fit_invert(struct sg_small_matrix *matrix, uint32_t rank) {
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

/* Eigenvectors (columns of `vectors`, largest first) by cyclic Jacobi rotations; `matrix` keeps the eigenvalues. */
static void diagonalise(struct sg_small_matrix *matrix, struct sg_small_matrix *vectors, uint32_t rank) {
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
                const double root = sg_fit_root(theta * theta + 1);
                const double t = theta >= 0 ? 1 / (theta + root) : 1 / (theta - root);
                const double c = 1 / sg_fit_root(t * t + 1), s = t * c;
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
static void mix_q(struct sg_fit_run *run, const struct sg_small_matrix *factor) {
    for (uint32_t i = 0; i < run->columns; i++) {
        double mixed[SG_GUIDE_RANK_MAX] = {0};
        for (uint32_t j = 0; j < run->rank; j++)
            for (uint32_t k = 0; k < run->rank; k++)
                mixed[k] += factor->at[j][k] * (double)run->fit->q_real[(size_t)j * run->columns + i];
        for (uint32_t k = 0; k < run->rank; k++)
            run->fit->q_real[(size_t)k * run->columns + i] = (float)mixed[k];
    }
}

void sg_fit_mix_p(struct sg_fit_run *run, const struct sg_small_matrix *factor) {
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
void sg_fit_orthonormalise(struct sg_fit_run *run, int has_p) {
    struct sg_small_matrix gram, vectors, into_p;
    sg_fit_gram_of_q(run, &gram);
    diagonalise(&gram, &vectors, run->rank);
    for (uint32_t k = 0; k < run->rank; k++) {
        const double size = sg_fit_root(gram.at[k][k]);
        for (uint32_t j = 0; j < run->rank; j++) {
            into_p.at[j][k] = vectors.at[j][k] * size;
            vectors.at[j][k] = size > 0 ? vectors.at[j][k] / size : 0;
        }
    }
    mix_q(run, &vectors);
    if (has_p)
        sg_fit_mix_p(run, &into_p);
}

/* Turns both so that P's columns are orthogonal too, largest first; `sizes` are their lengths. */
void sg_fit_to_singular(struct sg_fit_run *run, double sizes[SG_GUIDE_RANK_MAX]) {
    struct sg_small_matrix gram, vectors;
    sg_fit_orthonormalise(run, 1);
    sg_fit_gram_of_p(run, &gram);
    diagonalise(&gram, &vectors, run->rank);
    mix_q(run, &vectors);
    sg_fit_mix_p(run, &vectors);
    for (uint32_t k = 0; k < run->rank; k++)
        sizes[k] = sg_fit_root(gram.at[k][k]);
}

/* Keeps the first `rank` components of P and Q. */
void sg_fit_cut_rank(struct sg_fit_run *run, uint32_t rank) {
    for (uint32_t row = 0; row < run->input->row_count; row++)
        memmove(run->fit->p_real + (size_t)row * rank, run->fit->p_real + (size_t)row * run->rank,
                rank * sizeof(float));
    run->rank = rank;
}
