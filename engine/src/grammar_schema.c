/* From declared tools to the automaton's nodes.
 *
 * Every schema becomes a choice of typed nodes; a reference is a choice that names another. At the end choices are
 * written out flat, so that one step never has to look through two. What a keyword means, and what is refused, says
 * docs/grammar.md; a refusal leaves the path of the keyword in `grammar->path`. */
#include "grammar_schema.h"

#define SCHEMA_DEPTH_MAX 96u

static const char keyword_names[][22] = {
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "anyOf",
    "oneOf", "allOf", "$ref", "nullable"};
static const char annotation_names[][18] = {
    "title", "description", "default", "examples", "example", "format", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "$id", "$defs", "definitions", "contentMediaType", "contentEncoding"};
static const char tool_annotation_names[][18] = {"title", "annotations", "examples", "strict"};

/* ---- Reading a schema ---- */

static bool is_extension(const struct sg_compiler *c, uint32_t key) {
    const struct sg_json *value = &c->values[key];
    return value->byte_count > 4 && memcmp(c->text + value->start + 1, "x-", 2) == 0;
}

static struct sg_keywords read_keywords(struct sg_compiler *c, uint32_t schema, const struct sg_trail *trail) {
    struct sg_keywords found = {0};
    uint32_t key = schema + 1;
    for (uint32_t i = 0; i < c->values[schema].count; i++, key = c->values[key + 1].next) {
        const uint32_t keyword = IN_LIST(c, key, keyword_names);
        if (keyword == SG_NONE) {
            if (IN_LIST(c, key, annotation_names) != SG_NONE || is_extension(c, key)) continue;
            sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, key + 1);
            continue;
        }
        found.at[keyword] = key + 1;
        if (keyword != NULLABLE) found.present |= 1u << keyword;
    }
    return found;
}

/* ---- Alternatives ---- */

static uint16_t compile_element(struct sg_compiler *c, uint32_t value, uint32_t i, const struct sg_trail *list) {
    const struct sg_trail leaf = {list, SG_NONE, i, list->depth + 1};
    return sg_schema_value(c, value, &leaf);
}

static void compile_alternatives(struct sg_compiler *c, uint16_t choice, uint32_t list, bool is_exclusive,
                                 const struct sg_trail *trail) {
    const struct sg_trail inner = {trail, list - 1, 0, trail->depth + 1};
    if (sg_schema_kind(c, list) != SG_JSON_ARRAY || c->values[list].count == 0) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, list);
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
            if (sg_schema_are_disjoint(c, compile_element(c, earlier, k, &inner), alternative, 0)) continue;
            sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, list);
            return;
        }
        sg_schema_add_choice(c, choice, alternative, trail);
    }
}

/* The value that `#/a/b` names within the tool's parameters, or 0. */
static uint32_t resolve(const struct sg_compiler *c, uint32_t reference) {
    const struct sg_json *value = &c->values[reference];
    if (value->kind != SG_JSON_STRING) return 0;
    const uint8_t *at = c->text + value->start + 1, *end = c->text + value->start + value->byte_count - 1;
    if (at == end || *at++ != '#') return 0;
    uint32_t found = c->root;
    while (at < end) {
        if (*at++ != '/' || sg_schema_kind(c, found) != SG_JSON_OBJECT) return 0;
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

static void compile_types(struct sg_compiler *c, uint16_t choice, const struct sg_keywords *k,
                          const struct sg_trail *trail) {
    const uint32_t types = sg_schema_types(c, k->at[TYPE], trail);
    uint16_t made[7];
    uint32_t count = 0;
    if (types & STRING_TYPE) made[count++] = sg_schema_string(c, k, trail);
    if (types & NUMBER_TYPE) made[count++] = sg_schema_number(c, k, false, trail);
    else if (types & INTEGER_TYPE) made[count++] = sg_schema_number(c, k, true, trail);
    if (types & BOOLEAN_TYPE) made[count++] = c->boolean;
    if (types & NULL_TYPE) made[count++] = c->null;
    if (types & OBJECT_TYPE) made[count++] = sg_schema_object(c, k, trail);
    if (types & ARRAY_TYPE) made[count++] = sg_schema_array(c, k, trail);
    for (uint32_t i = 0; i < count; i++) sg_schema_add_choice(c, choice, made[i], trail);
}

/* The keyword that must stand alone, or KEYWORD_COUNT. */
static uint32_t lone_keyword(const struct sg_keywords *k) {
    static const uint8_t lone[] = {REF, ALL_OF, ANY_OF, ONE_OF};
    for (uint32_t i = 0; i < sizeof lone; i++) {
        if (k->at[lone[i]]) return lone[i];
    }
    return KEYWORD_COUNT;
}

static void compile_lone(struct sg_compiler *c, uint16_t choice, uint32_t keyword, const struct sg_keywords *k,
                         const struct sg_trail *trail) {
    const uint32_t value = k->at[keyword];
    const struct sg_trail inner = {trail, value - 1, 0, trail->depth + 1};
    if (k->present != (1u << keyword)) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value); /* beside another constraint */
    } else if (keyword == REF) {
        const uint32_t target = resolve(c, value);
        if (!target) sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
        else sg_schema_add_choice(c, choice, sg_schema_value(c, target, &inner), trail);
    } else if (keyword == ALL_OF && (sg_schema_kind(c, value) != SG_JSON_ARRAY || c->values[value].count != 1)) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, value);
    } else {
        compile_alternatives(c, choice, value, keyword == ONE_OF, trail);
    }
}

