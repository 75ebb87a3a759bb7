/* The shortest end of a text, by rules that are fixed (docs/grammar.md), so that every place has exactly one.
 *
 * The rules lead to a valid end from everywhere, and to a short one; room is measured with it. sg_finish_prepare computes
 * for each node how long its shortest value is and how deep it goes, by relaxing until nothing changes. */
#include "grammar.h"

#include "utf8.h"

#define REACH_MAX (1u << 24)

static void put(struct sg_text *text, const void *bytes, uint32_t byte_count) {
    for (uint32_t i = 0; i < byte_count; i++, text->byte_count++) {
        if (text->byte_count < text->capacity) text->bytes[text->byte_count] = ((const uint8_t *)bytes)[i];
    }
}

static void put_byte(struct sg_text *text, uint8_t byte) { put(text, &byte, 1); }

static uint32_t add(uint32_t a, uint32_t b) {
    return a == SG_NONE || b == SG_NONE ? SG_NONE : a + b > REACH_MAX ? REACH_MAX : a + b;
}

/* The rest of a literal, and the value behind it. */
static uint32_t literal_cost(const struct sg_grammar *grammar, uint32_t literal, uint32_t at) {
    const struct sg_literal *found = &grammar->literals[literal];
    const uint32_t value = found->node == SG_NONE ? 0 : grammar->nodes[found->node].bytes;
    return add(found->byte_count - at, value);
}

/* The cheapest of the literals low .. high from byte `at` on, the first of equals; SG_NONE if none has an end. */
static uint32_t cheapest(const struct sg_grammar *grammar, uint32_t low, uint32_t high, uint32_t at) {
    uint32_t best = SG_NONE, best_cost = SG_NONE;
    for (; low < high; low++) {
        const uint32_t cost = literal_cost(grammar, low, at);
        if (cost >= best_cost) continue;
        best = low;
        best_cost = cost;
    }
    return best;
}

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
    const uint8_t *escaped = character < 0x80 ? memchr(sg_escaped, (int)character, SG_ESCAPE_COUNT) : NULL;
    if (escaped) {
        put_byte(text, '\\');
        put_byte(text, sg_escapes[escaped - sg_escaped]);
    } else if (character < 0x80) {
        put_byte(text, (uint8_t)character);
    } else {
        const uint32_t need = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
        put_byte(text, (uint8_t)((0xf00u >> need) | (character >> 6 * (need - 1))));
        for (uint32_t left = need - 1; left > 0; left--) put_byte(text, (uint8_t)(0x80 | (character >> 6 * (left - 1) & 0x3f)));
    }
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
static uint32_t required_name(const struct sg_grammar *grammar, const struct sg_node *node, const struct sg_frame *frame,
                              uint32_t depth) {
    for (uint32_t i = frame->low; i < frame->high; i++) {
        if (node->required >> (i - node->first) & 1 && sg_is_usable(grammar, frame, i, depth)) return i;
    }
    return SG_NONE;
}

static void finish_name(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame, uint32_t name,
                        struct sg_text *text) {
    finish_literal(grammar, name, frame->at, text);
    frame->set[0] |= (uint64_t)1 << (name - node->first);
}

