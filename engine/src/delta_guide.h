/* Guided coding of CQ codes: a low-rank shift, the same for maker and rebuilder, in integers only.
 *
 * Owns: what the shift means for a group's norm and for each code's context, and the tables of those contexts.
 * Knows nothing of: how the shift is found (patch_fit.c) or coded (rebuild_guide.c, patch_guide.c).
 * Source: docs/formats/patch.md, "Guided codes".
 *
 * Units: levels and shifts are in 1/65536 of a group's norm. A rotated base weight is norm * (level + error within the
 * cell); the fine-tune adds norm * d to it, with d = P Q^T scaled by (the row's first norm / the group's norm). */
#ifndef SG_DELTA_GUIDE_H
#define SG_DELTA_GUIDE_H

#include "patch_format.h"
#include "rans.h"

#define SG_GUIDE_RANK_MAX 32u
#define SG_GUIDE_Q_MAX 65536u /* rank * codes per row */
#define SG_GUIDE_BUCKETS 256u
#define SG_GUIDE_TABLE_COUNT 4u
#define SG_GUIDE_NOISE_COUNT 21u
#define SG_GUIDE_BUCKET_SHIFT_MIN 4u
#define SG_GUIDE_BUCKET_SHIFT_MAX 9u
#define SG_GUIDE_PRE_SHIFT_MAX 15u
#define SG_GUIDE_WIDTH_ONE 16u     /* a weight may lie anywhere in its cell */
#define SG_GUIDE_BOOST_ONE 256u
#define SG_GUIDE_BOOST_MAX 32767u
/* A component's gain is (8 + mantissa) << exponent: three bits and four. */
#define SG_GUIDE_MIX_SHIFT 13
#define SG_GUIDE_MIX_MAX 2047
#define SG_GUIDE_GAIN_MAX (15u << 11)

/* What a table is computed from; all of it stands in the patch. */
struct sg_guide_shape {
    uint32_t code_bits;              /* 1 to 4 */
    uint32_t noise;                  /* index of the spread of prediction errors */
    uint32_t bucket_shift;           /* a bucket is 2^bucket_shift units wide */
    uint32_t floor;                  /* 1: every code has a frequency above 0 */
    uint32_t width;                  /* how far from its level a weight may lie, in sixteenths of its cell */
    int16_t level[SG_RANS_SYMBOLS];  /* of each code; all different */
};

struct sg_guide_table {
    struct sg_guide_shape shape;     /* code_bits 0: not set */
    struct sg_rans_row row[SG_RANS_SYMBOLS * SG_GUIDE_BUCKETS]; /* by (old code, bucket of the shift) */
};

/* Codes by rising level, with the borders halfway between. */
struct sg_guide_cells {
    uint32_t count;
    uint32_t code[SG_RANS_SYMBOLS];
    int32_t edge[SG_RANS_SYMBOLS + 1]; /* cell i lies between edge[i] and edge[i + 1] */
};

/* Returns 0 if two levels are equal or one is out of bounds. */
int sg_guide_cells_fill(struct sg_guide_cells *cells, const struct sg_guide_shape *shape);

/* Fills the rows from `shape`. Returns 0 if two levels are equal or one is out of bounds. */
int sg_guide_table_build(struct sg_guide_table *table, const struct sg_guide_shape *shape);

/* An entry of Q with its gain: `entry` steps, plus the basis vectors at `z` (`stride` apart) mixed by `mix`. Returns 0
 * if that leaves 16 bits. */
int sg_guide_q_entry(int32_t entry, uint32_t gain, const int16_t *mix, const int16_t *z, uint32_t basis_rank,
                     uint32_t stride, int16_t *result);

/* Shift of one row before scaling: (sum over k of p[k] * q[k][i]) >> pre_shift, kept within 16 bits.
 * q: (rank, row_codes). */
void sg_guide_row(const int16_t *p, const int16_t *q, uint32_t rank, uint32_t row_codes, uint32_t pre_shift,
                  int16_t *shift);

/* One group of 128: what is known of it before its codes. */
struct sg_guide_group {
    int16_t d[SG_PATCH_GROUP_CODES];
    int32_t old_projection; /* sum of level[old code] * d */
    int32_t rho;            /* predicted norm ratio new / old, in 1/65536 */
    uint32_t old_norm;      /* as fp16 bits */
};

/* Fills `group`. `row_norm` is the row's first old norm; a group whose norms are not positive normal numbers is left
 * unshifted. */
void sg_guide_group_open(struct sg_guide_group *group, const struct sg_guide_shape *shape, const int16_t *shift,
                         uint32_t row_norm, uint32_t old_norm, const uint16_t *old_codes);
/* The codes that the shift gives by itself: the nearest level to where `boost` times the shift moves the old one. */
void sg_guide_group_codes(const struct sg_guide_group *group, const struct sg_guide_shape *shape,
                          const struct sg_guide_cells *cells, uint32_t boost, const uint16_t *old_codes,
                          uint8_t *new_codes);
/* Opens the group and fills the contexts of its codes. */
void sg_guide_group_contexts(struct sg_guide_group *group, const struct sg_guide_shape *shape, const int16_t *shift,
                             uint32_t row_norm, uint32_t old_norm, const uint16_t *old_codes, uint16_t *contexts);
/* The new norm (fp16 bits) as old codes, shift and new codes predict it. */
uint32_t sg_guide_norm(const struct sg_guide_group *group, const struct sg_guide_shape *shape,
                       const uint8_t *new_codes);

#endif
