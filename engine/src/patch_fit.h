/* Finding the low-rank shift between two CQ tensors, for the patch maker only. */
#ifndef SG_PATCH_FIT_H
#define SG_PATCH_FIT_H

#include "delta_guide.h"

/* Rows times rank that a fit can hold; tensors beyond it are coded unguided. */
#define SG_FIT_P_MAX (512u * 1024u)

/* One tensor pair as it stands in the two files. */
struct sg_fit_input {
    const uint8_t *old_codes, *new_codes, *old_norms, *new_norms;
    uint32_t row_count, group_count, code_bits;
    const struct sg_guide_shape *shape; /* levels, and the bucket width of the score table */
    uint32_t effort;                    /* 1 to 9: how many passes over the tensor */
};

/* Working memory and result. */
struct sg_fit {
    /* result */
    uint32_t rank, pre_shift;
    uint32_t gain[SG_GUIDE_RANK_MAX];
    int16_t p[SG_FIT_P_MAX];     /* (rows, rank) */
    int16_t q[SG_GUIDE_Q_MAX];   /* (rank, row codes), gains not multiplied in */
    /* work */
    float p_real[SG_FIT_P_MAX];
    float q_real[SG_GUIDE_Q_MAX];
    float q_sum[SG_GUIDE_Q_MAX];
    float score[SG_RANS_SYMBOLS * SG_GUIDE_BUCKETS * SG_RANS_SYMBOLS];
    struct sg_guide_table table;
    uint16_t old_row[SG_PATCH_ROW_CODES_MAX], new_row[SG_PATCH_ROW_CODES_MAX];
    float shift[SG_PATCH_ROW_CODES_MAX], slope[SG_PATCH_ROW_CODES_MAX];
};

/* Fits and quantises. `result.rank` is 0 where no shift stands out of the rounding noise, or the tensor is too large. */
void sg_fit_run(struct sg_fit *fit, const struct sg_fit_input *input);

#endif
