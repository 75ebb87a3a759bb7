/* The tables that schemas are compiled into, and how a refusal finds its path. */
#include "grammar_schema.h"

/* ---- Failing ---- */

static uint32_t put_path(const struct sg_compiler *c, const struct sg_trail *trail, char *path, uint32_t used) {
    if (trail->up) used = put_path(c, trail->up, path, used);
    if (used > 0 && used < SG_PATH_BYTES_MAX - 1) path[used++] = '/';
    if (trail->key != SG_NONE) {
        const struct sg_json *key = &c->values[trail->key];
        for (uint32_t i = 1; i + 1 < key->byte_count && used < SG_PATH_BYTES_MAX - 1; i++) {
            const uint8_t byte = c->text[key->start + i];
            path[used++] = byte > 0x20 && byte < 0x7f ? (char)byte : '?';
        }
        return used;
    }
    uint32_t divisor = 1;
    while (trail->index / divisor >= 10) divisor *= 10;
    for (; divisor > 0 && used < SG_PATH_BYTES_MAX - 1; divisor /= 10) {
        path[used++] = (char)('0' + trail->index / divisor % 10);
    }
    return used;
}

void sg_schema_fail(struct sg_compiler *c, enum sg_status status, const struct sg_trail *trail, uint32_t value) {
    if (c->status != SG_STATUS_OK) return;
    c->grammar->path[put_path(c, trail, c->grammar->path, 0)] = 0;
    c->status = sg_fail(c->error, status, c->grammar->path, c->values[value].start, 0, 0);
}

/* Fails at a keyword of the schema that `trail` leads to; a key stands just before its value. */
void sg_schema_fail_at(struct sg_compiler *c, enum sg_status status, const struct sg_trail *trail, uint32_t value) {
    const struct sg_trail inner = {trail, value - 1, 0, 0};
    sg_schema_fail(c, status, &inner, value);
}

/* ---- Nodes ---- */

uint16_t sg_schema_node(struct sg_compiler *c, struct sg_node node, const struct sg_trail *trail) {
    struct sg_grammar *grammar = c->grammar;
    if (grammar->node_count == c->sizes.nodes) {
        sg_schema_fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, 0);
        return 0;
    }
    node.child = node.kind == SG_ARRAY || node.kind == SG_OBJECT ? node.child : SG_NO_NODE;
    grammar->nodes[grammar->node_count] = node;
    return (uint16_t)grammar->node_count++;
}

void sg_schema_add_choice(struct sg_compiler *c, uint16_t choice, uint16_t alternative, const struct sg_trail *trail) {
    struct sg_grammar *grammar = c->grammar;
    struct sg_node *node = &grammar->nodes[choice];
    if (grammar->choice_count == c->sizes.choices) {
        sg_schema_fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, 0);
        return;
    }
    if (node->first == SG_NONE) node->first = grammar->choice_count;
    grammar->choices[grammar->choice_count++] = alternative;
    node->count++;
}

static uint32_t commit(struct sg_compiler *c, uint32_t byte_count) {
    const uint32_t start = c->grammar->literal_byte_count;
    c->grammar->literal_byte_count += byte_count;
    return start;
}

uint8_t *sg_schema_free_bytes(const struct sg_compiler *c) {
    return c->grammar->literal_bytes + c->grammar->literal_byte_count;
}

int sg_schema_compare(const struct sg_grammar *grammar, uint32_t a, uint32_t b) {
    const struct sg_literal *x = &grammar->literals[a], *y = &grammar->literals[b];
    const uint32_t common = x->byte_count < y->byte_count ? x->byte_count : y->byte_count;
    const int order = memcmp(grammar->literal_bytes + x->start, grammar->literal_bytes + y->start, common);
    return order ? order : (x->byte_count > y->byte_count) - (x->byte_count < y->byte_count);
}

