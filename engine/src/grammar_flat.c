/* The end of compiling: choices without choices in them, and a call for every tool. */
#include "grammar_schema.h"

static bool holds(const uint16_t *list, uint32_t count, uint16_t node) {
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] == node) return true;
    }
    return false;
}

/* Writes the choice's typed nodes to the end of the pool, each once; `max` and `min` keep where. */
static bool flatten(struct sg_compiler *c, struct sg_node *choice) {
    struct sg_grammar *grammar = c->grammar;
    uint16_t *list = grammar->choices + grammar->choice_count;
    const uint32_t room = c->sizes.choices - grammar->choice_count;
    uint32_t count = 0;
    const struct sg_node *from = choice;
    for (uint32_t next = 0;;) {
        for (uint32_t i = 0; i < from->count; i++) {
            const uint16_t alternative = grammar->choices[from->first + i];
            if (holds(list, count, alternative)) continue;
            if (count == room) return false;
            list[count++] = alternative;
        }
        while (next < count && grammar->nodes[list[next]].kind != SG_CHOICE) next++;
        if (next == count) break;
        from = &grammar->nodes[list[next++]];
    }
    choice->min = grammar->choice_count;
    for (uint32_t i = 0; i < count; i++) {
        if (grammar->nodes[list[i]].kind != SG_CHOICE) grammar->choices[grammar->choice_count++] = list[i];
    }
    choice->max = grammar->choice_count - choice->min;
    return true;
}

/* A choice of one is that one. */
static uint16_t resolved(const struct sg_grammar *grammar, uint16_t node) {
    const struct sg_node *found = &grammar->nodes[node];
    return found->kind == SG_CHOICE && found->count == 1 ? grammar->choices[found->first] : node;
}

/* Leaves only the objects among a tool's parameters. */
static void keep_objects(struct sg_grammar *grammar, struct sg_node *choice) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < choice->count; i++) {
        const uint16_t alternative = grammar->choices[choice->first + i];
        if (grammar->nodes[alternative].kind == SG_OBJECT) grammar->choices[choice->first + kept++] = alternative;
    }
    choice->count = kept;
}

void sg_schema_flatten(struct sg_compiler *c) {
    struct sg_grammar *grammar = c->grammar;
    const struct sg_trail nowhere = {NULL, SG_NONE, 0, 0};
    const uint32_t node_count = grammar->node_count;
    for (uint32_t i = 0; i < node_count; i++) {
        if (grammar->nodes[i].kind == SG_CHOICE && !flatten(c, &grammar->nodes[i])) {
            sg_schema_fail(c, SG_STATUS_GRAMMAR_LIMIT, &nowhere, 0);
            return;
        }
    }
    for (uint32_t i = 0; i < node_count; i++) {
        struct sg_node *node = &grammar->nodes[i];
        if (node->kind != SG_CHOICE) continue;
        node->first = node->min;
        node->count = node->max;
    }
    const struct sg_node *call = &grammar->nodes[grammar->nodes[grammar->root].child];
    for (uint32_t i = 0; i < call->count && c->status == SG_STATUS_OK; i++) { /* others may use the same schema */
        struct sg_literal *head = &grammar->literals[call->first + i];
        if (grammar->nodes[head->node].kind != SG_CHOICE) continue;
        const struct sg_node shared = grammar->nodes[head->node];
        const uint16_t own = sg_schema_choice(c, &nowhere);
        for (uint32_t k = 0; k < shared.count; k++) {
            sg_schema_add_choice(c, own, grammar->choices[shared.first + k], &nowhere);
        }
        keep_objects(grammar, &grammar->nodes[own]);
        head->node = own;
    }
    for (uint32_t i = 0; i < grammar->node_count; i++) {
        struct sg_node *node = &grammar->nodes[i];
        if (node->child != SG_NO_NODE) node->child = resolved(grammar, node->child);
    }
    for (uint32_t i = 0; i < grammar->literal_count; i++) {
        struct sg_literal *literal = &grammar->literals[i];
        if (literal->node != SG_NONE) literal->node = resolved(grammar, (uint16_t)literal->node);
    }
}

static void fail_tool(struct sg_compiler *c, enum sg_status status, const struct sg_literal *head) {
    static const char before[] = "{\"name\":\"", behind[] = "\",\"arguments\":";
    const uint8_t *name = c->grammar->literal_bytes + head->start + sizeof before - 1;
    uint32_t used = 0;
    for (; used < head->byte_count - (sizeof before + sizeof behind - 2) && used < SG_PATH_BYTES_MAX - 1; used++) {
        c->grammar->path[used] = name[used] > 0x20 && name[used] < 0x7f ? (char)name[used] : '?';
    }
    c->grammar->path[used] = 0;
    c->status = sg_fail(c->error, status, c->grammar->path, 0, 0, 0);
}

/* Each tool must have a call, and one that the automaton has room for. */
void sg_schema_check(struct sg_compiler *c) {
    const struct sg_grammar *grammar = c->grammar;
    const int prepared = sg_finish_prepare(c->grammar);
    const struct sg_node *call = &grammar->nodes[grammar->nodes[grammar->root].child];
    for (uint32_t i = 0; i < call->count && c->status == SG_STATUS_OK; i++) {
        const struct sg_literal *head = &grammar->literals[call->first + i];
        const struct sg_node *node = &grammar->nodes[head->node];
        if (node->bytes == SG_NONE) fail_tool(c, SG_STATUS_GRAMMAR_EMPTY, head);
        else if (node->live > SG_THREADS_MAX || node->need + 2u > SG_FRAMES_MAX) {
            fail_tool(c, SG_STATUS_GRAMMAR_LIMIT, head);
        }
    }
    if (c->status == SG_STATUS_OK && prepared != SG_STATUS_OK) {
        c->status = sg_fail(c->error, SG_STATUS_GRAMMAR_LIMIT, "tools", 0, 0, SG_THREADS_MAX);
    }
}
