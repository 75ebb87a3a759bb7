/* The shortest end of a text, by rules that are fixed (docs/grammar.md), so that every place has exactly one.
 *
 * The rules lead to a valid end from everywhere, and to a short one; room is measured with it. */
#include "grammar.h"

#include "utf8.h"

static void put(struct sg_text *text, const void *bytes, uint32_t byte_count) {
    for (uint32_t i = 0; i < byte_count; i++, text->byte_count++) {
        if (text->byte_count < text->capacity) text->bytes[text->byte_count] = ((const uint8_t *)bytes)[i];
    }
}

static void put_byte(struct sg_text *text, uint8_t byte) { put(text, &byte, 1); }

static void finish_literal(const struct sg_grammar *grammar, uint32_t literal, uint32_t at, struct sg_text *text) {
    const struct sg_literal *found = &grammar->literals[literal];
    put(text, grammar->literal_bytes + found->start + at, found->byte_count - at);
    if (found->node != SG_NONE) sg_finish_value(grammar, found->node, text);
}

/* The first of these bytes that fits, again and again until the number may end. */
static void finish_number(const struct sg_node *node, struct sg_frame frame, struct sg_text *text) {
    static const uint8_t bytes[] = "0123456789.-";
    while (!sg_number_may_end(node, &frame)) {
        uint32_t i = 0;
        while (i + 1 < sizeof bytes && !sg_number_step(node, &frame, bytes[i])) i++;
        if (i + 1 == sizeof bytes) return;
        put_byte(text, bytes[i]);
    }
}

static void put_character(struct sg_text *text, uint32_t character) {
    uint8_t bytes[SG_SPELLING_BYTES_MAX];
    put(text, bytes, sg_json_put_character(character, bytes));
}

/* Ends the character under way with the smallest that there is; without a pattern that is the smallest of all. */
static void finish_bytes(const struct sg_grammar *grammar, const struct sg_node *node, const struct sg_frame *frame,
                         uint32_t *character, struct sg_text *text) {
    uint32_t low, high;
    sg_character_bounds(frame->lead, frame->high, frame->low, &low, &high);
    *character = low;
    if (node->pattern != SG_NONE) {
        *character = sg_pattern_shortest(grammar, &grammar->patterns[node->pattern], frame, low, high,
                                         sg_window_behind(node, frame));
    }
    for (uint32_t left = sg_utf8_need(frame->lead) - frame->high; left > 0; left--) {
        put_byte(text, (uint8_t)(0x80 | (*character >> 6 * (left - 1) & 0x3f)));
    }
}

/* The first escape that the string takes; with a pattern, one that is on the shortest way. */
static void finish_escape(const struct sg_grammar *grammar, const struct sg_node *node, const struct sg_frame *frame,
                          uint32_t *character, struct sg_text *text) {
    uint32_t best = 0, best_way = SG_NONE;
    for (uint32_t i = 0; i < SG_ESCAPE_COUNT && node->pattern != SG_NONE; i++) {
        const uint32_t way = sg_pattern_way(grammar, &grammar->patterns[node->pattern], frame, sg_escaped[i],
                                            sg_window_behind(node, frame));
        if (way > best_way || (way == best_way && sg_escaped[i] >= sg_escaped[best])) continue;
        best = i;
        best_way = way;
    }
    *character = sg_escaped[best];
    put_byte(text, sg_escapes[best]);
}

static void advance_pattern(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame,
                            uint32_t character) {
    const struct sg_positions next = sg_pattern_next(grammar, &grammar->patterns[node->pattern], frame, character,
                                                     character, sg_window_behind(node, frame));
    memcpy(frame->set, next.bits, sizeof frame->set);
    frame->at++;
}

