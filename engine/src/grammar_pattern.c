/* A pattern's automaton at work: which characters may come next, and which is nearest to the end. */
#include "grammar.h"

/* The smallest of the position's characters from `low` to `high`, or SG_NONE. */
static uint32_t smallest(const struct sg_grammar *grammar, const struct sg_position *position, uint32_t low,
                         uint32_t high) {
    uint32_t best = SG_NONE;
    for (uint32_t i = 0; i < position->range_count; i++) {
        const struct sg_range range = grammar->ranges[position->first_range + i];
        const uint32_t from = range.low > low ? range.low : low;
        if (from <= high && from <= range.high && from < best) best = from;
    }
    return best;
}

static struct sg_positions candidates(const struct sg_grammar *grammar, const struct sg_pattern *pattern,
                                      const struct sg_frame *frame) {
    if (frame->at == 0) return pattern->initial;
    struct sg_positions now, next = {0};
    memcpy(now.bits, frame->set, sizeof now.bits);
    for (uint32_t i = 0; i < pattern->count; i++) {
        if (sg_positions_has(&now, i)) sg_positions_unite(&next, &grammar->positions[pattern->first + i].follow);
    }
    return next;
}

/* Characters from the position to the nearest end within the window; SG_NONE if there is none. */
static uint32_t way(const struct sg_position *position, struct sg_window window) {
    if (window.least == 0) return position->distance <= window.most ? position->distance : SG_NONE;
    const uint32_t most = window.most < SG_LENGTHS_MAX ? window.most : SG_LENGTHS_MAX;
    for (uint32_t k = window.least; k <= most; k++) {
        if (position->lengths >> k & 1) return k;
    }
    return SG_NONE;
}

struct sg_positions sg_pattern_next(const struct sg_grammar *grammar, const struct sg_pattern *pattern,
                                    const struct sg_frame *frame, uint32_t low, uint32_t high,
                                    struct sg_window window) {
    struct sg_positions next = candidates(grammar, pattern, frame);
    for (uint32_t i = 0; i < pattern->count; i++) {
        if (!sg_positions_has(&next, i)) continue;
        const struct sg_position *position = &grammar->positions[pattern->first + i];
        if (way(position, window) != SG_NONE && smallest(grammar, position, low, high) != SG_NONE) continue;
        next.bits[i / 64] &= ~((uint64_t)1 << i % 64);
    }
    return next;
}

bool sg_pattern_accepts(const struct sg_pattern *pattern, const struct sg_frame *frame) {
    if (frame->at == 0) return pattern->is_nullable;
    return (frame->set[0] & pattern->final.bits[0]) != 0 || (frame->set[1] & pattern->final.bits[1]) != 0;
}

/* The position that is nearest to an end, the first of equals; SG_NONE without any. */
static uint32_t nearest(const struct sg_grammar *grammar, const struct sg_pattern *pattern,
                        const struct sg_positions *set, struct sg_window window) {
    uint32_t best = SG_NONE, best_way = SG_NONE;
    for (uint32_t i = 0; i < pattern->count; i++) {
        if (!sg_positions_has(set, i) || way(&grammar->positions[pattern->first + i], window) >= best_way) continue;
        best_way = way(&grammar->positions[pattern->first + i], window);
        best = i;
    }
    return best;
}

uint32_t sg_pattern_shortest(const struct sg_grammar *grammar, const struct sg_pattern *pattern,
                             const struct sg_frame *frame, uint32_t low, uint32_t high, struct sg_window window) {
    const struct sg_positions next = sg_pattern_next(grammar, pattern, frame, low, high, window);
    const uint32_t best = nearest(grammar, pattern, &next, window);
    return best == SG_NONE ? SG_NONE : smallest(grammar, &grammar->positions[pattern->first + best], low, high);
}

uint32_t sg_pattern_way(const struct sg_grammar *grammar, const struct sg_pattern *pattern,
                        const struct sg_frame *frame, uint32_t character, struct sg_window window) {
    const struct sg_positions next = sg_pattern_next(grammar, pattern, frame, character, character, window);
    const uint32_t best = nearest(grammar, pattern, &next, window);
    if (best == SG_NONE) return SG_NONE;
    return way(&grammar->positions[pattern->first + best], window) * SG_POSITIONS_MAX + best;
}
