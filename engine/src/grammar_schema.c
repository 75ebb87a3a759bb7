/* From declared tools to the automaton's nodes.
 *
 * Every schema becomes a choice of typed nodes; a reference is a choice that names another. At the end choices are
 * written out flat, so that one step never has to look through two. What a keyword means, and what is refused, says
 * docs/grammar.md; a refusal leaves the path of the keyword in `grammar->path`. */
#include "grammar.h"

#define SCHEMA_DEPTH_MAX 96u
#define COUNT_MAX 65536u /* of minLength and minItems */
#define NUMBER_DIGITS_MAX 15u /* of a bounded `number`: as many as binary64 tells apart */
#define NUMBER_DECIMALS_MAX 9u

enum keyword {
    TYPE, ENUM, CONST, MINIMUM, MAXIMUM, EXCLUSIVE_MINIMUM, EXCLUSIVE_MAXIMUM, MULTIPLE_OF, MIN_LENGTH, MAX_LENGTH,
    PATTERN, PROPERTIES, REQUIRED, ADDITIONAL_PROPERTIES, ITEMS, MIN_ITEMS, MAX_ITEMS, ANY_OF, ONE_OF, ALL_OF, REF,
    NULLABLE, KEYWORD_COUNT
};
static const char keyword_names[][22] = {
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "anyOf",
    "oneOf", "allOf", "$ref", "nullable"};
static const char annotation_names[][18] = {
    "title", "description", "default", "examples", "example", "format", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "$id", "$defs", "definitions", "contentMediaType", "contentEncoding"};
static const char tool_annotation_names[][18] = {"title", "annotations", "examples", "strict"};

enum type { STRING_TYPE = 1, NUMBER_TYPE = 2, INTEGER_TYPE = 4, BOOLEAN_TYPE = 8, NULL_TYPE = 16, OBJECT_TYPE = 32,
            ARRAY_TYPE = 64, ANY_TYPE = 127 };
static const char type_names[][8] = {"string", "number", "integer", "boolean", "null", "object", "array"};

/* Where in the tools' text the work is: a chain of keys, the innermost first. */
struct trail {
    const struct trail *up;
    uint32_t key; /* the value that is a key's text, or SG_NONE: `index` */
    uint32_t index, depth;
};

/* The values of the keywords that a schema has, by keyword; 0 (which is the list of tools) where it has none. */
struct keywords {
    uint32_t at[KEYWORD_COUNT];
    uint32_t present; /* a bit each, without NULLABLE */
};

struct compiler {
    struct sg_grammar *grammar;
    const uint8_t *text;
    const struct sg_json *values;
    uint16_t *node_of_value;
    struct sg_schema_sizes sizes;
    struct sg_error *error;
    uint32_t root; /* value of the present tool's parameters */
    uint16_t any, boolean, null, nothing;
    int status;
};

static uint16_t compile(struct compiler *c, uint32_t value, const struct trail *trail);

/* ---- Failing ---- */

static uint32_t put_path(const struct compiler *c, const struct trail *trail, char *path, uint32_t used) {
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

static void fail(struct compiler *c, enum sg_status status, const struct trail *trail, uint32_t value) {
    if (c->status != SG_STATUS_OK) return;
    c->grammar->path[put_path(c, trail, c->grammar->path, 0)] = 0;
    c->status = sg_fail(c->error, status, c->grammar->path, c->values[value].start, 0, 0);
}

/* Fails at a keyword of the schema that `trail` leads to; a key stands just before its value. */
static void fail_at(struct compiler *c, enum sg_status status, const struct trail *trail, uint32_t value) {
    const struct trail inner = {trail, value - 1, 0, 0};
    fail(c, status, &inner, value);
}

/* ---- Nodes ---- */

static uint16_t new_node(struct compiler *c, struct sg_node node, const struct trail *trail) {
    struct sg_grammar *grammar = c->grammar;
    if (grammar->node_count == c->sizes.nodes || grammar->node_count == SG_NODES_MAX) {
        fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, 0);
        return 0;
    }
    node.child = node.kind == SG_ARRAY || node.kind == SG_OBJECT ? node.child : SG_NO_NODE;
    grammar->nodes[grammar->node_count] = node;
    return (uint16_t)grammar->node_count++;
}

static void add_choice(struct compiler *c, uint16_t choice, uint16_t alternative, const struct trail *trail) {
    struct sg_grammar *grammar = c->grammar;
    struct sg_node *node = &grammar->nodes[choice];
    if (grammar->choice_count == c->sizes.choices) {
        fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, 0);
        return;
    }
    if (node->first == SG_NONE) node->first = grammar->choice_count;
    grammar->choices[grammar->choice_count++] = alternative;
    node->count++;
}

static uint32_t commit(struct compiler *c, uint32_t byte_count) {
    const uint32_t start = c->grammar->literal_byte_count;
    c->grammar->literal_byte_count += byte_count;
    return start;
}

static uint8_t *free_bytes(const struct compiler *c) { return c->grammar->literal_bytes + c->grammar->literal_byte_count; }

static int compare(const struct sg_grammar *grammar, uint32_t a, uint32_t b) {
    const struct sg_literal *x = &grammar->literals[a], *y = &grammar->literals[b];
    const uint32_t common = x->byte_count < y->byte_count ? x->byte_count : y->byte_count;
    const int order = memcmp(grammar->literal_bytes + x->start, grammar->literal_bytes + y->start, common);
    return order ? order : (x->byte_count > y->byte_count) - (x->byte_count < y->byte_count);
}

