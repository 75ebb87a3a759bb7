/* What the two halves of the guided maker share: rows of a tensor pair, and the choice of their table. */
#ifndef SG_PATCH_GUIDE_H
#define SG_PATCH_GUIDE_H

#include "patch_write.h"

struct sg_guide_rows {
    const uint8_t *old_codes, *new_codes, *old_norms, *new_norms; /* of the tensor's first row */
    uint32_t row_count, row_codes, row_bytes, group_count, code_bits;
};

/* Contexts and new codes of one row; `differences` (one a group, may be NULL) are the norms' to their prediction. */
void sg_guide_walk_row(struct sg_patch_maker *maker, const struct sg_guide_rows *rows,
                       const struct sg_guide_shape *shape, uint32_t row, uint16_t *contexts, uint8_t *symbols,
                       uint32_t *differences);

/* Fills in noise and floor, and betters bucket_shift and width where the effort allows; returns 0 if no table holds all
 * codes. */
int sg_guide_table_choose(struct sg_patch_maker *maker, const struct sg_guide_rows *rows, struct sg_guide_shape *shape);
/* The same with the noise and width that a settled shift was chosen for. */
int sg_guide_table_settle(struct sg_patch_maker *maker, const struct sg_guide_rows *rows, struct sg_shift_use use,
                          struct sg_guide_shape *shape);

#endif
