/* The grammar of tool calls: declared tools, compiled into a pushdown automaton over bytes (docs/grammar.md).
 *
 * Owns: the shape of the compiled grammar, of a place in it, and the limits of both. The files: grammar_json.c reads the
 * tools' text, grammar_schema.c compiles it, grammar_regex.c its regular expressions; grammar_step.c takes a byte,
 * grammar_number.c one of a number, grammar_pattern.c a character of a pattern; grammar_expect.c tells what is worth a
 * step; grammar_finish.c writes the shortest end, which grammar_prepare.c measures; grammar_tokens.c sorts the pieces,
 * grammar_mask.c finds the ids.
 * Knows nothing of: logits, prompts, when an answer ends. */
#ifndef SG_GRAMMAR_H
#define SG_GRAMMAR_H

#include "arena.h"
#include "error.h"
#include "model.h"

#define SG_NONE UINT32_MAX
#define SG_NO_NODE UINT16_MAX

#define SG_GRAMMAR_TEXT_MAX 1048576u /* bytes of the tools' text */
#define SG_JSON_DEPTH_MAX 64u
#define SG_JSON_MEMBERS_MAX 256u     /* of one object in the tools' text */
#define SG_NODES_MAX 8192u
#define SG_PROPERTIES_MAX 64u        /* of one object schema: one bit each */
#define SG_FRAMES_MAX 32u            /* open values, the list of calls and the call included */
#define SG_THREADS_MAX 8u            /* readings of one text that are open at once */
#define SG_POSITIONS_MAX 128u        /* characters of one pattern, repetitions written out */
#define SG_POSITIONS_ALL_MAX 4096u
#define SG_RANGES_ALL_MAX 8192u
#define SG_DIGITS_MAX 18u            /* of a bounded number, so that it fits 64 bits */
#define SG_FINISH_BYTES_MAX 4096u    /* a longer end counts as one for which there is never room */
#define SG_PIECE_BYTES_MAX 32u       /* longer pieces are not offered within a call */
#define SG_PATH_BYTES_MAX 200u

/* ---- The tools' text (grammar_json.c) ---- */

enum sg_json_kind { SG_JSON_NULL, SG_JSON_FALSE, SG_JSON_TRUE, SG_JSON_NUMBER, SG_JSON_STRING, SG_JSON_ARRAY,
                   SG_JSON_OBJECT };

/* Values in the order of the text; members of an object are a string and a value each. */
struct sg_json {
    uint32_t start, byte_count; /* with quotes or brackets */
    uint32_t count;             /* elements, or members */
    uint32_t next;              /* behind this value and all within it */
    uint32_t kind;
};

struct sg_json_counts {
    uint32_t text_bytes, values, objects;
};

/* Checks the text (RFC 8259, no key twice in one object); `values` is filled where there is memory for it. */
int sg_json_read(const uint8_t *text, size_t byte_count, struct sg_json *values, struct sg_json_counts *counts,
                 struct sg_error *error);
bool sg_json_is(const uint8_t *text, const struct sg_json *value, const char *word);
/* Writes a value in the one form that the grammar knows: no white space, no escape that need not be. `out` has room for as
 * many bytes as the source. 0 if it holds U+2581, which no tokenizer gives back. */
uint32_t sg_json_canonical(const uint8_t *text, const struct sg_json *values, uint32_t index, uint8_t *out);

/* A character in its shortest spelling within a string; returns its bytes. */
uint32_t sg_json_put_character(uint32_t character, uint8_t *out);
#define SG_SPELLING_BYTES_MAX 6u

/* The characters of a string, in UTF-8. */
uint32_t sg_json_decode(const uint8_t *text, const struct sg_json *value, uint8_t *out);

/* ---- The compiled grammar ---- */

enum sg_node_kind { SG_CHOICE, SG_LITERALS, SG_STRING, SG_NUMBER, SG_ARRAY, SG_OBJECT, SG_CALL };

/* What may stand first, in `starts`. */
enum { SG_START_STRING = 1, SG_START_OBJECT = 2, SG_START_ARRAY = 4, SG_START_NUMBER = 8, SG_START_TRUE = 16,
       SG_START_FALSE = 32, SG_START_NULL = 64 };

