/* One byte through the automaton.
 *
 * A thread is a stack of open values; the top one takes the byte, opens another on top, or ends and leaves the byte to the
 * one below. A choice becomes one thread per alternative that the byte can start; threads that have become the same are
 * one again. A byte is taken only if an end can still be reached, so that a place is never a dead end. */
#include "grammar.h"

#include "utf8.h"

enum outcome { TAKEN, AGAIN, DEAD };

struct sg_frame sg_fresh_frame(const struct sg_grammar *grammar, uint32_t node) {
    const struct sg_node *shape = &grammar->nodes[node];
    struct sg_frame frame = {.node = (uint16_t)node};
    if (shape->kind == SG_LITERALS || shape->kind == SG_CALL) {
        frame.low = shape->first;
        frame.high = shape->first + shape->count;
    }
    return frame;
}

static void push(const struct sg_grammar *grammar, struct sg_thread *thread, uint32_t node) {
    thread->frames[thread->depth++] = sg_fresh_frame(grammar, node);
}

/* Byte `at` of a literal; -1 behind its end, which sorts first. */
static int literal_byte(const struct sg_grammar *grammar, uint32_t literal, uint32_t at) {
    const struct sg_literal *found = &grammar->literals[literal];
    return at < found->byte_count ? grammar->literal_bytes[found->start + at] : -1;
}