/* Adds the bytes at the end of the pool to the literals from `first` on, in order; false if the text is there already. */
static bool add_literal(struct compiler *c, uint32_t first, uint32_t byte_count, uint32_t node) {
    struct sg_grammar *grammar = c->grammar;
    const uint32_t last = grammar->literal_count;
    const struct sg_literal made = {commit(c, byte_count), byte_count, node};
    grammar->literals[last] = made;
    uint32_t low = first, high = last;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = compare(grammar, middle, last);
        if (order == 0) return false;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    memmove(grammar->literals + low + 1, grammar->literals + low, (last - low) * sizeof *grammar->literals);
    grammar->literals[low] = made;
    grammar->literal_count++;
    return true;
}

static uint8_t start_of_literal(uint8_t byte) {
    switch (byte) {
    case '"': return SG_START_STRING;
    case '{': return SG_START_OBJECT;
    case '[': return SG_START_ARRAY;
    case 't': return SG_START_TRUE;
    case 'f': return SG_START_FALSE;
    case 'n': return SG_START_NULL;
    default: return SG_START_NUMBER;
    }
}

static uint16_t literals_node(struct compiler *c, uint32_t first, const struct trail *trail) {
    const struct sg_grammar *grammar = c->grammar;
    struct sg_node node = {.kind = SG_LITERALS, .first = first, .count = grammar->literal_count - first};
    for (uint32_t i = 0; i < node.count; i++) {
        node.starts |= start_of_literal(grammar->literal_bytes[grammar->literals[first + i].start]);
    }
    return new_node(c, node, trail);
}

static void add_word(struct compiler *c, uint32_t first, const char *word) {
    const uint32_t length = (uint32_t)strlen(word);
    memcpy(free_bytes(c), word, length);
    add_literal(c, first, length, SG_NONE);
}

static uint16_t new_choice(struct compiler *c, const struct trail *trail) {
    return new_node(c, (struct sg_node){.kind = SG_CHOICE, .first = SG_NONE}, trail);
}

static uint16_t string_node(struct compiler *c, const struct trail *trail) {
    return new_node(c, (struct sg_node){.kind = SG_STRING, .starts = SG_START_STRING, .max = SG_NONE, .pattern = SG_NONE}, trail);
}

static uint16_t number_node(struct compiler *c, const struct trail *trail) {
    return new_node(c, (struct sg_node){.kind = SG_NUMBER, .starts = SG_START_NUMBER, .digits = SG_DIGITS_MAX,
                                        .decimals = SG_DIGITS_MAX, .step = 1}, trail);
}

/* The nodes that need no schema: any value, true or false, null, and none at all. */
static void make_common(struct compiler *c, const struct trail *trail) {
    uint32_t first = c->grammar->literal_count;
    add_word(c, first, "true");
    add_word(c, first, "false");
    c->boolean = literals_node(c, first, trail);
    first = c->grammar->literal_count;
    add_word(c, first, "null");
    c->null = literals_node(c, first, trail);
    c->nothing = new_choice(c, trail);
    c->any = new_choice(c, trail);
    const struct sg_node array = {.kind = SG_ARRAY, .starts = SG_START_ARRAY, .child = c->any, .max = SG_NONE};
    const struct sg_node object = {.kind = SG_OBJECT, .starts = SG_START_OBJECT, .child = c->any};
    const uint16_t kinds[] = {string_node(c, trail), number_node(c, trail), c->boolean, c->null,
                              new_node(c, array, trail), new_node(c, object, trail)};
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; i++) add_choice(c, c->any, kinds[i], trail);
}

/* ---- Reading a schema ---- */

#define IN_LIST(c, value, names) in_list(c, value, names[0], sizeof names / sizeof *names, sizeof *names)

/* Place of the text in a table of names, or SG_NONE. */
static uint32_t in_list(const struct compiler *c, uint32_t value, const char *names, uint32_t count, uint32_t width) {
    for (uint32_t i = 0; i < count; i++) {
        if (sg_json_is(c->text, &c->values[value], names + i * width)) return i;
    }
    return SG_NONE;
}

static bool is_extension(const struct compiler *c, uint32_t key) {
    const struct sg_json *value = &c->values[key];
    return value->byte_count > 4 && memcmp(c->text + value->start + 1, "x-", 2) == 0;
}

static struct keywords read_keywords(struct compiler *c, uint32_t schema, const struct trail *trail) {
    struct keywords found = {0};
    uint32_t key = schema + 1;
    for (uint32_t i = 0; i < c->values[schema].count; i++, key = c->values[key + 1].next) {
        const uint32_t keyword = IN_LIST(c, key, keyword_names);
        if (keyword == SG_NONE) {
            if (IN_LIST(c, key, annotation_names) != SG_NONE || is_extension(c, key)) continue;
            fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, key + 1);
            continue;
        }
        found.at[keyword] = key + 1;
        if (keyword != NULLABLE) found.present |= 1u << keyword;
    }
    return found;
}

static uint32_t kind_of(const struct compiler *c, uint32_t value) { return c->values[value].kind; }