uint16_t sg_schema_value(struct sg_compiler *c, uint32_t value, const struct sg_trail *trail) {
    const uint32_t kind = sg_schema_kind(c, value);
    if (c->status != SG_STATUS_OK) return c->nothing;
    if (kind == SG_JSON_TRUE) return c->any;
    if (kind == SG_JSON_FALSE) return c->nothing;
    if (kind != SG_JSON_OBJECT) sg_schema_fail(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, trail, value);
    if (trail->depth > SCHEMA_DEPTH_MAX) sg_schema_fail(c, SG_STATUS_GRAMMAR_LIMIT, trail, value);
    if (c->status != SG_STATUS_OK) return c->nothing;
    if (c->node_of_value[value] != SG_NO_NODE) return c->node_of_value[value];
    const struct sg_keywords k = read_keywords(c, value, trail);
    const bool is_nullable = k.at[NULLABLE] && sg_schema_kind(c, k.at[NULLABLE]) == SG_JSON_TRUE;
    if (k.present == 0 || c->status != SG_STATUS_OK) return c->node_of_value[value] = c->any;
    const uint16_t choice = c->node_of_value[value] = sg_schema_choice(c, trail);
    const uint32_t lone = lone_keyword(&k);
    if (lone != KEYWORD_COUNT) compile_lone(c, choice, lone, &k, trail);
    else if (k.at[ENUM] || k.at[CONST]) sg_schema_add_choice(c, choice, sg_schema_literals(c, &k, trail), trail);
    else compile_types(c, choice, &k, trail);
    if (is_nullable) sg_schema_add_choice(c, choice, c->null, trail);
    return choice;
}

/* ---- Tools ---- */

/* The value of a tool's member, or 0. */
static uint32_t member(const struct sg_compiler *c, uint32_t tool, const char *name) {
    uint32_t key = tool + 1;
    for (uint32_t i = 0; i < c->values[tool].count; i++, key = c->values[key + 1].next) {
        if (sg_json_is(c->text, &c->values[key], name)) return key + 1;
    }
    return 0;
}

static void check_members(struct sg_compiler *c, uint32_t tool, const struct sg_trail *trail) {
    uint32_t key = tool + 1;
    for (uint32_t i = 0; i < c->values[tool].count; i++, key = c->values[key + 1].next) {
        const struct sg_json *name = &c->values[key];
        if (sg_json_is(c->text, name, "name") || sg_json_is(c->text, name, "description")) continue;
        if (sg_json_is(c->text, name, "parameters") || is_extension(c, key)) continue;
        if (IN_LIST(c, key, tool_annotation_names) == SG_NONE) {
            sg_schema_fail_at(c, SG_STATUS_GRAMMAR_UNSUPPORTED, trail, key + 1);
        }
    }
}

static uint16_t compile_parameters(struct sg_compiler *c, uint32_t tool, const struct sg_trail *trail) {
    const uint32_t parameters = member(c, tool, "parameters");
    if (!parameters) {
        const struct sg_node none = {.kind = SG_OBJECT, .starts = SG_START_OBJECT, .child = SG_NO_NODE};
        return sg_schema_node(c, none, trail);
    }
    c->root = parameters;
    const struct sg_trail inner = {trail, parameters - 1, 0, 1};
    return sg_schema_value(c, parameters, &inner);
}

