/* One node for each type that a schema allows, and one for its literals. What each keyword means says docs/grammar.md. */
#include "grammar_schema.h"

#define COUNT_MAX 65536u /* of minLength and minItems */
#define NUMBER_DIGITS_MAX 15u /* of a bounded `number`: as many as binary64 tells apart */
#define NUMBER_DECIMALS_MAX 9u

static const char type_names[][8] = {"string", "number", "integer", "boolean", "null", "object", "array"};

/* ---- Counts and types ---- */

/* A count such as minLength; `otherwise` where the keyword is absent. */
static uint32_t read_count(struct sg_compiler *c, uint32_t value, uint32_t otherwise, uint32_t limit,
                           const struct sg_trail *trail) {
    if (!value) return otherwise;
    const struct sg_json *found = &c->values[value];
    struct sg_decimal decimal;
    if (found->kind != SG_JSON_NUMBER) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    } else if (!sg_decimal_read(c->text + found->start, found->byte_count, &decimal)) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
    } else if (decimal.digits < 0 || decimal.decimals > 0) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    } else if (decimal.digits > limit) {
        if (limit == COUNT_MAX) sg_schema_fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
        return limit;
    } else {
        return (uint32_t)decimal.digits;
    }
    return otherwise;
}

uint32_t sg_schema_types(struct sg_compiler *c, uint32_t value, const struct sg_trail *trail) {
    if (!value) return ANY_TYPE;
    const bool is_list = sg_schema_kind(c, value) == SG_JSON_ARRAY;
    const uint32_t count = is_list ? c->values[value].count : 1;
    uint32_t types = 0;
    for (uint32_t i = 0; i < count; i++) { /* the texts of a list stand one behind the other */
        const uint32_t type = IN_LIST(c, value + is_list + i, type_names);
        if (type == SG_NONE) {
            sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
            return 0;
        }
        types |= 1u << type;
    }
    if (types == 0) sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    return types;
}

/* ---- One typed node each ---- */

uint16_t sg_schema_string(struct sg_compiler *c, const struct sg_keywords *k, const struct sg_trail *trail) {
    const uint16_t index = sg_schema_string_node(c, trail);
    struct sg_node *node = &c->grammar->nodes[index];
    node->min = read_count(c, k->at[MIN_LENGTH], 0, COUNT_MAX, trail);
    node->max = read_count(c, k->at[MAX_LENGTH], SG_NONE, SG_NONE - 1, trail);
    const uint32_t pattern = k->at[PATTERN];
    if (!pattern || c->status != SG_STATUS_OK) return index;
    if (sg_schema_kind(c, pattern) != SG_JSON_STRING) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, pattern);
        return index;
    }
    uint8_t *text = sg_schema_free_bytes(c);
    node->pattern = c->grammar->pattern_count;
    const uint32_t byte_count = sg_json_decode(c->text, &c->values[pattern], text);
    const int status = sg_pattern_compile(c->grammar, text, byte_count);
    if (status != SG_STATUS_OK) {
        sg_schema_fail_at(c, (enum sg_status)status, trail, pattern);
        return index;
    }
    const struct sg_pattern *made = &c->grammar->patterns[node->pattern];
    if (node->min <= made->shortest) node->min = 0; /* the pattern sees to it */
    else if (node->min > SG_LENGTHS_MAX || made->count > SG_LENGTHS_MAX + 1) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, k->at[MIN_LENGTH]);
    }
    return index;
}

