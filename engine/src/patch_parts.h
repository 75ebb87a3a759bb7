/* The target cut into parts, each with the base range that it most likely came from. */
#ifndef SG_PATCH_PARTS_H
#define SG_PATCH_PARTS_H

#include "patch_container.h"
#include "patch_format.h"

#define SG_NO_RECORD UINT32_MAX
/* Above this product of record counts the aligner keeps to common ends (patch_match.c). */
#define SG_MATCH_CELLS_MAX (1024u * 1024u)

/* Fills match[i], for each target record, with the base record that it continues or SG_NO_RECORD; matches ascend.
 * `cells` has SG_MATCH_CELLS_MAX bytes, `scores` has base.record_count + 1 numbers twice. */
void sg_match_records(const struct sg_container *base, const struct sg_container *target, uint32_t *match,
                      uint8_t *cells, uint32_t *scores);

struct sg_part {
    uint8_t kind; /* the segment kind that fits the content; COPY is found by comparing */
    uint8_t has_base;
    uint64_t target_offset, base_offset, byte_count;
    struct sg_record record; /* of a CQ part */
};

struct sg_parts {
    const struct sg_container *base, *target;
    const uint32_t *match;
    uint32_t stage, index;
    uint32_t row, base_row, is_in_norms; /* how far a blob is whose rows are not as many as its partner's */
    uint64_t target_end, base_end; /* ends of the last part, in both files */
};

void sg_parts_begin(struct sg_parts *parts, const struct sg_container *base, const struct sg_container *target,
                    const uint32_t *match);
/* The next part in target order; 0 at the end. Parts cover the target without a gap; no part is empty. */
int sg_parts_next(struct sg_parts *parts, struct sg_part *part);

#endif