struct sg_node {
    uint8_t kind, starts;
    uint8_t is_bounded, decimals, digits; /* NUMBER: digits before and behind the point */
    uint8_t need;      /* frames that the shortest value takes; above SG_FRAMES_MAX: there is no value */
    uint16_t child;    /* ARRAY: its items; OBJECT: values of undeclared names, or SG_NO_NODE */
    uint16_t shortest; /* CHOICE: the alternative with the shortest value */
    uint16_t live;     /* threads that it can hold open */
    uint32_t first, count; /* literals, or alternatives */
    uint32_t pattern;  /* STRING: or SG_NONE */
    uint32_t min, max; /* characters or elements */
    uint32_t bytes;    /* of the shortest value; SG_NONE: there is none */
    uint32_t reach;    /* what this frame can add to the end of a text, at most */
    uint64_t required; /* OBJECT: a bit for each property */
    int64_t low, high, step; /* NUMBER: times 10^decimals */
};

/* A text, and the node behind it: of an enum, a property's `"name":`, or the head of a call. Sorted by bytes. */
struct sg_literal {
    uint32_t start, byte_count;
    uint32_t node;
};

/* A set of a pattern's positions. */
struct sg_positions {
    uint64_t bits[SG_POSITIONS_MAX / 64];
};

struct sg_position {
    struct sg_positions follow;
    uint32_t first_range, range_count; /* characters that it takes */
    uint32_t distance;                 /* characters to the end; SG_NONE: it cannot be reached */
    uint64_t lengths;                  /* bit k: the end can be k characters away */
};

struct sg_pattern {
    uint32_t first, count;
    struct sg_positions initial, final;
    uint32_t shortest, longest_distance; /* characters; SG_NONE: it matches nothing */
    bool is_nullable;
};

/* How many characters may follow the next one. */
struct sg_window {
    uint32_t least, most;
};
#define SG_LENGTHS_MAX 63u /* the largest `least`, in patterns of so many positions and one */

struct sg_range {
    uint32_t low, high;
};

/* ---- A place in it ---- */

/* An open value. What a phase does not use is 0, so that equal frames have equal bytes. */
struct sg_frame {
    uint16_t node;
    uint8_t phase;
    uint8_t lead;            /* STRING: first byte of the present character; NUMBER: digits of the exponent */
    uint32_t low, high, at;  /* literals that still fit and how far; or counters */
    uint64_t set[2];         /* OBJECT: properties that were there; STRING: positions; NUMBER: its digits */
};

struct sg_thread {
    uint32_t depth; /* 0: the list of calls is closed */
    struct sg_frame frames[SG_FRAMES_MAX];
};

struct sg_place {
    uint32_t thread_count;
    struct sg_thread threads[SG_THREADS_MAX + 1]; /* the last is scratch of sg_place_step */
};

/* A text under way, cut off at its capacity but counted on. */
struct sg_text {
    uint8_t *bytes;
    uint32_t byte_count, capacity;
};

/* A piece that may stand in a call, by the bytes that it adds to the text. */
struct sg_piece_entry {
    uint32_t id, start;
    uint8_t byte_count;
    uint8_t common;     /* bytes that it shares with the one before */
    uint8_t characters; /* that stand in a string as they are; 0 if it holds anything else */
};

struct sg_grammar {
    const struct sg_model *model;
    struct sg_model_info info;
    struct sg_node *nodes;
    uint16_t *choices;
    struct sg_literal *literals;
    uint8_t *literal_bytes;
    struct sg_pattern *patterns;
    struct sg_position *positions;
    struct sg_range *ranges;
    uint32_t node_count, choice_count, literal_count, literal_byte_count, pattern_count, position_count, range_count;
    uint16_t root;
    struct sg_piece_entry *pieces; /* in order of their bytes, then of their ids */
    uint8_t *piece_bytes;
    uint32_t piece_count;
    struct sg_place *now;
    struct sg_place *walk;   /* (SG_PIECE_BYTES_MAX + 1,) after so many bytes of a piece */
    uint32_t *allowed;       /* ((logit_count + 31) / 32,) */
    uint32_t *spellers;      /* the same shape: ids that free text may not always have */
    uint8_t *finish, *known; /* (SG_FINISH_BYTES_MAX,) the end under way, and the last one whose ids were counted */
    uint16_t *best;          /* (SG_FINISH_BYTES_MAX + 1,) ids from here to the end */
    uint32_t known_bytes, known_cost;
    uint32_t first_cost;     /* ids of the shortest list of calls with its closing marker */
    bool is_calling, is_thinking;
    uint32_t spelt;          /* bytes of the opening marker that plain pieces have spelt just now */
    char path[SG_PATH_BYTES_MAX];
};

