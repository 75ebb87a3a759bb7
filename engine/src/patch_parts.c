/* Walks the target in file order and names, for each part, its kind and its base range.
 *
 * Owns: the walk. Knows nothing of: coding. Order: header and codebooks, runs of directory records, then for each
 * record the gap before its blob and the blob, then whatever follows the last blob. */
#include "patch_parts.h"

#include <string.h>

/* A shorter run of rows would cost more than it saves. */
#define ROW_RUN_BYTES_MIN 32u

enum { STAGE_HEADER, STAGE_DIRECTORY, STAGE_GAP, STAGE_BLOB, STAGE_REST, STAGE_END };

void sg_parts_begin(struct sg_parts *parts, const struct sg_container *base, const struct sg_container *target,
                    const uint32_t *match) {
    *parts = (struct sg_parts){.base = base, .target = target, .match = match, .stage = STAGE_HEADER};
}

/* A run of records whose partners are neighbours too, or that all have none. */
static void directory_run(struct sg_parts *parts, struct sg_part *part) {
    const uint32_t first = parts->index, partner = parts->match[first];
    uint32_t count = 1;
    while (first + count < parts->target->record_count &&
           parts->match[first + count] == (partner == SG_NO_RECORD ? SG_NO_RECORD : partner + count))
        count++;
    part->kind = partner == SG_NO_RECORD ? SG_SEGMENT_LITERAL : SG_SEGMENT_WORDS;
    part->byte_count = (uint64_t)SG_RECORD_BYTES * count;
    if (partner != SG_NO_RECORD) {
        part->has_base = 1;
        part->base_offset = parts->base->directory_offset + (uint64_t)SG_RECORD_BYTES * partner;
    }
    parts->index += count;
}

static uint64_t base_blob_end(const struct sg_parts *parts, uint32_t index) {
    if (index == 0)
        return parts->base->directory_offset + (uint64_t)SG_RECORD_BYTES * parts->base->record_count;
    const struct sg_record record = sg_container_record(parts->base, index - 1);
    return record.offset + record.byte_count;
}

/* The gap before a blob came from the gap before its partner, if that has the same size. */
static void gap(struct sg_parts *parts, struct sg_part *part) {
    const uint32_t partner = parts->match[parts->index];
    part->kind = SG_SEGMENT_LITERAL;
    part->byte_count = sg_container_record(parts->target, parts->index).offset - parts->target_end;
    if (partner != SG_NO_RECORD) {
        part->base_offset = base_blob_end(parts, partner);
        part->has_base = sg_container_record(parts->base, partner).offset - part->base_offset == part->byte_count;
    }
}

/* Whether the next blob has rows as its partner has, but not as many. */
static int has_other_rows(const struct sg_parts *parts) {
    const uint32_t partner = parts->match[parts->index];
    return partner != SG_NO_RECORD && sg_container_record(parts->base, partner).row_count !=
                                          sg_container_record(parts->target, parts->index).row_count;
}

/* Rows of the target's next blob from `parts->row` on that are the partner's from `base_row` on. */
static uint32_t equal_rows(const struct sg_parts *parts, const uint8_t *rows, uint32_t row_count,
                           const uint8_t *base_rows, uint32_t base_row_count, size_t row_bytes) {
    uint32_t count = 0;
    while (parts->row + count < row_count && parts->base_row + count < base_row_count &&
           memcmp(rows + row_bytes * (parts->row + count), base_rows + row_bytes * (parts->base_row + count),
                  row_bytes) == 0)
        count++;
    return count;
}