/* A count such as minLength; `otherwise` where the keyword is absent. */
static uint32_t read_count(struct compiler *c, uint32_t value, uint32_t otherwise, uint32_t limit, const struct trail *trail) {
    if (!value) return otherwise;
    const struct sg_json *found = &c->values[value];
    struct sg_decimal decimal;
    if (found->kind != SG_JSON_NUMBER) {
        fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    } else if (!sg_decimal_read(c->text + found->start, found->byte_count, &decimal)) {
        fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
    } else if (decimal.digits < 0 || decimal.decimals > 0) {
        fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    } else if (decimal.digits > limit) {
        if (limit == COUNT_MAX) fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
        return limit;
    } else {
        return (uint32_t)decimal.digits;
    }
    return otherwise;
}

static uint32_t read_types(struct compiler *c, uint32_t value, const struct trail *trail) {
    if (!value) return ANY_TYPE;
    const bool is_list = kind_of(c, value) == SG_JSON_ARRAY;
    const uint32_t count = is_list ? c->values[value].count : 1;
    uint32_t types = 0;
    for (uint32_t i = 0; i < count; i++) { /* the texts of a list stand one behind the other */
        const uint32_t type = IN_LIST(c, value + is_list + i, type_names);
        if (type == SG_NONE) {
            fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
            return 0;
        }
        types |= 1u << type;
    }
    if (types == 0) fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    return types;
}

/* ---- One typed node each ---- */

static uint16_t compile_string(struct compiler *c, const struct keywords *k, const struct trail *trail) {
    const uint16_t index = string_node(c, trail);
    struct sg_node *node = &c->grammar->nodes[index];
    node->min = read_count(c, k->at[MIN_LENGTH], 0, COUNT_MAX, trail);
    node->max = read_count(c, k->at[MAX_LENGTH], SG_NONE, SG_NONE - 1, trail);
    const uint32_t pattern = k->at[PATTERN];
    if (!pattern || c->status != SG_STATUS_OK) return index;
    if (kind_of(c, pattern) != SG_JSON_STRING) {
        fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, pattern);
        return index;
    }
    uint8_t *text = free_bytes(c);
    node->pattern = c->grammar->pattern_count;
    const uint32_t byte_count = sg_json_decode(c->text, &c->values[pattern], text);
    const int status = sg_pattern_compile(c->grammar, text, byte_count);
    if (status != SG_STATUS_OK) {
        fail_at(c, (enum sg_status)status, trail, pattern);
        return index;
    }
    const struct sg_pattern *made = &c->grammar->patterns[node->pattern];
    if (node->min <= made->shortest) node->min = 0; /* the pattern sees to it */
    else if (node->min > SG_LENGTHS_MAX || made->count > SG_LENGTHS_MAX + 1) {
        fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, k->at[MIN_LENGTH]);
    }
    return index;
}

/* A bound in units of 10^-decimals, rounded down; `*is_exact` tells whether it had to be. False if it cannot be read. */
static bool read_bound(struct compiler *c, uint32_t value, uint32_t decimals, int64_t *bound, bool *is_exact,
                       const struct trail *trail) {
    if (!value) return false;
    const struct sg_json *found = &c->values[value];
    struct sg_decimal decimal;
    if (found->kind != SG_JSON_NUMBER) { /* a Boolean was an older draft's meaning */
        fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value);
        return false;
    }
    if (!sg_decimal_read(c->text + found->start, found->byte_count, &decimal)) {
        fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
        return false;
    }
    *is_exact = decimal.decimals <= decimals;
    if (*is_exact) {
        const int64_t unit = sg_power_of_ten(decimals - decimal.decimals);
        const int64_t most = INT64_MAX / unit;
        if (decimal.digits >= most || decimal.digits <= -most) {
            fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
            return false;
        }
        *bound = decimal.digits * unit;
        return true;
    }
    const int64_t unit = sg_power_of_ten(decimal.decimals - decimals);
    *bound = decimal.digits / unit - (decimal.digits % unit < 0);
    return true;
}

/* Narrows the node to what the bounds allow. A `number` must be able to write each of them. */
static void apply_bounds(struct compiler *c, const struct keywords *k, struct sg_node *node, bool is_integer,
                         const struct trail *trail) {
    for (uint32_t keyword = MINIMUM; keyword <= EXCLUSIVE_MAXIMUM; keyword++) {
        int64_t bound;
        bool is_exact;
        if (!read_bound(c, k->at[keyword], node->decimals, &bound, &is_exact, trail)) continue;
        if (!is_exact && !is_integer) fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, k->at[keyword]);
        const bool is_exclusive = keyword >= EXCLUSIVE_MINIMUM;
        const bool is_lower = keyword == MINIMUM || keyword == EXCLUSIVE_MINIMUM;
        if (is_lower) bound += !is_exact || is_exclusive;
        else bound -= is_exact && is_exclusive;
        if (is_lower && bound > node->low) node->low = bound;
        if (!is_lower && bound < node->high) node->high = bound;
    }
}

static void apply_step(struct compiler *c, uint32_t value, struct sg_node *node, bool is_integer, const struct trail *trail) {
    int64_t step;
    bool is_exact;
    if (!read_bound(c, value, node->decimals, &step, &is_exact, trail)) return;
    int64_t fives = 1;
    for (uint32_t i = 0; i < node->decimals; i++) fives *= 5;
    if (step <= 0 && is_exact) {
        fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    } else if (!is_exact || (!is_integer && step % fives != 0)) { /* validators divide in binary64 */
        fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value);
    } else {
        node->step = step;
    }
}

