/* Regular expressions: the part of ECMA-262 that means the same in every validator, as Glushkov's automaton.
 *
 * Each character of the expression is a position; a repetition is written out by reading its source again. A set of
 * positions says what has been matched so far, so nothing is ever tried twice. What the subset is says docs/grammar.md. */
#include "grammar.h"

#include "utf8.h"

#define GROUP_DEPTH_MAX 16u
#define REPEAT_MAX 1000u
#define STEPS_MAX 20000u /* of reading, repetitions included */
#define CLASS_RANGES_MAX 64u
#define CHARACTER_MAX 0x10ffffu

struct part {
    struct sg_positions first, last;
    bool is_nullable;
};

struct class {
    struct sg_range ranges[CLASS_RANGES_MAX];
    uint32_t count;
    uint32_t top; /* where validators differ above it, a complement ends here */
};

struct parser {
    struct sg_grammar *grammar;
    struct sg_pattern *pattern;
    const uint8_t *text;
    uint32_t byte_count, at, steps;
    int status;
};

static struct part read_alternatives(struct parser *parser, uint32_t depth);

static int peek(const struct parser *parser, uint32_t ahead) {
    return parser->at + ahead < parser->byte_count ? parser->text[parser->at + ahead] : -1;
}

static void stop(struct parser *parser, int status) {
    if (parser->status == SG_STATUS_OK) parser->status = status;
    parser->at = parser->byte_count;
}

static void link(struct parser *parser, const struct sg_positions *from, const struct sg_positions *to) {
    for (uint32_t i = 0; i < parser->pattern->count; i++) {
        if (!sg_positions_has(from, i)) continue;
        sg_positions_unite(&parser->grammar->positions[parser->pattern->first + i].follow, to);
    }
}

static struct part join(struct parser *parser, struct part left, struct part right) {
    link(parser, &left.last, &right.first);
    if (left.is_nullable) sg_positions_unite(&left.first, &right.first);
    if (right.is_nullable) sg_positions_unite(&right.last, &left.last);
    return (struct part){left.first, right.last, left.is_nullable && right.is_nullable};
}

static void add(struct parser *parser, struct class *class, uint32_t low, uint32_t high) {
    if (class->count == CLASS_RANGES_MAX) {
        stop(parser, SG_STATUS_GRAMMAR_LIMIT);
        return;
    }
    class->ranges[class->count++] = (struct sg_range){low, high};
}

/* Everything else, up to the class's top. */
static void complement(struct parser *parser, struct class *class) {
    const struct class inner = *class;
    class->count = 0;
    uint32_t from = 0;
    while (from <= inner.top) {
        uint32_t next = inner.top + 1, behind = from;
        for (uint32_t i = 0; i < inner.count; i++) {
            const struct sg_range range = inner.ranges[i];
            if (range.low <= from && range.high >= behind) behind = range.high + 1;
            if (range.low > from && range.low < next) next = range.low;
        }
        if (behind == from) {
            add(parser, class, from, next - 1);
            behind = next;
        }
        from = behind;
    }
}

/* A new position that takes the class's characters, so far as a JSON string of the grammar can spell them. */
static struct part place(struct parser *parser, const struct class *class) {
    static const struct sg_range spelt[] = {
        {0x8, 0xa}, {0xc, 0xd}, {0x20, 0x2580}, {0x2582, 0xd7ff}, {0xe000, CHARACTER_MAX}};
    struct sg_grammar *grammar = parser->grammar;
    struct sg_pattern *pattern = parser->pattern;
    struct part part = {0};
    if (pattern->count == SG_POSITIONS_MAX || grammar->position_count == SG_POSITIONS_ALL_MAX) {
        stop(parser, SG_STATUS_GRAMMAR_LIMIT);
        return part;
    }
    struct sg_position *position = &grammar->positions[grammar->position_count++];
    *position = (struct sg_position){.first_range = grammar->range_count};
    for (uint32_t i = 0; i < class->count; i++) {
        for (uint32_t k = 0; k < sizeof spelt / sizeof *spelt; k++) {
            const uint32_t low = class->ranges[i].low > spelt[k].low ? class->ranges[i].low : spelt[k].low;
            const uint32_t high = class->ranges[i].high < spelt[k].high ? class->ranges[i].high : spelt[k].high;
            if (low > high) continue;
            if (grammar->range_count == SG_RANGES_ALL_MAX) {
                stop(parser, SG_STATUS_GRAMMAR_LIMIT);
                return part;
            }
            grammar->ranges[grammar->range_count++] = (struct sg_range){low, high};
            position->range_count++;
        }
    }
    const uint32_t index = pattern->count++;
    part.first.bits[index / 64] = part.last.bits[index / 64] = (uint64_t)1 << index % 64;
    return part;
}