/* Among declared names: the first that is still required, else the cheapest. */
static void finish_declared_key(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame,
                                uint32_t depth, struct sg_text *text) {
    uint32_t best = required_name(grammar, node, frame, depth), best_cost = SG_NONE;
    if (best == SG_NONE) {
        for (uint32_t i = frame->low; i < frame->high; i++) {
            const uint32_t cost = literal_cost(grammar, i, frame->at);
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
            static const uint8_t lead_bits[] = {0, 0, 0x1f, 0x0f, 0x07};
            sg_character_bounds(lead, 1, lead & lead_bits[need], &low, &high);
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
        const bool is_open = node->child != SG_NO_NODE && sg_fits(grammar, node->child, depth);
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
        finish_literal(grammar, cheapest(grammar, frame->low, frame->high, frame->at), frame->at, text);
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
            finish_literal(grammar, cheapest(grammar, frame->low, frame->high, frame->at), frame->at, text);
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
    for (uint32_t depth = thread->depth; depth > 0; depth--) finish_frame(grammar, &thread->frames[depth - 1], depth, text);
}

/* ---- What each node needs ---- */

/* Bytes of the shortest value, given those of the nodes below. */
static uint32_t value_bytes(const struct sg_grammar *grammar, struct sg_node *node) {
    uint32_t bytes = 2;
    if (node->kind == SG_CHOICE) {
        bytes = SG_NONE;
        for (uint32_t i = 0; i < node->count; i++) {
            const uint16_t alternative = grammar->choices[node->first + i];
            if (grammar->nodes[alternative].bytes >= bytes) continue;
            bytes = grammar->nodes[alternative].bytes;
            node->shortest = alternative;
        }
    } else if (node->kind == SG_CALL) {
        const uint32_t best = cheapest(grammar, node->first, node->first + node->count, 0);
        bytes = best == SG_NONE ? SG_NONE : add(literal_cost(grammar, best, 0), 1);
    } else if (node->kind == SG_ARRAY) {
        const uint32_t item = node->min ? grammar->nodes[node->child].bytes : 0;
        if (node->min > node->max || item == SG_NONE) return SG_NONE;
        const uint64_t whole = 2 + (uint64_t)node->min * (item + 1) - (node->min > 0);
        bytes = whole > REACH_MAX ? REACH_MAX : (uint32_t)whole;
    } else {
        for (uint32_t i = 0; i < node->count; i++) {
            if (!(node->required >> i & 1)) continue;
            const uint32_t comma = bytes > 2;
            bytes = add(bytes, add(literal_cost(grammar, node->first + i, 0), comma));
        }
    }
    return bytes;
}

/* Bytes of a value that holds no other. */
static uint32_t leaf_bytes(const struct sg_grammar *grammar, uint32_t index) {
    const struct sg_node *node = &grammar->nodes[index];
    const struct sg_frame frame = sg_fresh_frame(grammar, index);
    uint8_t none[1];
    struct sg_text text = {none, 0, 0};
    if (node->kind == SG_LITERALS) {
        const uint32_t best = cheapest(grammar, frame.low, frame.high, 0);
        return best == SG_NONE ? SG_NONE : grammar->literals[best].byte_count;
    }
    if (node->kind == SG_NUMBER) {
        finish_number(node, frame, &text);
        return text.byte_count ? text.byte_count : SG_NONE;
    }
    if (node->pattern == SG_NONE) return node->min > node->max ? SG_NONE : add(2, node->min);
    if (!sg_string_may_close(grammar, node, &frame) && !sg_string_takes(grammar, node, &frame, 0, 0x10ffff)) return SG_NONE;
    finish_string(grammar, node, frame, &text);
    return text.byte_count;
}

static bool is_leaf(const struct sg_node *node) {
    return node->kind == SG_LITERALS || node->kind == SG_STRING || node->kind == SG_NUMBER;
}

static void prepare_bytes(struct sg_grammar *grammar) {
    for (uint32_t i = 0; i < grammar->node_count; i++) {
        struct sg_node *node = &grammar->nodes[i];
        node->bytes = is_leaf(node) ? leaf_bytes(grammar, i) : SG_NONE;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = grammar->node_count; i-- > 0;) {
            struct sg_node *node = &grammar->nodes[i];
            const uint32_t bytes = is_leaf(node) ? node->bytes : value_bytes(grammar, node);
            moved |= bytes < node->bytes;
            if (bytes < node->bytes) node->bytes = bytes;
        }
    }
}

static uint32_t value_need(const struct sg_grammar *grammar, const struct sg_node *node) {
    uint32_t below = 0;
    if (node->bytes == SG_NONE) return SG_FRAMES_MAX + 1;
    if (node->kind == SG_CHOICE) return grammar->nodes[node->shortest].need;
    if (node->kind == SG_ARRAY && node->min > 0) below = grammar->nodes[node->child].need;
    if (node->kind == SG_CALL) {
        below = grammar->nodes[grammar->literals[cheapest(grammar, node->first, node->first + node->count, 0)].node].need;
    }
    for (uint32_t i = 0; node->kind == SG_OBJECT && i < node->count; i++) {
        const uint32_t need = grammar->nodes[grammar->literals[node->first + i].node].need;
        if (node->required >> i & 1 && need > below) below = need;
    }
    return below + 1 > SG_FRAMES_MAX ? SG_FRAMES_MAX + 1 : below + 1;
}

static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Threads that the values of this name can become in all of the choice's objects together. */
static uint32_t live_behind(const struct sg_grammar *grammar, const struct sg_node *choice, const struct sg_literal *name) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < choice->count; i++) {
        const struct sg_node *object = &grammar->nodes[grammar->choices[choice->first + i]];
        if (object->kind != SG_OBJECT || !object->starts) continue;
        uint32_t value = object->child;
        for (uint32_t k = 0; name && k < object->count; k++) {
            const struct sg_literal *other = &grammar->literals[object->first + k];
            if (other->byte_count == name->byte_count && memcmp(grammar->literal_bytes + other->start,
                                                                grammar->literal_bytes + name->start, name->byte_count) == 0) {
                value = other->node;
            }
        }
        if (value != SG_NO_NODE) sum += grammar->nodes[value].live;
    }
    return sum;
}