/* Digits before the point of the larger of two bounds; what is no number counts as 0 and is refused later. */
static uint32_t whole_digits(const struct compiler *c, uint32_t a, uint32_t b) {
    uint32_t digits = 1;
    for (uint32_t i = 0; i < 2; i++) {
        const struct sg_json *value = &c->values[i ? b : a];
        struct sg_decimal decimal;
        if (value->kind != SG_JSON_NUMBER || !sg_decimal_read(c->text + value->start, value->byte_count, &decimal)) continue;
        int64_t whole = decimal.digits / sg_power_of_ten(decimal.decimals);
        uint32_t count = 0;
        for (whole = whole < 0 ? -whole : whole; whole > 0; whole /= 10) count++;
        if (count > digits) digits = count;
    }
    return digits;
}

static uint16_t compile_number(struct compiler *c, const struct keywords *k, bool is_integer, const struct trail *trail) {
    const uint16_t index = number_node(c, trail);
    struct sg_node *node = &c->grammar->nodes[index];
    const uint32_t lower = k->at[MINIMUM] ? k->at[MINIMUM] : k->at[EXCLUSIVE_MINIMUM];
    const uint32_t upper = k->at[MAXIMUM] ? k->at[MAXIMUM] : k->at[EXCLUSIVE_MAXIMUM];
    if (!is_integer && !lower && !upper && !k->at[MULTIPLE_OF]) return index;
    node->is_bounded = 1;
    node->decimals = 0;
    if (!is_integer) {
        uint32_t digits = whole_digits(c, lower, upper);
        if ((!lower || !upper) && digits < NUMBER_DECIMALS_MAX) digits = NUMBER_DECIMALS_MAX;
        if (digits > NUMBER_DIGITS_MAX) {
            fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, upper ? upper : lower);
            return index;
        }
        const uint32_t decimals = NUMBER_DIGITS_MAX - digits;
        node->digits = (uint8_t)digits;
        node->decimals = (uint8_t)(decimals < NUMBER_DECIMALS_MAX ? decimals : NUMBER_DECIMALS_MAX);
    }
    node->high = sg_power_of_ten(node->digits + node->decimals) - 1;
    node->low = -node->high;
    apply_bounds(c, k, node, is_integer, trail);
    apply_step(c, k->at[MULTIPLE_OF], node, is_integer, trail);
    return index;
}

static uint16_t compile_array(struct compiler *c, const struct keywords *k, const struct trail *trail) {
    const uint32_t items = k->at[ITEMS];
    struct sg_node node = {.kind = SG_ARRAY, .starts = SG_START_ARRAY, .child = c->any};
    node.min = read_count(c, k->at[MIN_ITEMS], 0, COUNT_MAX, trail);
    node.max = read_count(c, k->at[MAX_ITEMS], SG_NONE, SG_NONE - 1, trail);
    if (items && kind_of(c, items) == SG_JSON_ARRAY) fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, items);
    if (items) {
        const struct trail inner = {trail, items - 1, 0, trail->depth + 1};
        node.child = compile(c, items, &inner);
    }
    return new_node(c, node, trail);
}

/* Adds a property's `"name":`; false if it was there. */
static bool add_property(struct compiler *c, struct sg_node *node, uint32_t key, uint32_t value, const struct trail *trail) {
    uint8_t *out = free_bytes(c);
    const uint32_t byte_count = sg_json_canonical(c->text, c->values, key, out);
    if (byte_count == 0) fail(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, key);
    if (node->child != SG_NO_NODE && memchr(out, '\\', byte_count)) {
        fail(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, key); /* an undeclared name could be the same in another spelling */
    }
    out[byte_count] = ':';
    if (node->count == SG_PROPERTIES_MAX) fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, key);
    if (c->status != SG_STATUS_OK || !add_literal(c, node->first, byte_count + 1, value)) return false;
    node->count++;
    return true;
}

static void add_properties(struct compiler *c, struct sg_node *node, uint32_t properties, const struct trail *trail) {
    if (!properties) return;
    const struct trail inner = {trail, properties - 1, 0, trail->depth + 1};
    uint32_t key = properties + 1;
    for (uint32_t i = 0; i < c->values[properties].count; i++, key = c->values[key + 1].next) {
        const struct trail leaf = {&inner, key, 0, trail->depth + 2};
        if (!add_property(c, node, key, compile(c, key + 1, &leaf), &leaf)) fail(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, &leaf, key);
    }
}

