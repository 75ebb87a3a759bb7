/* What may come next, told from the open values alone: bytes that are worth a step, and characters that need none. */
#include "grammar.h"

static void add(struct sg_bytes *bytes, uint8_t byte) { bytes->bits[byte / 64] |= (uint64_t)1 << byte % 64; }

static void add_all(struct sg_bytes *bytes, const char *text) {
    for (; *text; text++) add(bytes, (uint8_t)*text);
}

/* Bytes that a value can start with. */
static void add_starts(const struct sg_grammar *grammar, uint32_t index, struct sg_bytes *bytes) {
    const struct sg_node *node = &grammar->nodes[index];
    uint32_t starts = node->starts;
    for (uint32_t i = 0; node->kind == SG_CHOICE && i < node->count; i++) {
        starts |= grammar->nodes[grammar->choices[node->first + i]].starts;
    }
    for (uint32_t byte = 0; byte < 128; byte++) {
        if (sg_start_of((uint8_t)byte) & starts) add(bytes, (uint8_t)byte);
    }
}

/* The next bytes of the literals that still fit; true if one of them may have ended. */
static bool add_literals(const struct sg_grammar *grammar, const struct sg_frame *frame, struct sg_bytes *bytes) {
    bool has_ended = false;
    for (uint32_t i = frame->low; i < frame->high; i++) {
        const struct sg_literal *literal = &grammar->literals[i];
        if (frame->at < literal->byte_count) add(bytes, grammar->literal_bytes[literal->start + frame->at]);
        else has_ended = true;
    }
    return has_ended;
}

enum expectation { THIS, BELOW_TOO, ANYTHING };

static enum expectation expect(const struct sg_grammar *grammar, const struct sg_frame *frame, uint32_t depth,
                               struct sg_bytes *bytes) {
    const struct sg_node *node = &grammar->nodes[frame->node];
    switch ((enum sg_node_kind)node->kind) {
    case SG_CHOICE:
        add_starts(grammar, frame->node, bytes);
        return THIS;
    case SG_LITERALS:
        return add_literals(grammar, frame, bytes) ? BELOW_TOO : THIS;
    case SG_STRING:
        if (frame->phase != SG_PHASE_START) return ANYTHING;
        add(bytes, '"');
        return THIS;
    case SG_NUMBER:
        add_all(bytes, "0123456789.-+eE");
        return BELOW_TOO;
    case SG_ARRAY:
        add_all(bytes, "[],");
        add_starts(grammar, node->child, bytes);
        return THIS;
    case SG_OBJECT:
        if (frame->phase != SG_KEY) add_all(bytes, "{}\",:");
        else if (sg_takes_others(grammar, node, depth)) return ANYTHING;
        else add_literals(grammar, frame, bytes);
        return THIS;
    case SG_CALL:
        add(bytes, '}');
        add_literals(grammar, frame, bytes);
        return THIS;
    }
    return ANYTHING;
}

bool sg_place_expects(const struct sg_grammar *grammar, const struct sg_place *place, struct sg_bytes *bytes) {
    *bytes = (struct sg_bytes){0};
    for (uint32_t i = 0; i < place->thread_count; i++) {
        const struct sg_thread *thread = &place->threads[i];
        enum expectation found = BELOW_TOO;
        for (uint32_t depth = thread->depth; depth > 0 && found == BELOW_TOO; depth--) {
            found = expect(grammar, &thread->frames[depth - 1], depth, bytes);
            if (found == ANYTHING) return false;
        }
    }
    return true;
}

uint32_t sg_plain_room(const struct sg_grammar *grammar, const struct sg_thread *thread) {
    if (thread->depth == 0) return 0;
    const struct sg_frame *frame = &thread->frames[thread->depth - 1];
    const struct sg_node *node = &grammar->nodes[frame->node];
    if (node->kind == SG_STRING) {
        return frame->phase == SG_STRING_BODY && node->pattern == SG_NONE ? node->max - frame->at : 0;
    }
    if (node->kind != SG_OBJECT || frame->phase != SG_KEY || !sg_takes_others(grammar, node, thread->depth)) return 0;
    const bool is_undeclared = frame->low >= frame->high, is_between_characters = (frame->set[1] & 0xff) == 0;
    return is_undeclared && is_between_characters ? SG_NONE : 0;
}

void sg_plain_add(const struct sg_grammar *grammar, struct sg_thread *thread) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    if (grammar->nodes[frame->node].kind == SG_STRING) frame->at++;
}
