/* Reading the tools' text: JSON (RFC 8259) into a flat list of values, each behind the one that holds it. */
#include "grammar.h"

#include "utf8.h"

struct reader {
    const uint8_t *text;
    uint32_t byte_count, at;
    struct sg_json *values; /* NULL: count only */
    struct sg_json_counts counts;
};

static bool read_value(struct reader *reader, uint32_t depth);

static int peek(const struct reader *reader) { return reader->at < reader->byte_count ? reader->text[reader->at] : -1; }

static void skip_space(struct reader *reader) {
    for (int c = peek(reader); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = peek(reader)) reader->at++;
}

static bool take(struct reader *reader, char byte) {
    skip_space(reader);
    if (peek(reader) != byte) return false;
    reader->at++;
    return true;
}

static int hex_digit(int byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    const int letter = byte | 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* The four digits of an escape; SG_NONE if they are none. */
static uint32_t hex_word(const uint8_t *at) {
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) {
        const int digit = hex_digit(at[i]);
        if (digit < 0) return SG_NONE;
        word = word << 4 | (uint32_t)digit;
    }
    return word;
}

/* One escape; surrogates only in pairs. */
static bool read_escape(struct reader *reader) {
    const uint8_t *at = reader->text + reader->at;
    const uint32_t left = reader->byte_count - reader->at;
    if (left < 2) return false;
    if (at[1] != 'u') {
        reader->at += 2;
        return at[1] != 0 && strchr("\"\\/bfnrt", at[1]) != NULL;
    }
    const uint32_t word = left < 6 ? SG_NONE : hex_word(at + 2);
    if (word == SG_NONE || (word >= 0xdc00 && word < 0xe000)) return false;
    reader->at += 6;
    if (word < 0xd800 || word >= 0xdc00) return true;
    const uint32_t low = left < 12 || at[6] != '\\' || at[7] != 'u' ? SG_NONE : hex_word(at + 8);
    reader->at += 6;
    return low >= 0xdc00 && low < 0xe000;
}

static bool read_string(struct reader *reader) {
    for (reader->at++; peek(reader) != '"';) {
        const uint8_t *at = reader->text + reader->at;
        const size_t length = sg_utf8_length(at, reader->byte_count - reader->at);
        if (length == 0 || at[0] < 0x20) return false;
        if (at[0] != '\\') {
            reader->at += (uint32_t)length;
        } else if (!read_escape(reader)) {
            return false;
        }
    }
    reader->at++;
    return true;
}

static bool read_digits(struct reader *reader) {
    const uint32_t start = reader->at;
    while (peek(reader) >= '0' && peek(reader) <= '9') reader->at++;
    return reader->at > start;
}

static bool read_number(struct reader *reader) {
    reader->at += peek(reader) == '-';
    const bool zero = peek(reader) == '0';
    const uint32_t start = reader->at;
    if (!read_digits(reader) || (zero && reader->at > start + 1)) return false;
    if (peek(reader) == '.') {
        reader->at++;
        if (!read_digits(reader)) return false;
    }
    if (peek(reader) != 'e' && peek(reader) != 'E') return true;
    reader->at++;
    if (peek(reader) == '+' || peek(reader) == '-') reader->at++;
    return read_digits(reader);
}

static bool read_word(struct reader *reader, const char *word) {
    const size_t length = strlen(word);
    if (reader->byte_count - reader->at < length || memcmp(reader->text + reader->at, word, length) != 0) return false;
    reader->at += (uint32_t)length;
    return true;
}

static bool same_text(const struct reader *reader, const struct sg_json *a, const struct sg_json *b) {
    return a->byte_count == b->byte_count &&
           memcmp(reader->text + a->start, reader->text + b->start, a->byte_count) == 0;
}

/* The members behind the brace; a key must be new in its object. */
static bool read_members(struct reader *reader, uint32_t first, uint32_t *count, uint32_t depth) {
    if (take(reader, '}')) return true;
    do {
        skip_space(reader);
        const uint32_t key = reader->counts.values, start = reader->at;
        if (peek(reader) != '"' || ++*count > SG_JSON_MEMBERS_MAX || !read_value(reader, depth)) return false;
        if (reader->values) {
            for (uint32_t other = first; other < key; other = reader->values[other + 1].next) {
                if (!same_text(reader, &reader->values[other], &reader->values[key])) continue;
                reader->at = start;
                return false;
            }
        }
        if (!take(reader, ':') || !read_value(reader, depth)) return false;
    } while (take(reader, ','));
    return take(reader, '}');
}

static bool read_elements(struct reader *reader, uint32_t *count, uint32_t depth) {
    if (take(reader, ']')) return true;
    do {
        ++*count;
        if (!read_value(reader, depth)) return false;
    } while (take(reader, ','));
    return take(reader, ']');
}