/* A name that is required and not declared is one of the undeclared ones, if there may be any. */
static void add_required(struct compiler *c, struct sg_node *node, uint32_t required, const struct trail *trail) {
    if (!required) return;
    if (kind_of(c, required) != SG_JSON_ARRAY) fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, required);
    const struct trail inner = {trail, required - 1, 0, trail->depth + 1};
    for (uint32_t pass = 0; pass < 2; pass++) { /* all names first, since each may move the others */
        uint32_t value = required + 1;
        for (uint32_t i = 0; i < c->values[required].count && c->status == SG_STATUS_OK; i++, value = c->values[value].next) {
            const struct trail leaf = {&inner, value, 0, trail->depth + 2};
            if (kind_of(c, value) != SG_JSON_STRING) {
                fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, required);
                return;
            }
            if (pass == 0 && node->child != SG_NO_NODE) {
                add_property(c, node, value, node->child, &leaf);
                continue;
            }
            if (pass == 0) continue;
            uint8_t *out = free_bytes(c);
            const uint32_t byte_count = sg_json_canonical(c->text, c->values, value, out);
            uint32_t at = 0;
            for (; at < node->count; at++) {
                const struct sg_literal *known = &c->grammar->literals[node->first + at];
                if (known->byte_count != byte_count + 1) continue;
                if (memcmp(c->grammar->literal_bytes + known->start, out, byte_count) == 0) break;
            }
            if (at == node->count) fail(c, SG_STATUS_GRAMMAR_EMPTY, &leaf, value);
            else node->required |= (uint64_t)1 << at;
        }
    }
}

static uint16_t compile_object(struct compiler *c, const struct keywords *k, const struct trail *trail) {
    struct sg_node node = {.kind = SG_OBJECT, .starts = SG_START_OBJECT, .child = SG_NO_NODE};
    const uint32_t extra = k->at[ADDITIONAL_PROPERTIES], properties = k->at[PROPERTIES];
    if (extra && kind_of(c, extra) != SG_JSON_FALSE) {
        const struct trail inner = {trail, extra - 1, 0, trail->depth + 1};
        node.child = compile(c, extra, &inner);
    }
    if (properties && kind_of(c, properties) != SG_JSON_OBJECT) {
        fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, properties);
        return 0;
    }
    uint32_t key = properties + 1; /* what lies within comes first, so that the names below stand together */
    for (uint32_t i = 0; properties && i < c->values[properties].count; i++, key = c->values[key + 1].next) {
        const struct trail inner = {trail, properties - 1, 0, trail->depth + 1};
        const struct trail leaf = {&inner, key, 0, trail->depth + 2};
        compile(c, key + 1, &leaf);
    }
    node.first = c->grammar->literal_count;
    add_properties(c, &node, properties, trail);
    add_required(c, &node, k->at[REQUIRED], trail);
    return new_node(c, node, trail);
}

/* ---- Literals ---- */

static bool is_whole_number(const struct compiler *c, const struct sg_json *value) {
    for (uint32_t i = 0; i < value->byte_count; i++) {
        if (strchr(".eE", c->text[value->start + i])) return false;
    }
    return true;
}

static bool has_type(const struct compiler *c, uint32_t index, uint32_t types) {
    static const uint8_t type_of[] = {NULL_TYPE, BOOLEAN_TYPE, BOOLEAN_TYPE, NUMBER_TYPE, STRING_TYPE, ARRAY_TYPE, OBJECT_TYPE};
    const struct sg_json *value = &c->values[index];
    if (value->kind != SG_JSON_NUMBER) return types & type_of[value->kind];
    return (types & NUMBER_TYPE) || ((types & INTEGER_TYPE) && is_whole_number(c, value));
}

/* Whether the numbers of a literal are ones that every reader has. */
static bool has_plain_numbers(const struct compiler *c, uint32_t index) {
    struct sg_decimal decimal;
    for (uint32_t i = index; i < c->values[index].next; i++) {
        const struct sg_json *value = &c->values[i];
        if (value->kind == SG_JSON_NUMBER && !sg_decimal_read(c->text + value->start, value->byte_count, &decimal)) return false;
    }
    return true;
}

static void add_member(struct compiler *c, uint32_t first, uint32_t value, uint32_t types, const struct trail *trail) {
    if (!has_type(c, value, types)) return;
    const uint32_t byte_count = sg_json_canonical(c->text, c->values, value, free_bytes(c));
    if (byte_count == 0) fail(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value);
    if (!has_plain_numbers(c, value)) fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
    if (c->status == SG_STATUS_OK) add_literal(c, first, byte_count, SG_NONE);
}

static uint16_t compile_literals(struct compiler *c, const struct keywords *k, const struct trail *trail) {
    const uint32_t first = c->grammar->literal_count, types = read_types(c, k->at[TYPE], trail);
    const uint32_t list = k->at[ENUM] ? k->at[ENUM] : k->at[CONST];
    const struct trail inner = {trail, list - 1, 0, trail->depth + 1};
    if (k->present & ~(1u << TYPE | 1u << ENUM) && k->present & ~(1u << TYPE | 1u << CONST)) {
        fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, list); /* beside another constraint */
    }
    if (k->at[CONST]) {
        add_member(c, first, list, types, &inner);
    } else if (kind_of(c, list) != SG_JSON_ARRAY) {
        fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, list);
    } else {
        uint32_t value = list + 1;
        for (uint32_t i = 0; i < c->values[list].count; i++, value = c->values[value].next) {
            add_member(c, first, value, types, &inner);
        }
    }
    if (c->grammar->literal_count == first) fail_at(c, SG_STATUS_GRAMMAR_EMPTY, trail, list);
    return literals_node(c, first, trail);
}

/* ---- Alternatives ---- */

static bool are_disjoint(const struct compiler *c, uint16_t a, uint16_t b, uint32_t depth);

static bool choice_is_disjoint(const struct compiler *c, const struct sg_node *choice, uint16_t other, uint32_t depth) {
    if (choice->first == SG_NONE) return false; /* still being compiled */
    for (uint32_t i = 0; i < choice->count; i++) {
        if (!are_disjoint(c, c->grammar->choices[choice->first + i], other, depth + 1)) return false;
    }
    return true;
}