/* A bound in units of 10^-decimals, rounded down; `*is_exact` tells whether it had to be. False if it cannot be read. */
static bool read_bound(struct sg_compiler *c, uint32_t value, uint32_t decimals, int64_t *bound, bool *is_exact,
                       const struct sg_trail *trail) {
    if (!value) return false;
    const struct sg_json *found = &c->values[value];
    struct sg_decimal decimal;
    if (found->kind != SG_JSON_NUMBER) { /* a Boolean was an older draft's meaning */
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value);
        return false;
    }
    if (!sg_decimal_read(c->text + found->start, found->byte_count, &decimal)) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
        return false;
    }
    *is_exact = decimal.decimals <= decimals;
    if (*is_exact) {
        const int64_t unit = sg_power_of_ten(decimals - decimal.decimals);
        const int64_t most = INT64_MAX / unit;
        if (decimal.digits >= most || decimal.digits <= -most) {
            sg_schema_fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
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
static void apply_bounds(struct sg_compiler *c, const struct sg_keywords *k, struct sg_node *node, bool is_integer,
                         const struct sg_trail *trail) {
    for (uint32_t keyword = MINIMUM; keyword <= EXCLUSIVE_MAXIMUM; keyword++) {
        int64_t bound;
        bool is_exact;
        if (!read_bound(c, k->at[keyword], node->decimals, &bound, &is_exact, trail)) continue;
        if (!is_exact && !is_integer) sg_schema_fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, k->at[keyword]);
        const bool is_exclusive = keyword >= EXCLUSIVE_MINIMUM;
        const bool is_lower = keyword == MINIMUM || keyword == EXCLUSIVE_MINIMUM;
        if (is_lower) bound += !is_exact || is_exclusive;
        else bound -= is_exact && is_exclusive;
        if (is_lower && bound > node->low) node->low = bound;
        if (!is_lower && bound < node->high) node->high = bound;
    }
}

static void apply_step(struct sg_compiler *c, uint32_t value, struct sg_node *node, bool is_integer,
                       const struct sg_trail *trail) {
    int64_t step;
    bool is_exact;
    if (!read_bound(c, value, node->decimals, &step, &is_exact, trail)) return;
    int64_t fives = 1;
    for (uint32_t i = 0; i < node->decimals; i++) fives *= 5;
    if (step <= 0 && is_exact) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    } else if (!is_exact || (!is_integer && step % fives != 0)) { /* validators divide in binary64 */
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value);
    } else {
        node->step = step;
    }
}

/* Digits before the point of the larger of two bounds; what is no number counts as 0 and is refused later. */
static uint32_t whole_digits(const struct sg_compiler *c, uint32_t a, uint32_t b) {
    uint32_t digits = 1;
    for (uint32_t i = 0; i < 2; i++) {
        const struct sg_json *value = &c->values[i ? b : a];
        struct sg_decimal decimal;
        if (value->kind != SG_JSON_NUMBER || !sg_decimal_read(c->text + value->start, value->byte_count, &decimal)) {
            continue;
        }
        int64_t whole = decimal.digits / sg_power_of_ten(decimal.decimals);
        uint32_t count = 0;
        for (whole = whole < 0 ? -whole : whole; whole > 0; whole /= 10) count++;
        if (count > digits) digits = count;
    }
    return digits;
}

uint16_t sg_schema_number(struct sg_compiler *c, const struct sg_keywords *k, bool is_integer,
                          const struct sg_trail *trail) {
    const uint16_t index = sg_schema_number_node(c, trail);
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
            sg_schema_fail_at(c, SG_STATUS_GRAMMAR_LIMIT, trail, upper ? upper : lower);
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

uint16_t sg_schema_array(struct sg_compiler *c, const struct sg_keywords *k, const struct sg_trail *trail) {
    const uint32_t items = k->at[ITEMS];
    struct sg_node node = {.kind = SG_ARRAY, .starts = SG_START_ARRAY, .child = c->any};
    node.min = read_count(c, k->at[MIN_ITEMS], 0, COUNT_MAX, trail);
    node.max = read_count(c, k->at[MAX_ITEMS], SG_NONE, SG_NONE - 1, trail);
    if (items && sg_schema_kind(c, items) == SG_JSON_ARRAY) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, items);
    }
    if (items) {
        const struct sg_trail inner = {trail, items - 1, 0, trail->depth + 1};
        node.child = sg_schema_value(c, items, &inner);
    }
    return sg_schema_node(c, node, trail);
}

