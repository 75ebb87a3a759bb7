/* Which base record does a target record continue?
 *
 * Owns: the alignment of two directories. Equal lists match one to one. Otherwise the best common subsequence, where
 * records can match if all but their offset is equal, and content that is alike counts for more than a like shape, so
 * that a model which lost layers finds the layers that stayed. A CQ tensor with a row for each layer then continues one
 * with more or fewer rows of the same width, if one has the other's first row. Integers only. */
#include <string.h>

#include "patch_parts.h"

#define SAMPLE_COUNT 64u

enum { STEP_MATCH = 1, STEP_SKIP_TARGET, STEP_SKIP_BASE };

static const uint8_t *record_bytes(const struct sg_container *container, uint32_t index) {
    return container->file + container->directory_offset + (size_t)SG_RECORD_BYTES * index;
}

static int can_match(const struct sg_container *base, uint32_t i, const struct sg_container *target, uint32_t j) {
    const uint8_t *a = record_bytes(base, i), *b = record_bytes(target, j);
    return memcmp(a, b, SG_RECORD_AT_OFFSET) == 0 &&
           memcmp(a + SG_RECORD_AT_NBYTES, b + SG_RECORD_AT_NBYTES, SG_RECORD_BYTES - SG_RECORD_AT_NBYTES) == 0;
}

/* 1 plus how many of 64 sampled bytes are equal. */
static uint32_t likeness(const struct sg_container *base, uint32_t i, const struct sg_container *target, uint32_t j) {
    const struct sg_record a = sg_container_record(base, i), b = sg_container_record(target, j);
    uint32_t equal = 1;
    for (uint32_t k = 0; k < SAMPLE_COUNT && a.byte_count; k++) {
        const uint64_t at = a.byte_count * (2 * k + 1) / (2 * SAMPLE_COUNT);
        equal += base->file[a.offset + at] == target->file[b.offset + at];
    }
    return equal;
}

static void match_ends(const struct sg_container *base, const struct sg_container *target, uint32_t *match) {
    uint32_t first = 0, last = 0;
    const uint32_t shorter =
        base->record_count < target->record_count ? base->record_count : target->record_count;
    for (; first < shorter && can_match(base, first, target, first); first++)
        match[first] = first;
    for (; first + last < shorter && can_match(base, base->record_count - 1 - last, target,
                                               target->record_count - 1 - last);
         last++)
        match[target->record_count - 1 - last] = base->record_count - 1 - last;
}

static void match_best(const struct sg_container *base, const struct sg_container *target, uint32_t *match,
                       uint8_t *cells, uint32_t *scores) {
    const uint32_t width = base->record_count;
    uint32_t *above = scores, *here = scores + width + 1;
    memset(above, 0, ((size_t)width + 1) * sizeof *above);
    for (uint32_t j = 0; j < target->record_count; j++) {
        here[0] = 0;
        for (uint32_t i = 0; i < width; i++) {
            uint32_t best = above[i + 1], step = STEP_SKIP_TARGET;
            if (here[i] > best)
                best = here[i], step = STEP_SKIP_BASE;
            if (can_match(base, i, target, j)) {
                const uint32_t score = above[i] + likeness(base, i, target, j);
                if (score >= best)
                    best = score, step = STEP_MATCH;
            }
            here[i + 1] = best;
            cells[(size_t)j * width + i] = (uint8_t)step;
        }
        uint32_t *swap = above;
        above = here;
        here = swap;
    }
    for (uint32_t j = target->record_count, i = width; j && i;) {
        const uint32_t step = cells[(size_t)(j - 1) * width + i - 1];
        if (step == STEP_MATCH)
            match[j - 1] = i - 1;
        j -= step != STEP_SKIP_BASE;
        i -= step != STEP_SKIP_TARGET;
    }
}

static int has_row(const uint8_t *rows, uint32_t row_count, const uint8_t *row, size_t row_bytes) {
    for (uint32_t i = 0; i < row_count; i++)
        if (memcmp(rows + row_bytes * i, row, row_bytes) == 0)
            return 1;
    return 0;
}

/* Whether one of two CQ tensors of the same width has the other's first row. */
static int share_a_row(const struct sg_container *base, uint32_t i, const struct sg_container *target, uint32_t j) {
    const struct sg_record a = sg_container_record(base, i), b = sg_container_record(target, j);
    const uint8_t *old_rows = base->file + a.offset, *new_rows = target->file + b.offset;
    const size_t row_bytes = sg_record_code_bytes(&a);
    return a.bits && a.bits == b.bits && a.column_count == b.column_count &&
           (has_row(old_rows, a.row_count, new_rows, row_bytes) || has_row(new_rows, b.row_count, old_rows, row_bytes));
}

/* Records that are still alone, each with the next base record before those that come after it. */
static void match_rows(const struct sg_container *base, const struct sg_container *target, uint32_t *match) {
    uint32_t next = 0;
    for (uint32_t j = 0; j < target->record_count; j++) {
        uint32_t end = base->record_count;
        for (uint32_t k = j; k < target->record_count; k++)
            if (match[k] != SG_NO_RECORD) {
                end = match[k];
                break;
            }
        for (uint32_t i = next; match[j] == SG_NO_RECORD && i < end; i++)
            if (share_a_row(base, i, target, j))
                match[j] = i;
        if (match[j] != SG_NO_RECORD)
            next = match[j] + 1;
    }
}

void sg_match_records(const struct sg_container *base, const struct sg_container *target, uint32_t *match,
                      uint8_t *cells, uint32_t *scores) {
    uint32_t equal = 0;
    for (uint32_t j = 0; j < target->record_count; j++)
        match[j] = SG_NO_RECORD;
    if (base->record_count == target->record_count)
        while (equal < target->record_count && can_match(base, equal, target, equal))
            equal++;
    if (equal == target->record_count || (uint64_t)base->record_count * target->record_count > SG_MATCH_CELLS_MAX)
        match_ends(base, target, match);
    else {
        match_best(base, target, match, cells, scores);
        match_rows(base, target, match);
    }
}