/* Whether no object is one of both: one needs a name that the other has not, or both need one with other values. */
static bool objects_are_disjoint(const struct compiler *c, const struct sg_node *a, const struct sg_node *b, uint32_t depth) {
    const struct sg_literal *literals = c->grammar->literals;
    const uint8_t *bytes = c->grammar->literal_bytes;
    for (uint32_t i = 0; i < a->count; i++) {
        if (!(a->required >> i & 1)) continue;
        const struct sg_literal *name = &literals[a->first + i];
        uint32_t k = 0;
        for (; k < b->count; k++) {
            const struct sg_literal *other = &literals[b->first + k];
            if (other->byte_count == name->byte_count && memcmp(bytes + other->start, bytes + name->start, name->byte_count) == 0) break;
        }
        if (k == b->count && b->child == SG_NO_NODE) return true;
        if (k == b->count || !(b->required >> k & 1)) continue;
        if (are_disjoint(c, (uint16_t)name->node, (uint16_t)literals[b->first + k].node, depth + 1)) return true;
    }
    return false;
}

static bool literals_are_disjoint(const struct sg_grammar *grammar, const struct sg_node *a, const struct sg_node *b) {
    for (uint32_t i = 0; i < a->count; i++) {
        for (uint32_t k = 0; k < b->count; k++) {
            if (compare(grammar, a->first + i, b->first + k) == 0) return false;
        }
    }
    return true;
}

/* Whether it is certain that no value is one of both. */
static bool are_disjoint(const struct compiler *c, uint16_t a, uint16_t b, uint32_t depth) {
    const struct sg_node *x = &c->grammar->nodes[a], *y = &c->grammar->nodes[b];
    if (depth > 8) return false;
    if (x->kind == SG_CHOICE) return choice_is_disjoint(c, x, b, depth);
    if (y->kind == SG_CHOICE) return choice_is_disjoint(c, y, a, depth);
    if (!(x->starts & y->starts)) return true;
    if (x->kind == SG_LITERALS && y->kind == SG_LITERALS) return literals_are_disjoint(c->grammar, x, y);
    if (x->kind != SG_OBJECT || y->kind != SG_OBJECT) return false;
    return objects_are_disjoint(c, x, y, depth) || objects_are_disjoint(c, y, x, depth);
}

static uint16_t compile_element(struct compiler *c, uint32_t value, uint32_t i, const struct trail *list) {
    const struct trail leaf = {list, SG_NONE, i, list->depth + 1};
    return compile(c, value, &leaf);
}

static void compile_alternatives(struct compiler *c, uint16_t choice, uint32_t list, bool is_exclusive, const struct trail *trail) {
    const struct trail inner = {trail, list - 1, 0, trail->depth + 1};
    if (kind_of(c, list) != SG_JSON_ARRAY || c->values[list].count == 0) {
        fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, list);
        return;
    }
    const uint32_t count = c->values[list].count;
    uint32_t value = list + 1;
    for (uint32_t i = 0; i < count; i++, value = c->values[value].next) compile_element(c, value, i, &inner);
    value = list + 1; /* again, and now nothing comes between them */
    for (uint32_t i = 0; i < count && c->status == SG_STATUS_OK; i++, value = c->values[value].next) {
        const uint16_t alternative = compile_element(c, value, i, &inner);
        uint32_t earlier = list + 1;
        for (uint32_t k = 0; k < i && is_exclusive; k++, earlier = c->values[earlier].next) {
            if (are_disjoint(c, compile_element(c, earlier, k, &inner), alternative, 0)) continue;
            fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, list);
            return;
        }
        add_choice(c, choice, alternative, trail);
    }
}

/* The value that `#/a/b` names within the tool's parameters, or 0. */
static uint32_t resolve(const struct compiler *c, uint32_t reference) {
    const struct sg_json *value = &c->values[reference];
    if (value->kind != SG_JSON_STRING) return 0;
    const uint8_t *at = c->text + value->start + 1, *end = c->text + value->start + value->byte_count - 1;
    if (at == end || *at++ != '#') return 0;
    uint32_t found = c->root;
    while (at < end) {
        if (*at++ != '/' || kind_of(c, found) != SG_JSON_OBJECT) return 0;
        const uint8_t *stop = memchr(at, '/', (size_t)(end - at));
        const uint32_t length = (uint32_t)((stop ? stop : end) - at);
        if (memchr(at, '~', length) || memchr(at, '%', length)) return 0;
        uint32_t key = found + 1, left = c->values[found].count;
        for (; left > 0; left--, key = c->values[key + 1].next) {
            const struct sg_json *name = &c->values[key];
            if (name->byte_count == length + 2 && memcmp(c->text + name->start + 1, at, length) == 0) break;
        }
        if (left == 0) return 0;
        found = key + 1;
        at += length;
    }
    return found;
}