/* grammar_schema.c: fills `grammar` out of the text; `values` is what sg_json_read filled. */
struct sg_schema_sizes {
    uint32_t nodes, choices, literals, literal_bytes;
};
struct sg_schema_sizes sg_schema_sizes(const struct sg_json_counts *counts);
int sg_schema_compile(struct sg_grammar *grammar, const uint8_t *text, const struct sg_json *values,
                      const struct sg_json_counts *counts, uint16_t *node_of_value, struct sg_error *error);

/* grammar_regex.c: SG_STATUS_OK, GRAMMAR_UNSUPPORTED or GRAMMAR_LIMIT. `text` is the decoded expression. */
int sg_pattern_compile(struct sg_grammar *grammar, const uint8_t *text, uint32_t byte_count);

/* grammar_pattern.c */
/* The positions that characters of `low` to `high` lead to and from which the end lies within the window. */
struct sg_positions sg_pattern_next(const struct sg_grammar *grammar, const struct sg_pattern *pattern,
                                    const struct sg_frame *frame, uint32_t low, uint32_t high, struct sg_window window);
bool sg_pattern_accepts(const struct sg_pattern *pattern, const struct sg_frame *frame);
/* The smallest character of `low` to `high` that is on the shortest such way; SG_NONE if there is none. */
uint32_t sg_pattern_shortest(const struct sg_grammar *grammar, const struct sg_pattern *pattern,
                             const struct sg_frame *frame, uint32_t low, uint32_t high, struct sg_window window);

/* How near the character leads to an end: the way of the best position, and that position, in one number to compare. */
uint32_t sg_pattern_way(const struct sg_grammar *grammar, const struct sg_pattern *pattern,
                        const struct sg_frame *frame, uint32_t character, struct sg_window window);

static inline bool sg_positions_has(const struct sg_positions *set, uint32_t position) {
    return set->bits[position / 64] >> position % 64 & 1;
}
static inline void sg_positions_unite(struct sg_positions *to, const struct sg_positions *from) {
    for (uint32_t i = 0; i < SG_POSITIONS_MAX / 64; i++) to->bits[i] |= from->bits[i];
}
static inline bool sg_positions_any(const struct sg_positions *set) { return (set->bits[0] | set->bits[1]) != 0; }

/* grammar_number.c */
struct sg_decimal {
    int64_t digits; /* times 10^-decimals */
    uint32_t decimals;
};
/* False for more than SG_DIGITS_MAX digits once the exponent is written out. */
bool sg_decimal_read(const uint8_t *text, uint32_t byte_count, struct sg_decimal *decimal);
int64_t sg_power_of_ten(uint32_t exponent);
/* Takes a byte of a number; false if it does not go on with it. */
bool sg_number_step(const struct sg_node *node, struct sg_frame *frame, uint8_t byte);
bool sg_number_may_end(const struct sg_node *node, const struct sg_frame *frame);

/* grammar_step.c */
/* What a value with this first byte is, as a bit of `starts`; 0 for a byte that starts none. */
uint8_t sg_start_of(uint8_t byte);
struct sg_frame sg_fresh_frame(const struct sg_grammar *grammar, uint32_t node);
void sg_place_start(const struct sg_grammar *grammar, struct sg_place *place);
void sg_thread_copy(struct sg_thread *to, const struct sg_thread *from);
void sg_place_copy(struct sg_place *to, const struct sg_place *from);
/* The place behind `byte`; without a thread if it does not fit. `to` is not `from`. */
void sg_place_step(const struct sg_grammar *grammar, const struct sg_place *from, uint8_t byte, struct sg_place *to);
bool sg_place_is_done(const struct sg_place *place);
/* Whether a value may open on top of `depth` frames. */
static inline bool sg_fits(const struct sg_grammar *grammar, uint32_t node, uint32_t depth) {
    return depth + grammar->nodes[node].need <= SG_FRAMES_MAX;
}
/* Whether an object that is frame `depth` from below takes names that are not declared. */
static inline bool sg_takes_others(const struct sg_grammar *grammar, const struct sg_node *node, uint32_t depth) {
    return node->child != SG_NO_NODE && sg_fits(grammar, node->child, depth);
}
/* Whether an object that is frame `depth` from below may name this property now. */
bool sg_is_usable(const struct sg_grammar *grammar, const struct sg_frame *frame, uint32_t literal, uint32_t depth);
/* The literals of low .. high whose byte `at` is `byte`, as `low` and `high`; false if there are none. */
bool sg_narrow(const struct sg_grammar *grammar, uint32_t *low, uint32_t *high, uint32_t at, uint8_t byte);
bool sg_string_may_close(const struct sg_grammar *grammar, const struct sg_node *node, const struct sg_frame *frame);
/* What the string's lengths leave behind its next character, for which there must be room. */
static inline struct sg_window sg_window_behind(const struct sg_node *node, const struct sg_frame *frame) {
    return (struct sg_window){node->min > frame->at ? node->min - frame->at - 1 : 0, node->max - frame->at - 1};
}
bool sg_string_takes(const struct sg_grammar *grammar, const struct sg_node *node, const struct sg_frame *frame,
                     uint32_t low, uint32_t high);
