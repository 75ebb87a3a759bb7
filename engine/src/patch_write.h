/* The patch maker's state and its parts. See docs/formats/patch.md. */
#ifndef SG_PATCH_WRITE_H
#define SG_PATCH_WRITE_H

#include "delta_state.h"
#include "patch_fit.h"
#include "patch_parts.h"
#include "patch_shift.h"

/* Bytes laid down so far; once `is_full`, nothing more is. */
struct sg_patch_writer {
    uint8_t *out;
    size_t capacity, byte_count;
    uint32_t segment_count;
    int is_full;
};

/* Counts of (old code, new code); what a table is made from. */
struct sg_code_counts {
    uint32_t count[SG_RANS_SYMBOLS][SG_RANS_SYMBOLS];
};

struct sg_patch_maker {
    struct sg_container base, target;
    struct sg_patch_writer writer;
    struct sg_parts parts;     /* the walk, one part a step */
    uint64_t done_bytes;       /* of the target, written */
    uint32_t is_over;          /* the patch is whole, or was refused */
    uint64_t base_position;    /* base bytes that the segments so far have read or skipped */
    struct sg_part pending;    /* run of equal or of literal parts that may still grow */
    uint32_t effort;
    const uint8_t *shifts; /* settled beforehand (patch_shift.h) */
    size_t shift_bytes;
    struct sg_basis_hint hint;
    struct sg_fit *fit;
    struct sg_code_table tables[SG_PATCH_TABLE_COUNT];
    struct sg_code_counts table_counts[SG_PATCH_TABLE_COUNT];
    uint32_t table_bits[SG_PATCH_TABLE_COUNT]; /* code bits of a table; 0: free */
    uint8_t table_is_written[SG_PATCH_TABLE_COUNT];
    uint32_t guide_next; /* computed table to replace next */
    struct sg_guide_shape guide_shapes[SG_GUIDE_TABLE_COUNT]; /* of the computed tables; code_bits 0: free */
    /* From here on nothing needs to start as zero. */
    struct sg_delta_models models, models_before;
    struct sg_guide_table guide_tables[SG_GUIDE_TABLE_COUNT], guide_trial;
    uint32_t guide_counts[SG_RANS_SYMBOLS * SG_GUIDE_BUCKETS][SG_RANS_SYMBOLS];
    int16_t guide_q[SG_GUIDE_Q_MAX]; /* gains multiplied in */
    int16_t guide_shift[SG_PATCH_ROW_CODES_MAX];
    uint8_t guide_p_class[SG_GUIDE_RANK_MAX];
    uint16_t contexts[SG_PATCH_BLOCK_CODES_MAX];
    uint8_t symbols[SG_PATCH_BLOCK_CODES_MAX + SG_PATCH_ROW_CODES_MAX];
    uint16_t row[SG_PATCH_ROW_CODES_MAX];
    uint8_t payload[SG_PATCH_PAYLOAD_MAX];
    uint8_t cells[SG_MATCH_CELLS_MAX];
    struct sg_fit fit_memory;
    uint32_t match_and_scores[]; /* target record count, then twice base record count + 1 */
};

/* Writes the fields of a segment; `base_skip` is worked out from where the base stands. */
void sg_write_fields(struct sg_patch_maker *maker, struct sg_patch_segment segment, uint64_t base_offset);
void sg_write_payload(struct sg_patch_writer *writer, const uint8_t *payload, size_t byte_count);

/* Adds a CQ part's codes to the table that fits it best, or to a new one where that pays. */
void sg_count_codes(struct sg_patch_maker *maker, const struct sg_part *part);
/* Tables from the counts. */
void sg_fit_tables(struct sg_patch_maker *maker);
/* Rows per block of a CQ part: blocks of equal size, as few as there can be. */
uint32_t sg_block_rows(const struct sg_part *part);
/* The settled shift of a CQ part, or NULL. */
const uint8_t *sg_settled_shift(const struct sg_patch_maker *maker, const struct sg_part *part);
/* Writes a CQ part guided; returns 0 if that cannot be done (the writer may then hold half of it). */
int sg_write_guided(struct sg_patch_maker *maker, const struct sg_part *part);
/* Writes a CQ part; returns 0, with nothing changed, if its bytes as they are would be no larger. */
int sg_write_cq(struct sg_patch_maker *maker, const struct sg_part *part);

#endif