static bool read_value(struct reader *reader, uint32_t depth) {
    skip_space(reader);
    const uint32_t index = reader->counts.values++;
    struct sg_json value = {.start = reader->at};
    bool good = depth < SG_JSON_DEPTH_MAX;
    switch (good ? peek(reader) : -1) {
    case '{':
        reader->at++;
        reader->counts.objects++;
        value.kind = SG_JSON_OBJECT;
        good = read_members(reader, index + 1, &value.count, depth + 1);
        break;
    case '[':
        reader->at++;
        value.kind = SG_JSON_ARRAY;
        good = read_elements(reader, &value.count, depth + 1);
        break;
    case '"':
        value.kind = SG_JSON_STRING;
        good = read_string(reader);
        break;
    case 't':
        value.kind = SG_JSON_TRUE;
        good = read_word(reader, "true");
        break;
    case 'f':
        value.kind = SG_JSON_FALSE;
        good = read_word(reader, "false");
        break;
    case 'n':
        good = read_word(reader, "null");
        break;
    default:
        value.kind = SG_JSON_NUMBER;
        good = good && read_number(reader);
    }
    value.byte_count = reader->at - value.start;
    value.next = reader->counts.values;
    if (reader->values) reader->values[index] = value;
    return good;
}

int sg_json_read(const uint8_t *text, size_t byte_count, struct sg_json *values, struct sg_json_counts *counts,
                 struct sg_error *error) {
    *counts = (struct sg_json_counts){0};
    if (byte_count > SG_GRAMMAR_TEXT_MAX) {
        return sg_fail(error, SG_STATUS_GRAMMAR_LIMIT, "tools", 0, byte_count, SG_GRAMMAR_TEXT_MAX);
    }
    struct reader reader = {.text = text, .byte_count = (uint32_t)byte_count, .values = values};
    bool good = read_value(&reader, 0);
    skip_space(&reader);
    good = good && reader.at == byte_count;
    *counts = reader.counts;
    counts->text_bytes = (uint32_t)byte_count;
    return good ? SG_STATUS_OK : sg_fail(error, SG_STATUS_GRAMMAR_BAD_JSON, "tools", reader.at, 0, 0);
}

bool sg_json_is(const uint8_t *text, const struct sg_json *value, const char *word) {
    const size_t length = strlen(word);
    return value->kind == SG_JSON_STRING && value->byte_count == length + 2 &&
           memcmp(text + value->start + 1, word, length) == 0;
}

uint32_t sg_json_put_character(uint32_t character, uint8_t *out) {
    const uint8_t *escaped = character < 0x80 && character ? memchr(sg_escaped, (int)character, SG_ESCAPE_COUNT) : NULL;
    if (escaped) {
        out[0] = '\\';
        out[1] = sg_escapes[escaped - sg_escaped];
        return 2;
    }
    if (character >= 0x20) return sg_utf8_put(character, out);
    const uint8_t spelt[6] = {'\\', 'u', '0', '0', (uint8_t)('0' + (character >> 4)),
                              (uint8_t)"0123456789abcdef"[character & 15]};
    memcpy(out, spelt, sizeof spelt);
    return sizeof spelt;
}

/* The character that an escape stands for; `*at` moves behind it. */
static uint32_t read_escaped(const uint8_t *text, uint32_t *at) {
    const uint8_t *escape = text + *at;
    *at += 2;
    if (escape[1] != 'u') {
        const uint8_t *known = memchr(sg_escapes, escape[1], SG_ESCAPE_COUNT);
        return known ? sg_escaped[known - sg_escapes] : '/';
    }
    *at += 4;
    const uint32_t word = hex_word(escape + 2);
    if (word < 0xd800 || word >= 0xe000) return word;
    *at += 6;
    return 0x10000 + ((word & 0x3ff) << 10) + (hex_word(escape + 8) & 0x3ff);
}

static uint32_t put_string(const uint8_t *text, const struct sg_json *value, uint8_t *out) {
    const uint32_t end = value->start + value->byte_count - 1;
    uint32_t used = 0;
    out[used++] = '"';
    for (uint32_t at = value->start + 1; at < end;) {
        if (text[at] == '\\') {
            used += sg_json_put_character(read_escaped(text, &at), out + used);
        } else {
            out[used++] = text[at++];
        }
    }
    out[used++] = '"';
    return used;
}

uint32_t sg_json_canonical(const uint8_t *text, const struct sg_json *values, uint32_t index, uint8_t *out) {
    const struct sg_json *value = &values[index];
    if (value->kind == SG_JSON_STRING) {
        const uint32_t used = put_string(text, value, out);
        for (uint32_t i = 0; i + 2 < used; i++) {
            if (memcmp(out + i, "\xe2\x96\x81", 3) == 0) return 0;
        }
        return used;
    }
    if (value->kind != SG_JSON_ARRAY && value->kind != SG_JSON_OBJECT) {
        memcpy(out, text + value->start, value->byte_count);
        return value->byte_count;
    }
    const bool is_object = value->kind == SG_JSON_OBJECT;
    uint32_t used = 0, child = index + 1;
    out[used++] = is_object ? '{' : '[';
    for (uint32_t i = 0; i < value->count << is_object; i++) {
        if (i > 0) out[used++] = is_object && i % 2 ? ':' : ',';
        const uint32_t more = sg_json_canonical(text, values, child, out + used);
        if (more == 0) return 0;
        used += more;
        child = values[child].next;
    }
    out[used++] = is_object ? '}' : ']';
    return used;
}

uint32_t sg_json_decode(const uint8_t *text, const struct sg_json *value, uint8_t *out) {
    const uint32_t end = value->start + value->byte_count - 1;
    uint32_t used = 0;
    for (uint32_t at = value->start + 1; at < end;) {
        if (text[at] == '\\') {
            used += sg_utf8_put(read_escaped(text, &at), out + used);
        } else {
            out[used++] = text[at++];
        }
    }
    return used;
}
