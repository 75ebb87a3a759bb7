/* The parts of a fit (patch_fit*.c) share this; nobody else includes it. */
#ifndef SG_PATCH_FIT_RUN_H
#define SG_PATCH_FIT_RUN_H

#include "patch_fit.h"

struct sg_small_matrix {
    double at[SG_GUIDE_RANK_MAX][SG_GUIDE_RANK_MAX];
};

struct sg_fit_run {
    struct sg_fit *fit;
    const struct sg_fit_input *input;
    uint32_t rank, columns;
    float level[SG_RANS_SYMBOLS];
    struct sg_guide_shape table_shape; /* of the tables that the fit looks at */
    double info_sum, info_count; /* of squared scores; their ratio is the information per code */
    double info;
    int is_settling; /* the shift is known, and a coarse step may leave a component few entries */
    int q_is_known; /* Q stays in the basis' span: the shift is too weak to tell where training moved it */
    /* quantisation: what a step of Q is worth, and the entries' spreads in steps, by component */
    float unit[SG_GUIDE_RANK_MAX];
    double p_spread[SG_GUIDE_RANK_MAX], q_spread[SG_GUIDE_RANK_MAX];
    /* the open row */
    float *slope; /* (columns) */
    float old_norm[SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES];
    float new_norm[SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES];
};

/* patch_fit_rows.c */
void sg_fit_open_row(struct sg_fit_run *run, uint32_t row);
int sg_fit_is_open(const struct sg_fit_run *run, uint32_t group);
/* The dequantised difference over the row's first norm, into `slope`. */
void sg_fit_row_difference(struct sg_fit_run *run);
/* P Q^T of one row, into `shift`. */
void sg_fit_row_shift(struct sg_fit_run *run, const float *p);
/* Derivative of the log likelihood by each shift, into `slope`; adds to the information. */
void sg_fit_row_slope(struct sg_fit_run *run);
/* After each row: adds P^T times the rows' slopes to `q_sum`, some rows at a time. */
void sg_fit_row_gather(struct sg_fit_run *run, uint32_t row);
double sg_fit_dot(const float *a, const float *b, uint32_t count);
/* Products of `a` with each of `vector_count` vectors that follow each other. */
void sg_fit_dots(const float *a, const float *vectors, uint32_t vector_count, uint32_t count, double *products);

/* patch_fit_matrix.c */
double sg_fit_root(double value);
void sg_fit_mix_p(struct sg_fit_run *run, const struct sg_small_matrix *factor);
void sg_fit_gram_of_q(const struct sg_fit_run *run, struct sg_small_matrix *gram);
void sg_fit_gram_of_p(const struct sg_fit_run *run, struct sg_small_matrix *gram);
void sg_fit_invert(struct sg_small_matrix *matrix, uint32_t rank);
/* Makes Q orthonormal and, with `has_p`, moves what that takes into P. */
void sg_fit_orthonormalise(struct sg_fit_run *run, int has_p);
/* Turns both so that P's columns are orthogonal too, largest first; `sizes` are their lengths. */
void sg_fit_to_singular(struct sg_fit_run *run, double sizes[SG_GUIDE_RANK_MAX]);
/* Keeps the first `rank` components. */
void sg_fit_cut_rank(struct sg_fit_run *run, uint32_t rank);

/* Squared size of a difference, and of what lies in Q's span (if Q is orthonormal). */
struct sg_fit_energy {
    double total, explained;
};

/* patch_fit.c */
/* P = difference Q^T; with `is_turning`, Q becomes difference^T P. Returns the difference's squared size. */
struct sg_fit_energy sg_fit_power_pass(struct sg_fit_run *run, int is_turning);
/* One step for all rows of P, or for Q. */
void sg_fit_likelihood_pass(struct sg_fit_run *run, int is_for_p);

/* patch_fit_basis.c; Q is orthonormal, largest component first. */
void sg_fit_find_basis(struct sg_fit_run *run);
/* For a shift too weak to be seen by itself: takes P and Q from a basis near the last find. Returns 0 if none fits; then
 * P and Q are lost. */
int sg_fit_start_from_basis(struct sg_fit_run *run);
/* Whole coefficients of Q in the basis, and what they give of Q. */
void sg_fit_settle_mix(struct sg_fit_run *run);

/* patch_fit_quantise.c */
float sg_fit_rounded(float value);
/* Entry of Q in steps, less what the basis gives. */
float sg_fit_q_entry(const struct sg_fit_run *run, uint32_t k, uint32_t i);
/* Quantises and stores; returns 0 if there is nothing worth storing. */
int sg_fit_quantise(struct sg_fit_run *run);

/* patch_fit_refine.c */
void sg_fit_refine(struct sg_fit_run *run, uint32_t pass_count);

#endif