/* Adds a property's `"name":`; false if it was there. */
static bool add_property(struct sg_compiler *c, struct sg_node *node, uint32_t key, uint32_t value,
                         const struct sg_trail *trail) {
    uint8_t *out = sg_schema_free_bytes(c);
    const uint32_t byte_count = sg_json_canonical(c->text, c->values, key, out);
    if (byte_count == 0) sg_schema_fail(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, key);
    if (node->child != SG_NO_NODE && memchr(out, '\\', byte_count)) {
        /* an undeclared name could be the same in another spelling */
        sg_schema_fail(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, key);
    }
    out[byte_count] = ':';
    if (node->count == SG_PROPERTIES_MAX) sg_schema_fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, key);
    sg_schema_take_room(c, byte_count + 1, trail, key);
    if (c->status != SG_STATUS_OK || !sg_schema_add_literal(c, node->first, byte_count + 1, value)) return false;
    node->count++;
    return true;
}

static void add_properties(struct sg_compiler *c, struct sg_node *node, uint32_t properties,
                           const struct sg_trail *trail) {
    if (!properties) return;
    const struct sg_trail inner = {trail, properties - 1, 0, trail->depth + 1};
    uint32_t key = properties + 1;
    for (uint32_t i = 0; i < c->values[properties].count; i++, key = c->values[key + 1].next) {
        const struct sg_trail leaf = {&inner, key, 0, trail->depth + 2};
        if (!add_property(c, node, key, sg_schema_value(c, key + 1, &leaf), &leaf)) {
            sg_schema_fail(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, &leaf, key);
        }
    }
}

/* Place of a name among the properties; their count if it is none. */
static uint32_t find_property(const struct sg_compiler *c, const struct sg_node *node, uint32_t name) {
    uint8_t *out = sg_schema_free_bytes(c);
    const uint32_t byte_count = sg_json_canonical(c->text, c->values, name, out);
    uint32_t at = 0;
    for (; at < node->count; at++) {
        const struct sg_literal *known = &c->grammar->literals[node->first + at];
        if (known->byte_count != byte_count + 1) continue;
        if (memcmp(c->grammar->literal_bytes + known->start, out, byte_count) == 0) break;
    }
    return at;
}

/* A name that is required and not declared is one of the undeclared ones, if there may be any. */
static void add_required(struct sg_compiler *c, struct sg_node *node, uint32_t required, const struct sg_trail *trail) {
    if (!required) return;
    if (sg_schema_kind(c, required) != SG_JSON_ARRAY) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, required);
    }
    const struct sg_trail inner = {trail, required - 1, 0, trail->depth + 1};
    for (uint32_t pass = 0; pass < 2; pass++) { /* all names first, since each may move the others */
        uint32_t value = required + 1;
        for (uint32_t i = 0; i < c->values[required].count && c->status == SG_STATUS_OK; i++,
             value = c->values[value].next) {
            const struct sg_trail leaf = {&inner, value, 0, trail->depth + 2};
            if (sg_schema_kind(c, value) != SG_JSON_STRING) {
                sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, required);
                return;
            }
            const uint32_t at = find_property(c, node, value);
            if (pass == 0 && at == node->count && node->child != SG_NO_NODE) {
                add_property(c, node, value, node->child, &leaf);
            }
            if (pass == 0) continue;
            if (at == node->count) sg_schema_fail(c, SG_STATUS_GRAMMAR_EMPTY, &leaf, value);
            else node->required |= (uint64_t)1 << at;
        }
    }
}