static void compile_types(struct compiler *c, uint16_t choice, const struct keywords *k, const struct trail *trail) {
    const uint32_t types = read_types(c, k->at[TYPE], trail);
    uint16_t made[7];
    uint32_t count = 0;
    if (types & STRING_TYPE) made[count++] = compile_string(c, k, trail);
    if (types & NUMBER_TYPE) made[count++] = compile_number(c, k, false, trail);
    else if (types & INTEGER_TYPE) made[count++] = compile_number(c, k, true, trail);
    if (types & BOOLEAN_TYPE) made[count++] = c->boolean;
    if (types & NULL_TYPE) made[count++] = c->null;
    if (types & OBJECT_TYPE) made[count++] = compile_object(c, k, trail);
    if (types & ARRAY_TYPE) made[count++] = compile_array(c, k, trail);
    for (uint32_t i = 0; i < count; i++) add_choice(c, choice, made[i], trail);
}

/* The keyword that must stand alone, or KEYWORD_COUNT. */
static uint32_t lone_keyword(const struct keywords *k) {
    static const uint8_t lone[] = {REF, ALL_OF, ANY_OF, ONE_OF};
    for (uint32_t i = 0; i < sizeof lone; i++) {
        if (k->at[lone[i]]) return lone[i];
    }
    return KEYWORD_COUNT;
}

static void compile_lone(struct compiler *c, uint16_t choice, uint32_t keyword, const struct keywords *k, const struct trail *trail) {
    const uint32_t value = k->at[keyword];
    const struct trail inner = {trail, value - 1, 0, trail->depth + 1};
    if (k->present != (1u << keyword)) {
        fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value); /* beside another constraint */
    } else if (keyword == REF) {
        const uint32_t target = resolve(c, value);
        if (!target) fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
        else add_choice(c, choice, compile(c, target, &inner), trail);
    } else if (keyword == ALL_OF && (kind_of(c, value) != SG_JSON_ARRAY || c->values[value].count != 1)) {
        fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value);
    } else {
        compile_alternatives(c, choice, value, keyword == ONE_OF, trail);
    }
}

static uint16_t compile(struct compiler *c, uint32_t value, const struct trail *trail) {
    const uint32_t kind = kind_of(c, value);
    if (c->status != SG_STATUS_OK) return c->nothing;
    if (kind == SG_JSON_TRUE) return c->any;
    if (kind == SG_JSON_FALSE) return c->nothing;
    if (kind != SG_JSON_OBJECT) fail(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    if (trail->depth > SCHEMA_DEPTH_MAX) fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
    if (c->status != SG_STATUS_OK) return c->nothing;
    if (c->node_of_value[value] != SG_NO_NODE) return c->node_of_value[value];
    const struct keywords k = read_keywords(c, value, trail);
    const bool is_nullable = k.at[NULLABLE] && kind_of(c, k.at[NULLABLE]) == SG_JSON_TRUE;
    if (k.present == 0 || c->status != SG_STATUS_OK) return c->node_of_value[value] = c->any;
    const uint16_t choice = c->node_of_value[value] = new_choice(c, trail);
    const uint32_t lone = lone_keyword(&k);
    if (lone != KEYWORD_COUNT) compile_lone(c, choice, lone, &k, trail);
    else if (k.at[ENUM] || k.at[CONST]) add_choice(c, choice, compile_literals(c, &k, trail), trail);
    else compile_types(c, choice, &k, trail);
    if (is_nullable) add_choice(c, choice, c->null, trail);
    return choice;
}

/* ---- Tools ---- */

/* The value of a tool's member, or 0. */
static uint32_t member(const struct compiler *c, uint32_t tool, const char *name) {
    uint32_t key = tool + 1;
    for (uint32_t i = 0; i < c->values[tool].count; i++, key = c->values[key + 1].next) {
        if (sg_json_is(c->text, &c->values[key], name)) return key + 1;
    }
    return 0;
}

static void check_members(struct compiler *c, uint32_t tool, const struct trail *trail) {
    uint32_t key = tool + 1;
    for (uint32_t i = 0; i < c->values[tool].count; i++, key = c->values[key + 1].next) {
        const struct sg_json *name = &c->values[key];
        if (sg_json_is(c->text, name, "name") || sg_json_is(c->text, name, "description")) continue;
        if (sg_json_is(c->text, name, "parameters") || is_extension(c, key)) continue;
        if (IN_LIST(c, key, tool_annotation_names) == SG_NONE) fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, key + 1);
    }
}

static uint16_t compile_parameters(struct compiler *c, uint32_t tool, const struct trail *trail) {
    const uint32_t parameters = member(c, tool, "parameters");
    if (!parameters) {
        const struct sg_node none = {.kind = SG_OBJECT, .starts = SG_START_OBJECT, .child = SG_NO_NODE};
        return new_node(c, none, trail);
    }
    c->root = parameters;
    const struct trail inner = {trail, parameters - 1, 0, 1};
    return compile(c, parameters, &inner);
}

/* Trail of a tool: its name if it has one, else its place. */
static struct trail tool_trail(const struct compiler *c, uint32_t tool, uint32_t place) {
    const uint32_t name = kind_of(c, tool) == SG_JSON_OBJECT ? member(c, tool, "name") : 0;
    const bool is_named = name && kind_of(c, name) == SG_JSON_STRING && c->values[name].byte_count > 2;
    return (struct trail){NULL, is_named ? name : SG_NONE, place, 0};
}