/* Threads of a choice's objects: as many as there are while a name is written, then those that have this name. */
static uint32_t objects_live(const struct sg_grammar *grammar, const struct sg_node *choice) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < choice->count; i++) live += grammar->nodes[grammar->choices[choice->first + i]].starts & SG_START_OBJECT ? 1 : 0;
    if (live > SG_THREADS_MAX) return live;
    live = most(live, live_behind(grammar, choice, NULL));
    for (uint32_t i = 0; i < choice->count; i++) {
        const struct sg_node *object = &grammar->nodes[grammar->choices[choice->first + i]];
        for (uint32_t k = 0; object->kind == SG_OBJECT && k < object->count; k++) {
            live = most(live, live_behind(grammar, choice, &grammar->literals[object->first + k]));
        }
    }
    return live;
}

/* Threads that one thread can become within the value. */
static uint32_t value_live(const struct sg_grammar *grammar, const struct sg_node *node) {
    uint32_t live = 1;
    if (node->kind == SG_ARRAY || (node->kind == SG_OBJECT && node->child != SG_NO_NODE)) {
        live = grammar->nodes[node->child].live;
    }
    for (uint32_t i = 0; (node->kind == SG_OBJECT || node->kind == SG_CALL) && i < node->count; i++) {
        live = most(live, grammar->nodes[grammar->literals[node->first + i].node].live);
    }
    for (uint32_t start = 1; node->kind == SG_CHOICE && start <= SG_START_NULL; start <<= 1) {
        uint32_t sum = start == SG_START_OBJECT ? objects_live(grammar, node) : 0;
        for (uint32_t i = 0; i < node->count && start != SG_START_OBJECT; i++) {
            const struct sg_node *alternative = &grammar->nodes[grammar->choices[node->first + i]];
            if (alternative->starts & start) sum += alternative->live;
        }
        live = most(live, sum);
    }
    return live > SG_THREADS_MAX ? SG_THREADS_MAX + 1 : live;
}

static void prepare_depths(struct sg_grammar *grammar) {
    for (uint32_t i = 0; i < grammar->node_count; i++) {
        if (grammar->nodes[i].bytes == SG_NONE) grammar->nodes[i].starts = 0; /* no byte leads into it */
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = grammar->node_count; i-- > 0;) {
            struct sg_node *node = &grammar->nodes[i];
            const uint32_t need = value_need(grammar, node), live = value_live(grammar, node);
            moved |= need != node->need || live != node->live;
            node->need = (uint8_t)need;
            node->live = (uint16_t)live;
        }
    }
}

/* The most bytes that a literal and the shortest value behind it take. */
static uint32_t longest(const struct sg_grammar *grammar, const struct sg_node *node) {
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < node->count; i++) {
        const uint32_t cost = literal_cost(grammar, node->first + i, 0);
        if (cost != SG_NONE) bytes = most(bytes, cost);
    }
    return bytes;
}

static uint32_t value_reach(const struct sg_grammar *grammar, const struct sg_node *node) {
    const uint32_t longest_number = 24, longest_character = 12;
    const uint32_t child = node->child == SG_NO_NODE ? 0 : grammar->nodes[node->child].bytes;
    uint32_t reach = node->bytes;
    switch ((enum sg_node_kind)node->kind) {
    case SG_CHOICE: break;
    case SG_NUMBER: reach = longest_number; break;
    case SG_LITERALS: reach = longest(grammar, node); break;
    case SG_CALL: reach = longest(grammar, node) + 1; break;
    case SG_ARRAY: reach = child == SG_NONE ? node->bytes : add(node->bytes, child + 2); break;
    case SG_OBJECT:
        reach = add(node->bytes, longest(grammar, node) + 16);
        if (child != SG_NONE) reach = add(reach, child);
        break;
    case SG_STRING:
        reach = add(node->min, longest_character);
        if (node->pattern != SG_NONE) {
            const uint32_t distance = grammar->patterns[node->pattern].longest_distance;
            reach = add(longest_character, 4 * (most(distance, node->min) + 2));
        }
        break;
    }
    return reach == SG_NONE ? REACH_MAX : reach;
}

int sg_finish_prepare(struct sg_grammar *grammar) {
    prepare_bytes(grammar);
    prepare_depths(grammar);
    for (uint32_t i = 0; i < grammar->node_count; i++) {
        struct sg_node *node = &grammar->nodes[i];
        node->reach = value_reach(grammar, node);
        if (node->live > SG_THREADS_MAX) return SG_STATUS_GRAMMAR_LIMIT;
    }
    return SG_STATUS_OK;
}