uint16_t sg_schema_object(struct sg_compiler *c, const struct sg_keywords *k, const struct sg_trail *trail) {
    struct sg_node node = {.kind = SG_OBJECT, .starts = SG_START_OBJECT, .child = SG_NO_NODE};
    const uint32_t extra = k->at[ADDITIONAL_PROPERTIES], properties = k->at[PROPERTIES];
    if (extra && sg_schema_kind(c, extra) != SG_JSON_FALSE) {
        const struct sg_trail inner = {trail, extra - 1, 0, trail->depth + 1};
        node.child = sg_schema_value(c, extra, &inner);
    }
    if (properties && sg_schema_kind(c, properties) != SG_JSON_OBJECT) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, properties);
        return 0;
    }
    uint32_t key = properties + 1; /* what lies within comes first, so that the names below stand together */
    for (uint32_t i = 0; properties && i < c->values[properties].count; i++, key = c->values[key + 1].next) {
        const struct sg_trail inner = {trail, properties - 1, 0, trail->depth + 1};
        const struct sg_trail leaf = {&inner, key, 0, trail->depth + 2};
        sg_schema_value(c, key + 1, &leaf);
    }
    node.first = c->grammar->literal_count;
    add_properties(c, &node, properties, trail);
    add_required(c, &node, k->at[REQUIRED], trail);
    return sg_schema_node(c, node, trail);
}

/* ---- Literals ---- */

static bool is_whole_number(const struct sg_compiler *c, const struct sg_json *value) {
    for (uint32_t i = 0; i < value->byte_count; i++) {
        if (strchr(".eE", c->text[value->start + i])) return false;
    }
    return true;
}

static bool has_type(const struct sg_compiler *c, uint32_t index, uint32_t types) {
    static const uint8_t type_of[] = {NULL_TYPE, BOOLEAN_TYPE, BOOLEAN_TYPE, NUMBER_TYPE, STRING_TYPE, ARRAY_TYPE,
                                      OBJECT_TYPE};
    const struct sg_json *value = &c->values[index];
    if (value->kind != SG_JSON_NUMBER) return types & type_of[value->kind];
    return (types & NUMBER_TYPE) || ((types & INTEGER_TYPE) && is_whole_number(c, value));
}

/* Whether the numbers of a literal are ones that every reader has. */
static bool has_plain_numbers(const struct sg_compiler *c, uint32_t index) {
    struct sg_decimal decimal;
    for (uint32_t i = index; i < c->values[index].next; i++) {
        const struct sg_json *value = &c->values[i];
        if (value->kind == SG_JSON_NUMBER && !sg_decimal_read(c->text + value->start, value->byte_count, &decimal)) {
            return false;
        }
    }
    return true;
}

static void add_member(struct sg_compiler *c, uint32_t first, uint32_t value, uint32_t types,
                       const struct sg_trail *trail) {
    if (!has_type(c, value, types)) return;
    const uint32_t byte_count = sg_json_canonical(c->text, c->values, value, sg_schema_free_bytes(c));
    if (byte_count == 0) sg_schema_fail(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value);
    if (!has_plain_numbers(c, value)) sg_schema_fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
    sg_schema_take_room(c, byte_count, trail, value);
    if (c->status == SG_STATUS_OK) sg_schema_add_literal(c, first, byte_count, SG_NONE);
}

uint16_t sg_schema_literals(struct sg_compiler *c, const struct sg_keywords *k, const struct sg_trail *trail) {
    const uint32_t first = c->grammar->literal_count, types = sg_schema_types(c, k->at[TYPE], trail);
    const uint32_t list = k->at[ENUM] ? k->at[ENUM] : k->at[CONST];
    const struct sg_trail inner = {trail, list - 1, 0, trail->depth + 1};
    if (k->present & ~(1u << TYPE | 1u << ENUM) && k->present & ~(1u << TYPE | 1u << CONST)) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, list); /* beside another constraint */
    }
    if (k->at[CONST]) {
        add_member(c, first, list, types, &inner);
    } else if (sg_schema_kind(c, list) != SG_JSON_ARRAY) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, list);
    } else {
        uint32_t value = list + 1;
        for (uint32_t i = 0; i < c->values[list].count; i++, value = c->values[value].next) {
            add_member(c, first, value, types, &inner);
        }
    }
    if (c->grammar->literal_count == first) sg_schema_fail_at(c, SG_STATUS_GRAMMAR_EMPTY, trail, list);
    return sg_schema_literals_node(c, first, trail);
}
