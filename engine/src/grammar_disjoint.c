/* Whether two alternatives of a `oneOf` can both be right. */
#include "grammar_schema.h"

#define DEPTH_MAX 8u /* of the look into them */

static bool choice_is_disjoint(const struct sg_compiler *c, const struct sg_node *choice, uint16_t other,
                               uint32_t depth) {
    if (choice->first == SG_NONE) return false; /* still being compiled */
    for (uint32_t i = 0; i < choice->count; i++) {
        if (!sg_schema_are_disjoint(c, c->grammar->choices[choice->first + i], other, depth + 1)) return false;
    }
    return true;
}

/* Whether no object is one of both: one needs a name that the other has not, or both need one with other values. */
static bool objects_are_disjoint(const struct sg_compiler *c, const struct sg_node *a, const struct sg_node *b,
                                 uint32_t depth) {
    const struct sg_literal *literals = c->grammar->literals;
    const uint8_t *bytes = c->grammar->literal_bytes;
    for (uint32_t i = 0; i < a->count; i++) {
        if (!(a->required >> i & 1)) continue;
        const struct sg_literal *name = &literals[a->first + i];
        uint32_t k = 0;
        for (; k < b->count; k++) {
            const struct sg_literal *other = &literals[b->first + k];
            if (other->byte_count == name->byte_count &&
                memcmp(bytes + other->start, bytes + name->start, name->byte_count) == 0) break;
        }
        if (k == b->count && b->child == SG_NO_NODE) return true;
        if (k == b->count || !(b->required >> k & 1)) continue;
        if (sg_schema_are_disjoint(c, (uint16_t)name->node, (uint16_t)literals[b->first + k].node, depth + 1)) {
            return true;
        }
    }
    return false;
}

static bool literals_are_disjoint(const struct sg_grammar *grammar, const struct sg_node *a, const struct sg_node *b) {
    for (uint32_t i = 0; i < a->count; i++) {
        for (uint32_t k = 0; k < b->count; k++) {
            if (sg_schema_compare(grammar, a->first + i, b->first + k) == 0) return false;
        }
    }
    return true;
}

/* Whether it is certain that no value is one of both. */
bool sg_schema_are_disjoint(const struct sg_compiler *c, uint16_t a, uint16_t b, uint32_t depth) {
    const struct sg_node *x = &c->grammar->nodes[a], *y = &c->grammar->nodes[b];
    if (depth > DEPTH_MAX) return false;
    if (x->kind == SG_CHOICE) return choice_is_disjoint(c, x, b, depth);
    if (y->kind == SG_CHOICE) return choice_is_disjoint(c, y, a, depth);
    if (!(x->starts & y->starts)) return true;
    if (x->kind == SG_LITERALS && y->kind == SG_LITERALS) return literals_are_disjoint(c->grammar, x, y);
    if (x->kind != SG_OBJECT || y->kind != SG_OBJECT) return false;
    return objects_are_disjoint(c, x, y, depth) || objects_are_disjoint(c, y, x, depth);
}