/* The first literal of low .. high whose byte is not below `byte`. */
static uint32_t first_not_below(const struct sg_grammar *grammar, uint32_t low, uint32_t high, uint32_t at, int byte) {
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (literal_byte(grammar, middle, at) < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool sg_narrow(const struct sg_grammar *grammar, uint32_t *low, uint32_t *high, uint32_t at, uint8_t byte) {
    const uint32_t from = first_not_below(grammar, *low, *high, at, byte);
    const uint32_t to = first_not_below(grammar, from, *high, at, byte + 1);
    if (from == to) return false;
    *low = from;
    *high = to;
    return true;
}

static enum outcome step_literals(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    if (sg_narrow(grammar, &frame->low, &frame->high, frame->at, byte)) {
        frame->at++;
        return TAKEN;
    }
    if (grammar->literals[frame->low].byte_count != frame->at) return DEAD;
    thread->depth--;
    return AGAIN;
}

static enum outcome step_call(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    if (frame->phase == SG_CALL_CLOSE) {
        thread->depth--;
        return byte == '}' ? TAKEN : DEAD;
    }
    if (!sg_narrow(grammar, &frame->low, &frame->high, frame->at, byte)) return DEAD;
    frame->at++;
    const struct sg_literal literal = grammar->literals[frame->low];
    if (literal.byte_count != frame->at) return TAKEN;
    *frame = (struct sg_frame){.node = frame->node, .phase = SG_CALL_CLOSE};
    push(grammar, thread, literal.node);
    return TAKEN;
}

static enum outcome step_number(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    const struct sg_node *node = &grammar->nodes[frame->node];
    if (sg_number_step(node, frame, byte)) return TAKEN;
    if (!sg_number_may_end(node, frame)) return DEAD;
    thread->depth--;
    return AGAIN;
}

static enum outcome step_array(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    const struct sg_node *node = &grammar->nodes[frame->node];
    const bool has_room = frame->at < node->max && sg_fits(grammar, node->child, thread->depth);
    if (frame->phase == SG_PHASE_START) {
        frame->phase = SG_LIST_FIRST;
        return byte == '[' ? TAKEN : DEAD;
    }
    if (byte == ']' && frame->phase != SG_LIST_NEXT) {
        thread->depth--;
        return frame->at >= node->min ? TAKEN : DEAD;
    }
    if (!has_room) return DEAD;
    if (frame->phase == SG_LIST_AFTER) {
        frame->phase = SG_LIST_NEXT;
        return byte == ',' ? TAKEN : DEAD;
    }
    frame->phase = SG_LIST_AFTER;
    frame->at++;
    push(grammar, thread, node->child);
    return AGAIN;
}

bool sg_is_usable(const struct sg_grammar *grammar, const struct sg_frame *frame, uint32_t literal, uint32_t depth) {
    const uint32_t bit = literal - grammar->nodes[frame->node].first;
    return !(frame->set[0] >> bit & 1) && sg_fits(grammar, grammar->literals[literal].node, depth);
}

static bool any_usable(const struct sg_grammar *grammar, const struct sg_frame *frame, uint32_t low, uint32_t high,
                       uint32_t depth) {
    while (low < high) {
        if (sg_is_usable(grammar, frame, low++, depth)) return true;
    }
    return false;
}

/* A byte of a property's name, where all names are declared. */
static enum outcome step_declared_key(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    if (!sg_narrow(grammar, &frame->low, &frame->high, frame->at, byte)) return DEAD;
    if (!any_usable(grammar, frame, frame->low, frame->high, thread->depth)) return DEAD;
    frame->at++;
    const struct sg_literal literal = grammar->literals[frame->low];
    if (literal.byte_count != frame->at) return TAKEN;
    const uint64_t seen = frame->set[0] | (uint64_t)1 << (frame->low - grammar->nodes[frame->node].first);
    *frame = (struct sg_frame){.node = frame->node, .phase = SG_LIST_AFTER, .set = {seen}};
    push(grammar, thread, literal.node);
    return TAKEN;
}

/* A byte of a name that need not be declared: plain characters, no escape. The character under way stands in set[1]: its
 * first byte, its second, and how many there are. */
static enum outcome step_open_key(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    const uint8_t lead = (uint8_t)(frame->set[1] >> 16), second = (uint8_t)(frame->set[1] >> 8);
    const uint32_t place = frame->set[1] & 0xff;
    const bool is_declared = frame->low < frame->high && sg_narrow(grammar, &frame->low, &frame->high, frame->at, byte);
    if (!is_declared) frame->low = frame->high = 0;
    if (place == 0 && byte == '"') {
        if (is_declared && !sg_is_usable(grammar, frame, frame->low, thread->depth)) return DEAD;
        frame->phase = SG_COLON;
        frame->high = is_declared;
        frame->at = 0;
        return TAKEN;
    }
    frame->at = is_declared ? frame->at + 1 : 0;
    if (place == 0) {
        const uint32_t need = sg_utf8_need(byte);
        frame->set[1] = need > 1 ? (uint64_t)byte << 16 | 1 : 0;
        return need == 0 || byte < 0x20 || byte == '\\' ? DEAD : TAKEN;
    }
    const bool is_space_mark = lead == 0xe2 && second == 0x96 && byte == 0x81;
    if (!sg_utf8_continues(lead, place, byte) || is_space_mark) return DEAD;
    const bool is_whole = place + 1 == sg_utf8_need(lead);
    frame->set[1] = is_whole ? 0 : (uint64_t)lead << 16 | (uint64_t)(place == 1 ? byte : second) << 8 | (place + 1);
    return TAKEN;
}

static enum outcome step_colon(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    const struct sg_node *node = &grammar->nodes[frame->node];
    const uint32_t value = frame->high ? grammar->literals[frame->low].node : node->child;
    const uint64_t seen = frame->set[0] | (frame->high ? (uint64_t)1 << (frame->low - node->first) : 0);
    *frame = (struct sg_frame){.node = frame->node, .phase = SG_LIST_AFTER, .set = {seen}};
    push(grammar, thread, value);
    return byte == ':' ? TAKEN : DEAD;
}

static enum outcome step_object(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    const struct sg_node *node = &grammar->nodes[frame->node];
    const uint32_t depth = thread->depth, end = node->first + node->count;
    const bool is_open = sg_takes_others(grammar, node, depth);
    if (frame->phase == SG_KEY) return (is_open ? step_open_key : step_declared_key)(grammar, thread, byte);
    if (frame->phase == SG_COLON) return step_colon(grammar, thread, byte);
    if (frame->phase == SG_PHASE_START) {
        frame->phase = SG_LIST_FIRST;
        return byte == '{' ? TAKEN : DEAD;
    }
    if (byte == '}' && frame->phase != SG_LIST_NEXT) {
        thread->depth--;
        return (node->required & ~frame->set[0]) == 0 ? TAKEN : DEAD;
    }
    if (!is_open && !any_usable(grammar, frame, node->first, end, depth)) return DEAD;
    if (frame->phase == SG_LIST_AFTER) {
        frame->phase = SG_LIST_NEXT;
        return byte == ',' ? TAKEN : DEAD;
    }
    frame->phase = SG_KEY;
    frame->low = node->first;
    frame->high = end;
    frame->at = 1;
    return byte == '"' ? TAKEN : DEAD;
}

bool sg_string_takes(const struct sg_grammar *grammar, const struct sg_node *node, const struct sg_frame *frame,
                     uint32_t low, uint32_t high) {
    if (frame->at >= node->max) return false;
    if (node->pattern == SG_NONE) return true;
    const struct sg_positions next = sg_pattern_next(grammar, &grammar->patterns[node->pattern], frame, low, high,
                                                     sg_window_behind(node, frame));
    return sg_positions_any(&next);
}

bool sg_string_may_close(const struct sg_grammar *grammar, const struct sg_node *node, const struct sg_frame *frame) {
    if (frame->at < node->min) return false;
    return node->pattern == SG_NONE || sg_pattern_accepts(&grammar->patterns[node->pattern], frame);
}

static enum outcome take_character(const struct sg_grammar *grammar, const struct sg_node *node,
                                   struct sg_frame *frame, uint32_t character) {
    if (frame->at >= node->max) return DEAD;
    struct sg_positions next = {0};
    if (node->pattern != SG_NONE) {
        next = sg_pattern_next(grammar, &grammar->patterns[node->pattern], frame, character, character,
                               sg_window_behind(node, frame));
        if (!sg_positions_any(&next)) return DEAD;
    }
    *frame = (struct sg_frame){.node = frame->node, .phase = SG_STRING_BODY, .at = frame->at + 1};
    memcpy(frame->set, next.bits, sizeof frame->set);
    return TAKEN;
}

void sg_character_bounds(uint8_t lead, uint32_t place, uint32_t bits, uint32_t *low, uint32_t *high) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const uint32_t need = sg_utf8_need(lead), shift = 6 * (need - place);
    *low = bits << shift;
    *high = ((bits + 1) << shift) - 1;
    if (*low < least[need]) *low = least[need];
    if (*high > 0x10ffff) *high = 0x10ffff;
    if (lead == 0xed && *high > 0xd7ff) *high = 0xd7ff; /* surrogates; those of a second byte are refused before */
}

static enum outcome take_lead(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame,
                              uint8_t byte) {
    if (sg_utf8_need(byte) == 0) return DEAD;
    uint32_t low, high;
    frame->phase = SG_STRING_BYTES;
    frame->lead = byte;
    frame->low = sg_utf8_lead_bits(byte);
    frame->high = 1;
    sg_character_bounds(byte, 1, frame->low, &low, &high);
    return sg_string_takes(grammar, node, frame, low, high) ? TAKEN : DEAD;
}

static enum outcome take_continuation(const struct sg_grammar *grammar, const struct sg_node *node,
                                      struct sg_frame *frame, uint8_t byte) {
    if (!sg_utf8_continues(frame->lead, frame->high, byte)) return DEAD;
    frame->low = frame->low << 6 | (byte & 0x3f);
    frame->high++;
    if (frame->high == sg_utf8_need(frame->lead)) {
        return frame->low == 0x2581 ? DEAD : take_character(grammar, node, frame, frame->low);
    }
    uint32_t low, high;
    sg_character_bounds(frame->lead, frame->high, frame->low, &low, &high);
    return sg_string_takes(grammar, node, frame, low, high) ? TAKEN : DEAD;
}

static enum outcome take_backslash(const struct sg_grammar *grammar, const struct sg_node *node,
                                   struct sg_frame *frame) {
    for (uint32_t i = 0; i < SG_ESCAPE_COUNT; i++) {
        if (!sg_string_takes(grammar, node, frame, sg_escaped[i], sg_escaped[i])) continue;
        frame->phase = SG_STRING_ESCAPE;
        return TAKEN;
    }
    return DEAD;
}

static enum outcome take_escape(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame,
                                uint8_t byte) {
    const uint8_t *known = memchr(sg_escapes, byte, SG_ESCAPE_COUNT);
    if (known) return take_character(grammar, node, frame, sg_escaped[known - sg_escapes]);
    if (node->pattern != SG_NONE) return DEAD;
    if (byte == '/') return take_character(grammar, node, frame, byte);
    frame->phase = SG_STRING_HEX;
    return byte == 'u' ? TAKEN : DEAD;
}

/* A digit of \uXXXX, which may be no surrogate. */
static enum outcome take_hex(const struct sg_grammar *grammar, const struct sg_node *node, struct sg_frame *frame,
                             uint8_t byte) {
    const uint32_t letter = byte | 0x20u;
    const bool is_digit = byte >= '0' && byte <= '9';
    if (!is_digit && !(letter >= 'a' && letter <= 'f')) return DEAD;
    frame->low = frame->low << 4 | (is_digit ? byte - (uint32_t)'0' : letter - 'a' + 10);
    frame->high++;
    if (frame->high == 2 && frame->low >= 0xd8 && frame->low <= 0xdf) return DEAD;
    return frame->high == 4 ? take_character(grammar, node, frame, frame->low) : TAKEN;
}

static enum outcome step_string(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    struct sg_frame *frame = &thread->frames[thread->depth - 1];
    const struct sg_node *node = &grammar->nodes[frame->node];
    switch (frame->phase) {
    case SG_PHASE_START:
        frame->phase = SG_STRING_BODY;
        return byte == '"' ? TAKEN : DEAD;
    case SG_STRING_BYTES:
        return take_continuation(grammar, node, frame, byte);
    case SG_STRING_ESCAPE:
        return take_escape(grammar, node, frame, byte);
    case SG_STRING_HEX:
        return take_hex(grammar, node, frame, byte);
    default:
        break;
    }
    if (byte == '"') {
        thread->depth--;
        return sg_string_may_close(grammar, node, frame) ? TAKEN : DEAD;
    }
    if (byte == '\\') return take_backslash(grammar, node, frame);
    if (byte < 0x20) return DEAD;
    return byte < 0x80 ? take_character(grammar, node, frame, byte) : take_lead(grammar, node, frame, byte);
}

/* Feeds the byte to the top frame and, as values end, to those below. AGAIN: a choice must be made first. */
static enum outcome feed(const struct sg_grammar *grammar, struct sg_thread *thread, uint8_t byte) {
    enum outcome outcome = AGAIN;
    while (outcome == AGAIN) {
        if (thread->depth == 0) return DEAD;
        switch ((enum sg_node_kind)grammar->nodes[thread->frames[thread->depth - 1].node].kind) {
        case SG_CHOICE: return AGAIN;
        case SG_LITERALS: outcome = step_literals(grammar, thread, byte); break;
        case SG_STRING: outcome = step_string(grammar, thread, byte); break;
        case SG_NUMBER: outcome = step_number(grammar, thread, byte); break;
        case SG_ARRAY: outcome = step_array(grammar, thread, byte); break;
        case SG_OBJECT: outcome = step_object(grammar, thread, byte); break;
        case SG_CALL: outcome = step_call(grammar, thread, byte); break;
        }
    }
    return outcome;
}

uint8_t sg_start_of(uint8_t byte) {
    switch (byte) {
    case '"': return SG_START_STRING;
    case '{': return SG_START_OBJECT;
    case '[': return SG_START_ARRAY;
    case 't': return SG_START_TRUE;
    case 'f': return SG_START_FALSE;
    case 'n': return SG_START_NULL;
    default: return byte == '-' || (byte >= '0' && byte <= '9') ? SG_START_NUMBER : 0;
    }
}

void sg_thread_copy(struct sg_thread *to, const struct sg_thread *from) {
    to->depth = from->depth;
    memcpy(to->frames, from->frames, from->depth * sizeof *from->frames);
}

/* Keeps the last thread of the place unless another is the same. */
static void keep_last(struct sg_place *place) {
    const struct sg_thread *last = &place->threads[place->thread_count];
    for (uint32_t i = 0; i < place->thread_count; i++) {
        const struct sg_thread *other = &place->threads[i];
        if (other->depth == last->depth &&
            memcmp(other->frames, last->frames, last->depth * sizeof *last->frames) == 0) {
            return;
        }
    }
    place->thread_count++;
}

/* One thread for each alternative that the byte can start. sg_finish_prepare has seen to it that there is room. */
static void fork(const struct sg_grammar *grammar, const struct sg_thread *thread, uint8_t byte, struct sg_place *to) {
    const struct sg_node *choice = &grammar->nodes[thread->frames[thread->depth - 1].node];
    for (uint32_t i = 0; i < choice->count && to->thread_count < SG_THREADS_MAX; i++) {
        const uint16_t alternative = grammar->choices[choice->first + i];
        if (!(grammar->nodes[alternative].starts & sg_start_of(byte))) continue;
        if (!sg_fits(grammar, alternative, thread->depth - 1)) continue;
        struct sg_thread *made = &to->threads[to->thread_count];
        sg_thread_copy(made, thread);
        made->frames[made->depth - 1] = sg_fresh_frame(grammar, alternative);
        if (feed(grammar, made, byte) == TAKEN) keep_last(to);
    }
}

void sg_place_start(const struct sg_grammar *grammar, struct sg_place *place) {
    place->thread_count = 1;
    place->threads[0].depth = 0;
    push(grammar, &place->threads[0], grammar->root);
}

void sg_place_copy(struct sg_place *to, const struct sg_place *from) {
    to->thread_count = from->thread_count;
    for (uint32_t i = 0; i < from->thread_count; i++) sg_thread_copy(&to->threads[i], &from->threads[i]);
}

void sg_place_step(const struct sg_grammar *grammar, const struct sg_place *from, uint8_t byte, struct sg_place *to) {
    struct sg_thread *undecided = &to->threads[SG_THREADS_MAX];
    to->thread_count = 0;
    for (uint32_t i = 0; i < from->thread_count && to->thread_count < SG_THREADS_MAX; i++) {
        struct sg_thread *thread = &to->threads[to->thread_count];
        sg_thread_copy(thread, &from->threads[i]);
        const enum outcome outcome = feed(grammar, thread, byte);
        if (outcome == TAKEN) keep_last(to);
        if (outcome != AGAIN) continue;
        sg_thread_copy(undecided, thread);
        fork(grammar, undecided, byte, to);
    }
}

bool sg_place_is_done(const struct sg_place *place) {
    for (uint32_t i = 0; i < place->thread_count; i++) {
        if (place->threads[i].depth == 0) return true;
    }
    return false;
}