static uint32_t read_character(struct parser *parser) {
    const uint8_t *at = parser->text + parser->at;
    const uint32_t length = sg_utf8_need(at[0]);
    uint32_t character = sg_utf8_lead_bits(at[0]);
    for (uint32_t i = 1; i < length; i++) character = character << 6 | (at[i] & 0x3f);
    parser->at += length;
    return character;
}

static uint32_t read_hex(struct parser *parser, uint32_t count) {
    uint32_t value = 0;
    for (; count > 0; count--, parser->at++) {
        const int byte = peek(parser, 0), letter = byte | 0x20;
        const bool is_letter = letter >= 'a' && letter <= 'f';
        if (!is_letter && !(byte >= '0' && byte <= '9')) {
            stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
            return 0;
        }
        value = value * 16 + (uint32_t)(is_letter ? letter - 'a' + 10 : byte - '0');
    }
    return value;
}

static void add_spaces(struct parser *parser, struct class *class, bool all) {
    static const struct sg_range spaces[] = {{9, 13},           {32, 32},         {28, 31},         {0x85, 0x85},
                                             {0xa0, 0xa0},      {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                             {0x202f, 0x202f},  {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    for (uint32_t i = 0; i < (all ? sizeof spaces / sizeof *spaces : 2); i++) {
        add(parser, class, spaces[i].low, spaces[i].high);
    }
}

/* The characters of \d, \w or \s: `wide` for a complement, which leaves out whatever some validator counts in. */
static bool add_named(struct parser *parser, struct class *class, int name, bool wide) {
    if (name == 's') {
        add_spaces(parser, class, wide);
        return true;
    }
    if (name != 'd' && name != 'w') return false;
    add(parser, class, '0', '9');
    const uint32_t top = name == 'd' ? 0x65f : 0x7f; /* below the first digit, or letter, that only some know */
    if (wide && class->top > top) class->top = top;
    if (name == 'w') {
        add(parser, class, 'A', 'Z');
        add(parser, class, '_', '_');
        add(parser, class, 'a', 'z');
    }
    return true;
}

/* What stands behind a backslash and means one character. */
static uint32_t read_escape(struct parser *parser) {
    static const char names[] = "nrtfv", values[] = "\n\r\t\f\v";
    const int byte = peek(parser, 0);
    const bool is_ascii = byte > 0x20 && byte < 0x7f;
    const char *known = is_ascii ? strchr(names, byte) : NULL;
    const int letter = byte | 0x20;
    const bool is_name = (letter >= 'a' && letter <= 'z') || (byte >= '0' && byte <= '9') || byte == '_';
    if (!is_ascii || (is_name && !known && byte != 'x' && byte != 'u')) {
        stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
        return 0;
    }
    parser->at++;
    if (known) return (uint32_t)values[known - names];
    if (byte == 'x') return read_hex(parser, 2);
    return byte == 'u' ? read_hex(parser, 4) : (uint32_t)byte;
}

/* One character of a class, or a named class, which gives SG_NONE. */
static uint32_t read_class_item(struct parser *parser, struct class *class, bool is_negated) {
    if (peek(parser, 0) != '\\') return read_character(parser);
    parser->at++;
    if (!add_named(parser, class, peek(parser, 0), is_negated)) return read_escape(parser);
    parser->at++;
    return SG_NONE;
}

static struct part read_class(struct parser *parser) {
    struct class class = {.top = CHARACTER_MAX};
    parser->at++;
    const bool is_negated = peek(parser, 0) == '^';
    parser->at += is_negated;
    if (peek(parser, 0) == ']') stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED); /* empty here, a bracket there */
    while (peek(parser, 0) != ']' && parser->at < parser->byte_count) {
        const uint32_t low = read_class_item(parser, &class, is_negated);
        const bool is_range = peek(parser, 0) == '-' && peek(parser, 1) != ']';
        uint32_t high = low;
        if (is_range) {
            parser->at++;
            high = low == SG_NONE || parser->at >= parser->byte_count ? SG_NONE
                                                                       : read_class_item(parser, &class, is_negated);
            if (high == SG_NONE || high < low) stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
        }
        if (low != SG_NONE) add(parser, &class, low, high);
    }
    if (parser->at >= parser->byte_count) stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
    parser->at++;
    if (is_negated) complement(parser, &class);
    return place(parser, &class);
}

static struct part read_group(struct parser *parser, uint32_t depth) {
    parser->at++;
    if (peek(parser, 0) == '?') {
        if (peek(parser, 1) != ':') stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
        parser->at += 2;
    }
    if (depth == GROUP_DEPTH_MAX) stop(parser, SG_STATUS_GRAMMAR_LIMIT);
    const struct part part = read_alternatives(parser, depth + 1);
    if (peek(parser, 0) != ')') stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
    parser->at++;
    return part;
}

static struct part read_backslash(struct parser *parser) {
    struct class class = {.top = CHARACTER_MAX};
    parser->at++;
    const int name = peek(parser, 0);
    if (name == 'D' || name == 'W' || name == 'S') {
        parser->at++;
        add_named(parser, &class, name | 0x20, true);
        complement(parser, &class);
    } else if (add_named(parser, &class, name, false)) {
        parser->at++;
    } else {
        const uint32_t character = read_escape(parser);
        add(parser, &class, character, character);
    }
    return place(parser, &class);
}

static struct part read_atom(struct parser *parser, uint32_t depth) {
    const int byte = peek(parser, 0);
    if (byte == '(') return read_group(parser, depth);
    if (byte == '[') return read_class(parser);
    if (byte == '\\') return read_backslash(parser);
    struct class class = {.top = CHARACTER_MAX};
    if (byte == '.') {
        parser->at++;
        add(parser, &class, '\n', '\n');
        add(parser, &class, '\r', '\r');
        add(parser, &class, 0x2028, 0x2029);
        complement(parser, &class);
        return place(parser, &class);
    }
    if (byte > 0 && byte < 0x80 && strchr("^$*+?{}]", byte)) {
        stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
        return (struct part){0};
    }
    const uint32_t character = read_character(parser);
    add(parser, &class, character, character);
    return place(parser, &class);
}

/* A count of a quantifier; SG_NONE if there is none. */
static uint32_t read_count(struct parser *parser) {
    uint32_t count = SG_NONE;
    for (; peek(parser, 0) >= '0' && peek(parser, 0) <= '9'; parser->at++) {
        count = (count == SG_NONE ? 0 : count) * 10 + (uint32_t)(peek(parser, 0) - '0');
        if (count > REPEAT_MAX) {
            stop(parser, SG_STATUS_GRAMMAR_LIMIT);
            return 0;
        }
    }
    return count;
}

/* Least and most repetitions; SG_NONE for no bound. */
static void read_quantifier(struct parser *parser, uint32_t *least, uint32_t *most) {
    *least = *most = 1;
    const int byte = peek(parser, 0);
    if (byte != '*' && byte != '+' && byte != '?' && byte != '{') return;
    parser->at++;
    *least = byte == '+';
    *most = byte == '?' ? 1 : SG_NONE;
    if (byte == '{') {
        *least = *most = read_count(parser);
        if (peek(parser, 0) == ',') {
            parser->at++;
            *most = read_count(parser);
        }
        if (peek(parser, 0) != '}' || *least == SG_NONE || *most < *least) stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
        parser->at++;
    }
    if (peek(parser, 0) == '?') parser->at++; /* lazy: the same texts */
    const int next = peek(parser, 0);
    if (next == '*' || next == '+' || next == '?' || next == '{') stop(parser, SG_STATUS_GRAMMAR_UNSUPPORTED);
}

static struct part read_repetition(struct parser *parser, uint32_t depth) {
    const uint32_t start = parser->at;
    struct part copy = read_atom(parser, depth);
    uint32_t least, most;
    read_quantifier(parser, &least, &most);
    const uint32_t end = parser->at;
    if (most == 1 && least == 1) return copy;
    const bool is_open = most == SG_NONE;
    const uint32_t copies = is_open ? least + (least == 0) : most;
    struct part whole = {.is_nullable = true};
    for (uint32_t i = 0; i < copies && parser->status == SG_STATUS_OK; i++) {
        if (i > 0) {
            parser->at = start;
            copy = read_atom(parser, depth);
            parser->at = end;
        }
        if (is_open && i + 1 == copies) link(parser, &copy.last, &copy.first);
        if (i >= least) copy.is_nullable = true;
        whole = join(parser, whole, copy);
    }
    return whole;
}

static struct part read_sequence(struct parser *parser, uint32_t depth) {
    struct part sequence = {.is_nullable = true};
    for (int byte = peek(parser, 0); byte >= 0 && byte != '|' && byte != ')'; byte = peek(parser, 0)) {
        if (++parser->steps > STEPS_MAX) stop(parser, SG_STATUS_GRAMMAR_LIMIT);
        const int next = peek(parser, 1);
        if (depth == 0 && byte == '$' && (next < 0 || next == '|')) break;
        if (parser->status != SG_STATUS_OK) break;
        sequence = join(parser, sequence, read_repetition(parser, depth));
    }
    return sequence;
}

static struct part anything(struct parser *parser) {
    const struct class class = {.ranges = {{0, CHARACTER_MAX}}, .count = 1};
    struct part part = place(parser, &class);
    link(parser, &part.last, &part.first);
    part.is_nullable = true;
    return part;
}

/* An alternative of the whole expression: without an anchor, anything may stand around it. */
static struct part read_anchored(struct parser *parser) {
    const bool from_start = peek(parser, 0) == '^';
    parser->at += from_start;
    struct part part = {.is_nullable = true};
    if (!from_start) part = anything(parser);
    part = join(parser, part, read_sequence(parser, 0));
    if (peek(parser, 0) == '$') {
        parser->at++;
        return part;
    }
    return join(parser, part, anything(parser));
}

static struct part read_alternatives(struct parser *parser, uint32_t depth) {
    struct part all = {0};
    for (;;) {
        if (++parser->steps > STEPS_MAX) stop(parser, SG_STATUS_GRAMMAR_LIMIT);
        const struct part part = depth == 0 ? read_anchored(parser) : read_sequence(parser, depth);
        sg_positions_unite(&all.first, &part.first);
        sg_positions_unite(&all.last, &part.last);
        all.is_nullable |= part.is_nullable;
        if (peek(parser, 0) != '|') return all;
        parser->at++;
    }
}

/* Relaxes until nothing gets shorter. */
static void measure(struct sg_grammar *grammar, struct sg_pattern *pattern) {
    struct sg_position *positions = grammar->positions + pattern->first;
    for (uint32_t i = 0; i < pattern->count; i++) {
        positions[i].distance = sg_positions_has(&pattern->final, i) && positions[i].range_count ? 0 : SG_NONE;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < pattern->count; i++) {
            for (uint32_t k = 0; k < pattern->count && positions[i].range_count; k++) {
                if (!sg_positions_has(&positions[i].follow, k) || positions[k].distance == SG_NONE) continue;
                if (positions[k].distance + 1 >= positions[i].distance) continue;
                positions[i].distance = positions[k].distance + 1;
                moved = true;
            }
        }
    }
    for (uint32_t i = 0; i < pattern->count; i++) positions[i].lengths = positions[i].distance == 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < pattern->count; i++) {
            uint64_t lengths = positions[i].lengths;
            for (uint32_t k = 0; k < pattern->count && positions[i].range_count; k++) {
                if (sg_positions_has(&positions[i].follow, k)) lengths |= positions[k].lengths << 1;
            }
            moved |= lengths != positions[i].lengths;
            positions[i].lengths = lengths;
        }
    }
    pattern->shortest = pattern->is_nullable ? 0 : SG_NONE;
    for (uint32_t i = 0; i < pattern->count; i++) {
        const uint32_t distance = positions[i].distance;
        if (distance == SG_NONE) continue;
        if (distance > pattern->longest_distance) pattern->longest_distance = distance;
        if (sg_positions_has(&pattern->initial, i) && distance + 1 < pattern->shortest) pattern->shortest = distance + 1;
    }
}

int sg_pattern_compile(struct sg_grammar *grammar, const uint8_t *text, uint32_t byte_count) {
    struct sg_pattern *pattern = &grammar->patterns[grammar->pattern_count];
    *pattern = (struct sg_pattern){.first = grammar->position_count};
    struct parser parser = {.grammar = grammar, .pattern = pattern, .text = text, .byte_count = byte_count};
    const struct part whole = read_alternatives(&parser, 0);
    if (parser.at < byte_count) stop(&parser, SG_STATUS_GRAMMAR_UNSUPPORTED); /* a bracket that none opened */
    pattern->initial = whole.first;
    pattern->final = whole.last;
    pattern->is_nullable = whole.is_nullable;
    if (parser.status != SG_STATUS_OK) return parser.status;
    measure(grammar, pattern);
    grammar->pattern_count++;
    return SG_STATUS_OK;
}