/* A run of rows that are the partner's, or one row that is not; all codes, then all norms. */
static void row_run(struct sg_parts *parts, struct sg_part *part) {
    const struct sg_record record = sg_container_record(parts->target, parts->index);
    const struct sg_record partner = sg_container_record(parts->base, parts->match[parts->index]);
    const size_t code_bytes = sg_record_code_bytes(&record);
    const size_t row_bytes = parts->is_in_norms ? sg_record_norm_bytes(&record) : code_bytes;
    const uint64_t base_start = partner.offset + (parts->is_in_norms ? (uint64_t)code_bytes * partner.row_count : 0);
    const uint64_t start = record.offset + (parts->is_in_norms ? (uint64_t)code_bytes * record.row_count : 0);
    const uint8_t *rows = parts->target->file + start;
    const uint32_t before = parts->base_row;
    uint32_t count = 0;
    for (; parts->base_row < partner.row_count; parts->base_row++) {
        count = equal_rows(parts, rows, record.row_count, parts->base->file + base_start, partner.row_count, row_bytes);
        if (count * row_bytes >= ROW_RUN_BYTES_MIN)
            break;
        count = 0;
    }
    part->kind = SG_SEGMENT_LITERAL;
    part->has_base = count > 0;
    part->base_offset = base_start + row_bytes * parts->base_row;
    parts->base_row = count ? parts->base_row + count : before;
    parts->row += count ? count : 1;
    part->byte_count = row_bytes * (count ? count : 1);
    if (parts->row < record.row_count)
        return;
    parts->row = parts->base_row = 0;
    parts->index += parts->is_in_norms;
    parts->is_in_norms = !parts->is_in_norms;
}

static void blob(struct sg_parts *parts, struct sg_part *part) {
    const uint32_t partner = parts->match[parts->index];
    part->record = sg_container_record(parts->target, parts->index++);
    part->byte_count = part->record.byte_count;
    part->kind = SG_SEGMENT_LITERAL;
    if (partner == SG_NO_RECORD)
        return;
    part->has_base = 1;
    part->base_offset = sg_container_record(parts->base, partner).offset;
    if (part->record.bits)
        part->kind = SG_SEGMENT_CQ;
    else if (part->record.dtype == SG_KIND_FP16 && part->byte_count % 2 == 0)
        part->kind = SG_SEGMENT_HALVES;
    else if (part->record.dtype == SG_KIND_FP32 && part->byte_count % 4 == 0)
        part->kind = SG_SEGMENT_WORDS;
}

static void rest(const struct sg_parts *parts, struct sg_part *part) {
    part->kind = SG_SEGMENT_LITERAL;
    part->byte_count = parts->target->file_bytes - parts->target_end;
    part->base_offset = base_blob_end(parts, parts->base->record_count);
    part->has_base = parts->base->file_bytes - part->base_offset == part->byte_count;
}

static void next_part(struct sg_parts *parts, struct sg_part *part) {
    const int has_records = parts->index < parts->target->record_count;
    switch (parts->stage) {
    case STAGE_HEADER:
        part->kind = parts->base->directory_offset == parts->target->directory_offset ? SG_SEGMENT_WORDS : SG_SEGMENT_LITERAL;
        part->has_base = part->kind == SG_SEGMENT_WORDS;
        part->byte_count = parts->target->directory_offset;
        parts->stage = STAGE_DIRECTORY;
        return;
    case STAGE_DIRECTORY:
        if (has_records) {
            directory_run(parts, part);
        } else {
            parts->index = 0;
            parts->stage = STAGE_GAP;
        }
        return;
    case STAGE_GAP:
        if (has_records)
            gap(parts, part);
        parts->stage = has_records ? STAGE_BLOB : STAGE_REST;
        return;
    case STAGE_BLOB:
        if (has_other_rows(parts)) {
            row_run(parts, part);
            parts->stage = parts->row || parts->is_in_norms ? STAGE_BLOB : STAGE_GAP;
            return;
        }
        blob(parts, part);
        parts->stage = STAGE_GAP;
        return;
    default:
        rest(parts, part);
        parts->stage = STAGE_END;
    }
}

int sg_parts_next(struct sg_parts *parts, struct sg_part *part) {
    do {
        *part = (struct sg_part){.target_offset = parts->target_end};
        if (parts->stage == STAGE_END)
            return 0;
        next_part(parts, part);
    } while (!part->byte_count);
    /* A rebuild reads the base forwards only. */
    if (part->has_base && part->base_offset < parts->base_end)
        part->has_base = 0;
    if (!part->has_base)
        part->kind = SG_SEGMENT_LITERAL;
    else
        parts->base_end = part->base_offset + part->byte_count;
    parts->target_end += part->byte_count;
    return 1;
}
