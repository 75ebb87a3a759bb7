/* Compiling schemas: what the files of this half share.
 *
 * Owns: keywords, types, and the trail that a refusal's path is made of. grammar_schema.c reads schemas and tools,
 * grammar_types.c makes a node per type, grammar_nodes.c keeps the tables, grammar_disjoint.c tells alternatives apart,
 * grammar_flat.c flattens choices at the end.
 * Knows nothing of: bytes of an answer, ids. */
#ifndef SG_GRAMMAR_SCHEMA_H
#define SG_GRAMMAR_SCHEMA_H

#include "grammar.h"

enum keyword {
    TYPE, ENUM, CONST, MINIMUM, MAXIMUM, EXCLUSIVE_MINIMUM, EXCLUSIVE_MAXIMUM, MULTIPLE_OF, MIN_LENGTH, MAX_LENGTH,
    PATTERN, PROPERTIES, REQUIRED, ADDITIONAL_PROPERTIES, ITEMS, MIN_ITEMS, MAX_ITEMS, ANY_OF, ONE_OF, ALL_OF, REF,
    NULLABLE, KEYWORD_COUNT
};

enum type { STRING_TYPE = 1, NUMBER_TYPE = 2, INTEGER_TYPE = 4, BOOLEAN_TYPE = 8, NULL_TYPE = 16, OBJECT_TYPE = 32,
            ARRAY_TYPE = 64, ANY_TYPE = 127 };

/* Where in the tools' text the work is: a chain of keys, the innermost first. */
struct sg_trail {
    const struct sg_trail *up;
    uint32_t key; /* the value that is a key's text, or SG_NONE: `index` */
    uint32_t index, depth;
};

/* The values of the keywords that a schema has, by keyword; 0 (which is the list of tools) where it has none. */
struct sg_keywords {
    uint32_t at[KEYWORD_COUNT];
    uint32_t present; /* a bit each, without NULLABLE */
};

struct sg_compiler {
    struct sg_grammar *grammar;
    const uint8_t *text;
    const struct sg_json *values;
    uint16_t *node_of_value;
    struct sg_schema_sizes sizes;
    struct sg_error *error;
    uint32_t root; /* value of the present tool's parameters */
    uint32_t literal_room; /* bytes that literals of schemas may still take */
    uint16_t any, boolean, null, nothing;
    int status;
};

static inline uint32_t sg_schema_kind(const struct sg_compiler *c, uint32_t value) { return c->values[value].kind; }
#define IN_LIST(c, value, names) sg_schema_in_list(c, value, names[0], sizeof names / sizeof *names, sizeof *names)

/* grammar_nodes.c. A failure keeps the first path; `value` is the one at fault, behind its key for `fail_at`. */
void sg_schema_fail(struct sg_compiler *c, enum sg_status status, const struct sg_trail *trail, uint32_t value);
void sg_schema_fail_at(struct sg_compiler *c, enum sg_status status, const struct sg_trail *trail, uint32_t value);
uint16_t sg_schema_node(struct sg_compiler *c, struct sg_node node, const struct sg_trail *trail);
void sg_schema_add_choice(struct sg_compiler *c, uint16_t choice, uint16_t alternative, const struct sg_trail *trail);
uint8_t *sg_schema_free_bytes(const struct sg_compiler *c);
int sg_schema_compare(const struct sg_grammar *grammar, uint32_t a, uint32_t b);
bool sg_schema_add_literal(struct sg_compiler *c, uint32_t first, uint32_t byte_count, uint32_t node);
void sg_schema_take_room(struct sg_compiler *c, uint32_t byte_count, const struct sg_trail *trail, uint32_t value);
uint16_t sg_schema_literals_node(struct sg_compiler *c, uint32_t first, const struct sg_trail *trail);
uint16_t sg_schema_choice(struct sg_compiler *c, const struct sg_trail *trail);
uint16_t sg_schema_string_node(struct sg_compiler *c, const struct sg_trail *trail);
uint16_t sg_schema_number_node(struct sg_compiler *c, const struct sg_trail *trail);
void sg_schema_common(struct sg_compiler *c, const struct sg_trail *trail);
uint32_t sg_schema_in_list(const struct sg_compiler *c, uint32_t value, const char *names, uint32_t count,
                           uint32_t width);

/* grammar_types.c */
uint32_t sg_schema_types(struct sg_compiler *c, uint32_t value, const struct sg_trail *trail);
uint16_t sg_schema_string(struct sg_compiler *c, const struct sg_keywords *k, const struct sg_trail *trail);
uint16_t sg_schema_number(struct sg_compiler *c, const struct sg_keywords *k, bool is_integer,
                          const struct sg_trail *trail);
uint16_t sg_schema_array(struct sg_compiler *c, const struct sg_keywords *k, const struct sg_trail *trail);
uint16_t sg_schema_object(struct sg_compiler *c, const struct sg_keywords *k, const struct sg_trail *trail);
uint16_t sg_schema_literals(struct sg_compiler *c, const struct sg_keywords *k, const struct sg_trail *trail);

/* grammar_disjoint.c; `depth` starts at 0. */
bool sg_schema_are_disjoint(const struct sg_compiler *c, uint16_t a, uint16_t b, uint32_t depth);

/* grammar_schema.c: the node of a schema. */
uint16_t sg_schema_value(struct sg_compiler *c, uint32_t value, const struct sg_trail *trail);

/* grammar_flat.c */
void sg_schema_flatten(struct sg_compiler *c);
void sg_schema_check(struct sg_compiler *c);

#endif