static void compile_tool(struct compiler *c, uint32_t tool, uint32_t place, bool is_pass_for_names, uint32_t first) {
    const struct trail trail = tool_trail(c, tool, place);
    if (trail.key == SG_NONE) fail(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, &trail, tool);
    if (c->status != SG_STATUS_OK) return;
    if (!is_pass_for_names) {
        check_members(c, tool, &trail);
        c->node_of_value[tool] = compile_parameters(c, tool, &trail);
        return;
    }
    static const char head[] = "{\"name\":", tail[] = ",\"arguments\":";
    uint8_t *out = free_bytes(c);
    memcpy(out, head, sizeof head - 1);
    const uint32_t name = sg_json_canonical(c->text, c->values, trail.key, out + sizeof head - 1);
    memcpy(out + sizeof head - 1 + name, tail, sizeof tail - 1);
    if (name == 0) fail(c, SG_STATUS_GRAMMAR_UNSUPPORTED, &trail, trail.key);
    const uint32_t byte_count = (uint32_t)(sizeof head + sizeof tail - 2) + name;
    if (!add_literal(c, first, byte_count, c->node_of_value[tool])) fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, &trail, trail.key);
}

static void compile_tools(struct compiler *c) {
    const struct trail nowhere = {NULL, SG_NONE, 0, 0};
    if (kind_of(c, 0) != SG_JSON_ARRAY) {
        c->status = sg_fail(c->error, SG_STATUS_GRAMMAR_BAD_SCHEMA, "tools", 0, 0, 0);
        return;
    }
    make_common(c, &nowhere);
    uint32_t first = 0;
    for (int pass = 0; pass < 2; pass++) { /* the heads of the calls stand together */
        uint32_t tool = 1;
        first = c->grammar->literal_count;
        for (uint32_t i = 0; i < c->values[0].count; i++, tool = c->values[tool].next) compile_tool(c, tool, i, pass == 1, first);
    }
    const struct sg_node call = {.kind = SG_CALL, .starts = SG_START_OBJECT, .first = first,
                                 .count = c->grammar->literal_count - first};
    const struct sg_node calls = {.kind = SG_ARRAY, .starts = SG_START_ARRAY, .max = SG_NONE, .child = new_node(c, call, &nowhere)};
    c->grammar->root = new_node(c, calls, &nowhere);
}

/* ---- Choices, flat ---- */

static bool holds(const uint16_t *list, uint32_t count, uint16_t node) {
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] == node) return true;
    }
    return false;
}

/* Writes the choice's typed nodes to the end of the pool, each once; `max` and `min` keep where. */
static bool flatten(struct compiler *c, struct sg_node *choice) {
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

static void flatten_all(struct compiler *c) {
    struct sg_grammar *grammar = c->grammar;
    const struct trail nowhere = {NULL, SG_NONE, 0, 0};
    const uint32_t node_count = grammar->node_count;
    for (uint32_t i = 0; i < node_count; i++) {
        if (grammar->nodes[i].kind == SG_CHOICE && !flatten(c, &grammar->nodes[i])) {
            fail(c, SG_STATUS_GRAMMAR_LIMIT, &nowhere, 0);
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
        const uint16_t own = new_choice(c, &nowhere);
        for (uint32_t k = 0; k < shared.count; k++) add_choice(c, own, grammar->choices[shared.first + k], &nowhere);
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

static void fail_tool(struct compiler *c, enum sg_status status, const struct sg_literal *head) {
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
static void check_tools(struct compiler *c) {
    const struct sg_grammar *grammar = c->grammar;
    const int prepared = sg_finish_prepare(c->grammar);
    const struct sg_node *call = &grammar->nodes[grammar->nodes[grammar->root].child];
    for (uint32_t i = 0; i < call->count && c->status == SG_STATUS_OK; i++) {
        const struct sg_literal *head = &grammar->literals[call->first + i];
        const struct sg_node *node = &grammar->nodes[head->node];
        if (node->bytes == SG_NONE) fail_tool(c, SG_STATUS_GRAMMAR_EMPTY, head);
        else if (node->live > SG_THREADS_MAX || node->need + 2u > SG_FRAMES_MAX) fail_tool(c, SG_STATUS_GRAMMAR_LIMIT, head);
    }
    if (c->status == SG_STATUS_OK && prepared != SG_STATUS_OK) {
        c->status = sg_fail(c->error, SG_STATUS_GRAMMAR_LIMIT, "tools", 0, 0, SG_THREADS_MAX);
    }
}

struct sg_schema_sizes sg_schema_sizes(const struct sg_json_counts *counts, size_t text_bytes) {
    return (struct sg_schema_sizes){
        .nodes = 10 * counts->objects + 16,
        .choices = 16 * counts->objects + 4 * counts->values + 64,
        .literals = 2 * counts->values + 16,
        .literal_bytes = (uint32_t)(2 * text_bytes) + counts->strings + 48 * counts->objects + 64,
    };
}

int sg_schema_compile(struct sg_grammar *grammar, const uint8_t *text, const struct sg_json *values,
                      const struct sg_json_counts *counts, uint16_t *node_of_value, struct sg_error *error) {
    struct compiler c = {.grammar = grammar, .text = text, .values = values, .node_of_value = node_of_value, .error = error};
    c.sizes = sg_schema_sizes(counts, values[0].start + values[0].byte_count);
    memset(node_of_value, 0xff, counts->values * sizeof *node_of_value);
    compile_tools(&c);
    if (c.status == SG_STATUS_OK) flatten_all(&c);
    if (c.status == SG_STATUS_OK) check_tools(&c);
    return c.status;
}