static void finish_string(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame frame,
                          struct sg_text *text) {
    uint32_t character = 0;
    if (frame.phase == SG_PHASE_START) put_byte(text, '"');
    if (frame.phase == SG_STRING_BYTES) finish_bytes(grammar, node, &frame, &character, text);
    if (frame.phase == SG_STRING_ESCAPE) finish_escape(grammar, node, &frame, &character, text);
    if (frame.phase == SG_STRING_HEX) put(text, "0000", 4 - frame.high);
    const bool was_within = frame.phase > SG_STRING_BODY;
    if (node->pattern == SG_NONE) {
        for (uint32_t at = frame.at + was_within; at < node->min && text->byte_count <= SG_FINISH_BYTES_MAX; at++) {
            put_byte(text, 'a');
        }
    } else {
        const struct sg_pattern *pattern = &grammar->patterns[node->pattern];
        if (was_within) advance_pattern(grammar, node, &frame, character);
        while (!sg_string_may_close(grammar, node, &frame) && frame.at < node->max) {
            character = sg_pattern_shortest(grammar, pattern, &frame, 0, 0x10ffff, sg_window_behind(node, &frame));
            if (character == SG_NONE) break;
            put_character(text, character);
            advance_pattern(grammar, node, &frame, character);
        }
    }
    put_byte(text, '"');
}

static void finish_array(const struct sg_grammar *grammar, const struct sg_node *node, const struct sg_frame *frame,
                         struct sg_text *text) {
    uint32_t count = frame->at;
    if (frame->phase == SG_PHASE_START) put_byte(text, '[');
    if (frame->phase == SG_LIST_NEXT) {
        sg_finish_value(grammar, node->child, text);
        count++;
    }
    for (; count < node->min && text->byte_count <= SG_FINISH_BYTES_MAX; count++) {
        if (count > 0) put_byte(text, ',');
        sg_finish_value(grammar, node->child, text);
    }
    put_byte(text, ']');
}

/* The first of the names that fit and are still required, else SG_NONE. */
static uint32_t required_name(const struct sg_grammar *grammar, const struct sg_node *node,
                              const struct sg_frame *frame, uint32_t depth) {
    for (uint32_t i = frame->low; i < frame->high; i++) {
        if (node->required >> (i - node->first) & 1 && sg_is_usable(grammar, frame, i, depth)) return i;
    }
    return SG_NONE;
}

static void finish_name(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame,
                        uint32_t name, struct sg_text *text) {
    finish_literal(grammar, name, frame->at, text);
    frame->set[0] |= (uint64_t)1 << (name - node->first);
}

/* Among declared names: the first that is still required, else the cheapest. */
static void finish_declared_key(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame,
                                uint32_t depth, struct sg_text *text) {
    uint32_t best = required_name(grammar, node, frame, depth), best_cost = SG_NONE;
    if (best == SG_NONE) {
        for (uint32_t i = frame->low; i < frame->high; i++) {
            const uint32_t cost = sg_finish_literal_cost(grammar, i, frame->at);
            if (!sg_is_usable(grammar, frame, i, depth) || cost >= best_cost) continue;
            best = i;
            best_cost = cost;
        }
    }
    if (best != SG_NONE) finish_name(grammar, node, frame, best, text);
}

/* Whether a name that has got this far may end here: it is not declared, or it is and may be used. */
static bool may_close(const struct sg_grammar *grammar, const struct sg_frame *frame, uint32_t low, uint32_t high,
                      uint32_t at, uint32_t depth, uint32_t *property) {
    *property = SG_NONE;
    if (low >= high || !sg_narrow(grammar, &low, &high, at, '"')) return true;
    *property = low;
    return sg_is_usable(grammar, frame, low, depth);
}

/* A name that need not be declared: the first that is still required if it fits; else it ends here if it may, else behind
 * the first letter or digit that lets it. */
