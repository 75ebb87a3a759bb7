/* What each node of the grammar needs: bytes, frames and threads, by relaxing until nothing changes. */
#include "grammar.h"

#define REACH_MAX (1u << 24) /* beyond every room */

uint32_t sg_finish_add(uint32_t a, uint32_t b) {
    return a == SG_NONE || b == SG_NONE ? SG_NONE : a + b > REACH_MAX ? REACH_MAX : a + b;
}

/* The rest of a literal, and the value behind it. */
uint32_t sg_finish_literal_cost(const struct sg_grammar *grammar, uint32_t literal, uint32_t at) {
    const struct sg_literal *found = &grammar->literals[literal];
    const uint32_t value = found->node == SG_NONE ? 0 : grammar->nodes[found->node].bytes;
    return sg_finish_add(found->byte_count - at, value);
}

/* The cheapest of the literals low .. high from byte `at` on, the first of equals; SG_NONE if none has an end. */
uint32_t sg_finish_cheapest(const struct sg_grammar *grammar, uint32_t low, uint32_t high, uint32_t at) {
    uint32_t best = SG_NONE, best_cost = SG_NONE;
    for (; low < high; low++) {
        const uint32_t cost = sg_finish_literal_cost(grammar, low, at);
        if (cost >= best_cost) continue;
        best = low;
        best_cost = cost;
    }
    return best;
}

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
        const uint32_t best = sg_finish_cheapest(grammar, node->first, node->first + node->count, 0);
        bytes = best == SG_NONE ? SG_NONE : sg_finish_add(sg_finish_literal_cost(grammar, best, 0), 1);
    } else if (node->kind == SG_ARRAY) {
        const uint32_t item = node->min ? grammar->nodes[node->child].bytes : 0;
        if (node->min > node->max || item == SG_NONE) return SG_NONE;
        const uint64_t whole = 2 + (uint64_t)node->min * (item + 1) - (node->min > 0);
        bytes = whole > REACH_MAX ? REACH_MAX : (uint32_t)whole;
    } else {
        for (uint32_t i = 0; i < node->count; i++) {
            if (!(node->required >> i & 1)) continue;
            const uint32_t comma = bytes > 2;
            bytes = sg_finish_add(bytes, sg_finish_add(sg_finish_literal_cost(grammar, node->first + i, 0), comma));
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
        const uint32_t best = sg_finish_cheapest(grammar, frame.low, frame.high, 0);
        return best == SG_NONE ? SG_NONE : grammar->literals[best].byte_count;
    }
    if (node->kind == SG_STRING && node->pattern == SG_NONE) {
        return node->min > node->max ? SG_NONE : sg_finish_add(2, node->min);
    }
    if (node->kind == SG_STRING && !sg_string_may_close(grammar, node, &frame) &&
        !sg_string_takes(grammar, node, &frame, 0, 0x10ffff)) {
        return SG_NONE;
    }
    sg_finish_value(grammar, index, &text); /* a number without a value has no first digit */
    return text.byte_count ? text.byte_count : SG_NONE;
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
        const uint32_t best = sg_finish_cheapest(grammar, node->first, node->first + node->count, 0);
        below = grammar->nodes[grammar->literals[best].node].need;
    }
    for (uint32_t i = 0; node->kind == SG_OBJECT && i < node->count; i++) {
        const uint32_t need = grammar->nodes[grammar->literals[node->first + i].node].need;
        if (node->required >> i & 1 && need > below) below = need;
    }
    return below + 1 > SG_FRAMES_MAX ? SG_FRAMES_MAX + 1 : below + 1;
}

static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Threads that the values of this name can become in all of the choice's objects together. */
static uint32_t live_behind(const struct sg_grammar *grammar, const struct sg_node *choice,
                            const struct sg_literal *name) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < choice->count; i++) {
        const struct sg_node *object = &grammar->nodes[grammar->choices[choice->first + i]];
        if (object->kind != SG_OBJECT || !object->starts) continue;
        uint32_t value = object->child;
        for (uint32_t k = 0; name && k < object->count; k++) {
            const struct sg_literal *other = &grammar->literals[object->first + k];
            if (other->byte_count == name->byte_count && memcmp(grammar->literal_bytes + other->start,
                                                                grammar->literal_bytes + name->start,
                                                                    name->byte_count) == 0) {
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
    for (uint32_t i = 0; i < choice->count; i++) {
        live += grammar->nodes[grammar->choices[choice->first + i]].starts & SG_START_OBJECT ? 1 : 0;
    }
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
        const uint32_t cost = sg_finish_literal_cost(grammar, node->first + i, 0);
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
    case SG_ARRAY: reach = child == SG_NONE ? node->bytes : sg_finish_add(node->bytes, child + 2); break;
    case SG_OBJECT:
        reach = sg_finish_add(node->bytes, longest(grammar, node) + 16);
        if (child != SG_NONE) reach = sg_finish_add(reach, child);
        break;
    case SG_STRING:
        reach = sg_finish_add(node->min, longest_character);
        if (node->pattern != SG_NONE) {
            const uint32_t distance = grammar->patterns[node->pattern].longest_distance;
            reach = sg_finish_add(longest_character, 4 * (most(distance, node->min) + 2));
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