/* Adds the bytes at the end of the pool to the literals from `first` on, in order; false if the text is there already. */
bool sg_schema_add_literal(struct sg_compiler *c, uint32_t first, uint32_t byte_count, uint32_t node) {
    struct sg_grammar *grammar = c->grammar;
    const uint32_t last = grammar->literal_count;
    const struct sg_literal made = {commit(c, byte_count), byte_count, node};
    grammar->literals[last] = made;
    uint32_t low = first, high = last;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = sg_schema_compare(grammar, middle, last);
        if (order == 0) return false;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    memmove(grammar->literals + low + 1, grammar->literals + low, (last - low) * sizeof *grammar->literals);
    grammar->literals[low] = made;
    grammar->literal_count++;
    return true;
}

/* A reference may lead into a literal, which is then written once more. Without that, literals of schemas are no longer
 * than the text; so they must be, and `literal_bytes` has room for them and any one value besides. */
void sg_schema_take_room(struct sg_compiler *c, uint32_t byte_count, const struct sg_trail *trail, uint32_t value) {
    if (byte_count > c->literal_room) sg_schema_fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
    else c->literal_room -= byte_count;
}

uint16_t sg_schema_literals_node(struct sg_compiler *c, uint32_t first, const struct sg_trail *trail) {
    const struct sg_grammar *grammar = c->grammar;
    struct sg_node node = {.kind = SG_LITERALS, .first = first, .count = grammar->literal_count - first};
    for (uint32_t i = 0; i < node.count; i++) {
        node.starts |= sg_start_of(grammar->literal_bytes[grammar->literals[first + i].start]);
    }
    return sg_schema_node(c, node, trail);
}

static void add_word(struct sg_compiler *c, uint32_t first, const char *word) {
    const uint32_t length = (uint32_t)strlen(word);
    memcpy(sg_schema_free_bytes(c), word, length);
    sg_schema_add_literal(c, first, length, SG_NONE);
}

uint16_t sg_schema_choice(struct sg_compiler *c, const struct sg_trail *trail) {
    return sg_schema_node(c, (struct sg_node){.kind = SG_CHOICE, .first = SG_NONE}, trail);
}

uint16_t sg_schema_string_node(struct sg_compiler *c, const struct sg_trail *trail) {
    const struct sg_node node = {.kind = SG_STRING, .starts = SG_START_STRING, .max = SG_NONE, .pattern = SG_NONE};
    return sg_schema_node(c, node, trail);
}

uint16_t sg_schema_number_node(struct sg_compiler *c, const struct sg_trail *trail) {
    return sg_schema_node(c, (struct sg_node){.kind = SG_NUMBER, .starts = SG_START_NUMBER, .digits = SG_DIGITS_MAX,
                                        .decimals = SG_DIGITS_MAX, .step = 1}, trail);
}

/* The nodes that need no schema: any value, true or false, null, and none at all. */
void sg_schema_common(struct sg_compiler *c, const struct sg_trail *trail) {
    uint32_t first = c->grammar->literal_count;
    add_word(c, first, "true");
    add_word(c, first, "false");
    c->boolean = sg_schema_literals_node(c, first, trail);
    first = c->grammar->literal_count;
    add_word(c, first, "null");
    c->null = sg_schema_literals_node(c, first, trail);
    c->nothing = sg_schema_choice(c, trail);
    c->any = sg_schema_choice(c, trail);
    const struct sg_node array = {.kind = SG_ARRAY, .starts = SG_START_ARRAY, .child = c->any, .max = SG_NONE};
    const struct sg_node object = {.kind = SG_OBJECT, .starts = SG_START_OBJECT, .child = c->any};
    const uint16_t kinds[] = {sg_schema_string_node(c, trail), sg_schema_number_node(c, trail), c->boolean, c->null,
                              sg_schema_node(c, array, trail), sg_schema_node(c, object, trail)};
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; i++) sg_schema_add_choice(c, c->any, kinds[i], trail);
}

/* Place of the text in a table of names, or SG_NONE. */
uint32_t sg_schema_in_list(const struct sg_compiler *c, uint32_t value, const char *names, uint32_t count,
                           uint32_t width) {
    for (uint32_t i = 0; i < count; i++) {
        if (sg_json_is(c->text, &c->values[value], names + i * width)) return i;
    }
    return SG_NONE;
}