/* Characters that the bytes of one so far can become, as `low` and `high`. */
void sg_character_bounds(uint8_t lead, uint32_t place, uint32_t bits, uint32_t *low, uint32_t *high);

enum { SG_PHASE_START = 0 };
enum { SG_STRING_BODY = 1, SG_STRING_BYTES, SG_STRING_ESCAPE, SG_STRING_HEX };
enum { SG_LIST_FIRST = 1, SG_LIST_AFTER, SG_LIST_NEXT };
enum { SG_KEY = 4, SG_COLON };
enum { SG_CALL_CLOSE = 1 };
static const uint8_t sg_escapes[] = "\"\\bfnrt", sg_escaped[] = "\"\\\b\f\n\r\t";
#define SG_ESCAPE_COUNT 7u

/* grammar_expect.c */
struct sg_bytes {
    uint64_t bits[4];
};
/* Fills in the bytes that may come next, and some that may not; false if that can be any byte. */
bool sg_place_expects(const struct sg_grammar *grammar, const struct sg_place *place, struct sg_bytes *bytes);
/* How many plain characters the thread takes as they come, which only sg_plain_add tells it; 0: it must be stepped. */
uint32_t sg_plain_room(const struct sg_grammar *grammar, const struct sg_thread *thread);
void sg_plain_add(const struct sg_grammar *grammar, struct sg_thread *thread);

/* grammar_tokens.c */
/* Ids that steer the conversation: never part of a call, whatever their spelling. */
bool sg_piece_is_special(const struct sg_model_info *info, uint32_t id);
/* The bytes that an id adds to a text, a space for U+2581; 0 for none. `out` may be NULL. */
uint32_t sg_piece_text(const struct sg_tokenizer *tokenizer, uint32_t id, uint8_t *out);
/* Ids below are pieces with a logit. */
uint32_t sg_piece_id_count(const struct sg_model *model);

/* grammar_mask.c: fills `grammar->spellers`. */
void sg_grammar_find_spellers(struct sg_grammar *grammar);
/* Ids of the place's shortest end with the closing marker; SG_NONE if it is too long to tell. */
uint32_t sg_finish_cost(struct sg_grammar *grammar, const struct sg_place *place);
/* Whether the id may come next if `room` more ids may be kept, this one included. */
bool sg_grammar_takes(struct sg_grammar *grammar, uint32_t id, uint32_t room);
/* Whether nearly every id may come next, as in free text and where a string is open. */
bool sg_grammar_is_open(const struct sg_grammar *grammar);
/* Fills `grammar->allowed`; returns how many ids it holds. */
uint32_t sg_grammar_fill(struct sg_grammar *grammar, uint32_t room);

/* grammar_finish.c: the shortest end of a thread's text, and of a value. */
void sg_finish_thread(const struct sg_grammar *grammar, const struct sg_thread *thread, struct sg_text *text);
void sg_finish_value(const struct sg_grammar *grammar, uint32_t node, struct sg_text *text);

/* grammar_prepare.c */
uint32_t sg_finish_add(uint32_t a, uint32_t b); /* SG_NONE stays so; no more than any room */
/* Bytes of the literal from `at` on, and of the shortest value behind it. */
uint32_t sg_finish_literal_cost(const struct sg_grammar *grammar, uint32_t literal, uint32_t at);
/* The cheapest of the literals low .. high from byte `at` on, the first of equals; SG_NONE if none has an end. */
uint32_t sg_finish_cheapest(const struct sg_grammar *grammar, uint32_t low, uint32_t high, uint32_t at);
/* Fills in bytes, need, shortest, live and reach of all nodes; GRAMMAR_LIMIT if a place could need too much. */
int sg_finish_prepare(struct sg_grammar *grammar);

#endif