/* Trail of a tool: its name if it has one, else its place. */
static struct sg_trail tool_trail(const struct sg_compiler *c, uint32_t tool, uint32_t place) {
    const uint32_t name = sg_schema_kind(c, tool) == SG_JSON_OBJECT ? member(c, tool, "name") : 0;
    const bool is_named = name && sg_schema_kind(c, name) == SG_JSON_STRING && c->values[name].byte_count > 2;
    return (struct sg_trail){NULL, is_named ? name : SG_NONE, place, 0};
}

static void compile_tool(struct sg_compiler *c, uint32_t tool, uint32_t place, bool is_pass_for_names, uint32_t first) {
    const struct sg_trail trail = tool_trail(c, tool, place);
    if (trail.key == SG_NONE) sg_schema_fail(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, &trail, tool);
    if (c->status != SG_STATUS_OK) return;
    if (!is_pass_for_names) {
        check_members(c, tool, &trail);
        c->node_of_value[tool] = compile_parameters(c, tool, &trail);
        return;
    }
    static const char head[] = "{\"name\":", tail[] = ",\"arguments\":";
    uint8_t *out = sg_schema_free_bytes(c);
    memcpy(out, head, sizeof head - 1);
    const uint32_t name = sg_json_canonical(c->text, c->values, trail.key, out + sizeof head - 1);
    memcpy(out + sizeof head - 1 + name, tail, sizeof tail - 1);
    if (name == 0) sg_schema_fail(c, SG_STATUS_GRAMMAR_UNSUPPORTED, &trail, trail.key);
    const uint32_t byte_count = (uint32_t)(sizeof head + sizeof tail - 2) + name;
    if (!sg_schema_add_literal(c, first, byte_count, c->node_of_value[tool])) {
        sg_schema_fail_at(c, SG_STATUS_GRAMMAR_BAD_SCHEMA, &trail, trail.key);
    }
}

static void compile_tools(struct sg_compiler *c) {
    const struct sg_trail nowhere = {NULL, SG_NONE, 0, 0};
    if (sg_schema_kind(c, 0) != SG_JSON_ARRAY) {
        c->status = sg_fail(c->error, SG_STATUS_GRAMMAR_BAD_SCHEMA, "tools", 0, 0, 0);
        return;
    }
    sg_schema_common(c, &nowhere);
    uint32_t first = 0;
    for (int pass = 0; pass < 2; pass++) { /* the heads of the calls stand together */
        uint32_t tool = 1;
        first = c->grammar->literal_count;
        for (uint32_t i = 0; i < c->values[0].count; i++, tool = c->values[tool].next) {
            compile_tool(c, tool, i, pass == 1, first);
        }
    }
    const struct sg_node call = {.kind = SG_CALL, .starts = SG_START_OBJECT, .first = first,
                                 .count = c->grammar->literal_count - first};
    const struct sg_node calls = {.kind = SG_ARRAY, .starts = SG_START_ARRAY, .max = SG_NONE,
                                  .child = sg_schema_node(c, call, &nowhere)};
    c->grammar->root = sg_schema_node(c, calls, &nowhere);
}

struct sg_schema_sizes sg_schema_sizes(const struct sg_json_counts *counts) {
    const uint32_t nodes = 10 * counts->objects + 16;
    return (struct sg_schema_sizes){
        .nodes = nodes < SG_NODES_MAX ? nodes : SG_NODES_MAX,
        .choices = 16 * counts->objects + 4 * counts->values + 64,
        .literals = 2 * counts->values + 16,
        .literal_bytes = 2 * counts->text_bytes + 48 * counts->objects + 64,
    };
}

int sg_schema_compile(struct sg_grammar *grammar, const uint8_t *text, const struct sg_json *values,
                      const struct sg_json_counts *counts, uint16_t *node_of_value, struct sg_error *error) {
    struct sg_compiler c = {.grammar = grammar, .text = text, .values = values, .node_of_value = node_of_value,
                            .error = error, .literal_room = counts->text_bytes};
    c.sizes = sg_schema_sizes(counts);
    memset(node_of_value, 0xff, counts->values * sizeof *node_of_value);
    compile_tools(&c);
    if (c.status == SG_STATUS_OK) sg_schema_flatten(&c);
    if (c.status == SG_STATUS_OK) sg_schema_check(&c);
    return c.status;
}