static void finish_open_key(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame,
                            uint32_t depth, struct sg_text *text) {
    const uint8_t lead = (uint8_t)(frame->set[1] >> 16);
    const uint32_t place = frame->set[1] & 0xff, required = required_name(grammar, node, frame, depth);
    uint32_t property = SG_NONE;
    if (required != SG_NONE) {
        finish_name(grammar, node, frame, required, text);
        return;
    }
    if (place > 0) { /* a declared name can hold this character too, but then a shorter way is not worth its rule */
        const uint32_t need = sg_utf8_need(lead);
        uint32_t low, high, bits = 0;
        if (place == 1) {
            sg_character_bounds(lead, 1, sg_utf8_lead_bits(lead), &low, &high);
            bits = low;
        }
        for (uint32_t left = need - place; left > 0; left--) {
            const uint8_t byte = (uint8_t)(0x80 | (bits >> 6 * (left - 1) & 0x3f));
            put_byte(text, byte);
            if (frame->low < frame->high && !sg_narrow(grammar, &frame->low, &frame->high, frame->at++, byte)) {
                frame->low = frame->high = 0;
            }
        }
    }
    if (!may_close(grammar, frame, frame->low, frame->high, frame->at, depth, &property)) {
        static const uint8_t letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
        for (uint32_t i = 0; letters[i]; i++) {
            uint32_t low = frame->low, high = frame->high;
            if (!sg_narrow(grammar, &low, &high, frame->at, letters[i])) low = high = 0;
            if (!may_close(grammar, frame, low, high, frame->at + 1, depth, &property)) continue;
            put_byte(text, letters[i]);
            break;
        }
    }
    put(text, "\":", 2);
    sg_finish_value(grammar, property == SG_NONE ? node->child : grammar->literals[property].node, text);
    if (property != SG_NONE) frame->set[0] |= (uint64_t)1 << (property - node->first);
}

static void finish_object(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame frame,
                          uint32_t depth, struct sg_text *text) {
    bool is_first = frame.phase == SG_PHASE_START || frame.phase == SG_LIST_FIRST;
    if (frame.phase == SG_PHASE_START) put_byte(text, '{');
    if (frame.phase == SG_LIST_NEXT) {
        put_byte(text, '"');
        frame.phase = SG_KEY;
        frame.low = node->first;
        frame.high = node->first + node->count;
        frame.at = 1;
    }
    if (frame.phase == SG_COLON) {
        put_byte(text, ':');
        sg_finish_value(grammar, frame.high ? grammar->literals[frame.low].node : node->child, text);
        if (frame.high) frame.set[0] |= (uint64_t)1 << (frame.low - node->first);
    }
    if (frame.phase == SG_KEY) {
        const bool is_open = sg_takes_others(grammar, node, depth);
        (is_open ? finish_open_key : finish_declared_key)(grammar, node, &frame, depth, text);
    }
    for (uint32_t i = 0; i < node->count; i++) {
        if (!((node->required & ~frame.set[0]) >> i & 1)) continue;
        if (!is_first) put_byte(text, ',');
        finish_literal(grammar, node->first + i, 0, text);
        is_first = false;
    }
    put_byte(text, '}');
}

static void finish_frame(const struct sg_grammar *grammar, const struct sg_frame *frame, uint32_t depth,
                         struct sg_text *text) {
    const struct sg_node *node = &grammar->nodes[frame->node];
    if (text->byte_count > SG_FINISH_BYTES_MAX) return;
    switch ((enum sg_node_kind)node->kind) {
    case SG_CHOICE:
        sg_finish_value(grammar, node->shortest, text);
        return;
    case SG_LITERALS:
        finish_literal(grammar, sg_finish_cheapest(grammar, frame->low, frame->high, frame->at), frame->at, text);
        return;
    case SG_STRING:
        finish_string(grammar, node, *frame, text);
        return;
    case SG_NUMBER:
        finish_number(node, *frame, text);
        return;
    case SG_ARRAY:
        finish_array(grammar, node, frame, text);
        return;
    case SG_OBJECT:
        finish_object(grammar, node, *frame, depth, text);
        return;
    case SG_CALL:
        if (frame->phase != SG_CALL_CLOSE) {
            finish_literal(grammar, sg_finish_cheapest(grammar, frame->low, frame->high, frame->at), frame->at, text);
        }
        put_byte(text, '}');
        return;
    }
}

void sg_finish_value(const struct sg_grammar *grammar, uint32_t node, struct sg_text *text) {
    const struct sg_frame frame = sg_fresh_frame(grammar, node);
    finish_frame(grammar, &frame, 0, text);
}

void sg_finish_thread(const struct sg_grammar *grammar, const struct sg_thread *thread, struct sg_text *text) {
    for (uint32_t depth = thread->depth; depth > 0; depth--) {
        finish_frame(grammar, &thread->frames[depth - 1], depth, text);
    }
}
