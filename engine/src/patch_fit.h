/* Finding the low-rank shift between two CQ tensors, for the patch maker only. */
#ifndef SG_PATCH_FIT_H
#define SG_PATCH_FIT_H

#include "delta_guide.h"

/* Rows times rank that a fit can hold; tensors beyond it are coded unguided. */
#define SG_FIT_P_MAX (512u * 1024u)

/* Rows whose slopes are added to Q's at once. */
#define SG_FIT_ROWS_AT_ONCE 4u

/* Codes and norms of a tensor that can be refined. */
#define SG_FIT_CODES_MAX (1024u * 1024u)
#define SG_FIT_NORMS_MAX (SG_FIT_CODES_MAX / SG_PATCH_GROUP_CODES)

/* The search for seeded bases over a patch: adapters come layer by layer, so the last find foretells the next. */
struct sg_basis_hint {
    uint32_t seed;
    uint32_t rank, layer, found_count, miss_count;
};

/* One tensor pair as it stands in the two files. */
struct sg_fit_input {
    const uint8_t *old_codes, *new_codes, *old_norms, *new_norms;
    uint32_t row_count, group_count, code_bits, width; /* width: columns before padding */
    const struct sg_guide_shape *shape; /* levels */
    uint32_t effort;                    /* 1 to 9: how many passes over the tensor */
    struct sg_basis_hint *hint;         /* where to look for a basis; remembers what it found */
};

/* Working memory and result. */
struct sg_fit {
    /* result */
    uint32_t rank, pre_shift;
    uint32_t gain[SG_GUIDE_RANK_MAX];
    int16_t p[SG_FIT_P_MAX];     /* (rows, rank) */
    int16_t q[SG_GUIDE_Q_MAX];   /* (rank, row codes), gains not multiplied in; less what the basis gives */
    struct sg_basis basis;       /* rank 0: none */
    int16_t mix[SG_GUIDE_RANK_MAX][SG_GUIDE_RANK_MAX]; /* (rank, basis rank) */
    int16_t basis_rows[SG_GUIDE_Q_MAX]; /* (basis rank, row codes) */
    struct sg_guide_shape shape; /* levels as the input's, bucket_shift and width as suit the shift; no noise */
    uint32_t log2_of[SG_RANS_ONE + 1]; /* of a frequency, in 1/65536 */
    /* work */
    float p_real[SG_FIT_P_MAX];
    float q_real[SG_GUIDE_Q_MAX];
    float q_sum[SG_GUIDE_Q_MAX];
    float q_known[SG_GUIDE_Q_MAX]; /* what the basis gives of Q */
    float score[SG_RANS_SYMBOLS * SG_GUIDE_BUCKETS * SG_RANS_SYMBOLS];
    struct sg_guide_table table;
    uint16_t old_row[SG_PATCH_ROW_CODES_MAX], new_row[SG_PATCH_ROW_CODES_MAX];
    float shift[SG_PATCH_ROW_CODES_MAX];
    float slope[SG_FIT_ROWS_AT_ONCE * SG_PATCH_ROW_CODES_MAX]; /* of the last rows */
    /* refinement: code length by (old code, bucket, new code), and one line (row or column) of the tensor */
    float cost[SG_RANS_SYMBOLS * SG_GUIDE_BUCKETS * SG_RANS_SYMBOLS];
    float place[SG_FIT_CODES_MAX];      /* bucket as a real number, column after column */
    uint16_t pair[SG_FIT_CODES_MAX];    /* where a code pair's costs start */
    float direction[SG_FIT_CODES_MAX];  /* what a unit of shift adds to the squared norm ratio */
    float weight[SG_FIT_NORMS_MAX];     /* buckets per unit of shift, (groups, rows) */
    float miss[SG_FIT_NORMS_MAX];       /* squared norm ratio less its prediction, (groups, rows) */
};

/* Levels of a width in 1/65536, from the end of a container's codebooks. */
void sg_guide_levels(struct sg_guide_shape *shape, const uint8_t *codebooks_end, uint32_t bits);

/* Once, before anything else. */
void sg_fit_begin(struct sg_fit *fit);

/* P and Q (in `p_real`, `q_real`, over the row's first norm) become whole numbers with a step of `step`; no files are
 * looked at. `result.rank` is 0 if nothing of the shift is left. */
void sg_fit_settle(struct sg_fit *fit, const struct sg_fit_input *input, uint32_t rank, float step);

/* Fits and quantises. `result.rank` is 0 where no shift stands out of the rounding noise, or the tensor is too large. */
void sg_fit_run(struct sg_fit *fit, const struct sg_fit_input *input);

#endif
