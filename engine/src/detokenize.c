/* Ids to text, one id at a time.
 *
 * The pieces' bytes run through one UTF-8 decoder, as if all were joined first: bytes that can never become a character
 * turn into U+FFFD, one per maximal bad part (Unicode 15, 3.9, as Python's `replace` does). U+2581 becomes a space, and
 * the first space of all is dropped where the tokenizer puts a dummy prefix. Control and unknown pieces have no text. */
#include "model.h"

#include "utf8.h"

struct writer {
    uint8_t *out;
    size_t capacity;
    size_t count;
};

static void put_bytes(struct writer *writer, const uint8_t *bytes, size_t byte_count) {
    for (size_t i = 0; i < byte_count; i++, writer->count++) {
        if (writer->count < writer->capacity) writer->out[writer->count] = bytes[i];
    }
}

static void put_replacement(struct writer *writer) {
    static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd};
    put_bytes(writer, replacement, sizeof replacement);
}

static void put_character(struct sg_detokenizer *state, struct writer *writer, bool drop_first_space) {
    static const uint8_t space_mark[3] = {0xe2, 0x96, 0x81}, space[1] = {' '};
    const bool is_mark = state->pending_count == 3 && memcmp(state->pending, space_mark, 3) == 0;
    const bool is_space = is_mark || (state->pending_count == 1 && state->pending[0] == ' ');
    const bool first = !state->started;
    state->started = 1;
    if (is_space) {
        if (!(first && drop_first_space)) put_bytes(writer, space, 1);
    } else {
        put_bytes(writer, state->pending, state->pending_count);
    }
}

static void give_up_pending(struct sg_detokenizer *state, struct writer *writer) {
    if (state->pending_count == 0) return;
    state->pending_count = 0;
    state->started = 1;
    put_replacement(writer);
}

static void push_byte(struct sg_detokenizer *state, uint8_t byte, struct writer *writer, bool drop_first_space) {
    if (state->pending_count > 0 && !sg_utf8_continues(state->pending[0], state->pending_count, byte)) {
        give_up_pending(state, writer);
    }
    if (state->pending_count == 0 && sg_utf8_need(byte) == 0) {
        state->started = 1;
        put_replacement(writer);
        return;
    }
    state->pending[state->pending_count++] = byte;
    if (state->pending_count == sg_utf8_need(state->pending[0])) {
        put_character(state, writer, drop_first_space);
        state->pending_count = 0;
    }
}

void sg_detokenizer_init(struct sg_detokenizer *state) { *state = (struct sg_detokenizer){0}; }

int sg_detokenize(const struct sg_model *model, struct sg_detokenizer *state, uint32_t id, uint8_t *out,
                  size_t out_capacity, size_t *out_bytes, struct sg_error *error) {
    const struct sg_tokenizer *tokenizer = &model->tokenizer;
    *out_bytes = 0;
    if (id >= model->geometry.vocab_count) {
        return sg_fail(error, SG_STATUS_BAD_TOKEN, "id", 0, id, model->geometry.vocab_count - 1);
    }
    if (id >= tokenizer->piece_count) return SG_STATUS_OK; /* a row of the embedding without a text */
    const struct sg_piece piece = sg_piece_at(tokenizer, id);
    if (piece.type == SG_PIECE_CONTROL || piece.type == SG_PIECE_UNKNOWN) return SG_STATUS_OK;
    struct sg_detokenizer next = *state;
    struct writer writer = {out, out_capacity, 0};
    if (piece.type == SG_PIECE_BYTE) {
        uint8_t value = 0;
        while (tokenizer->byte_ids[value] != id) value++;
        push_byte(&next, value, &writer, tokenizer->add_dummy_prefix);
    } else {
        for (uint32_t i = 0; i < piece.byte_count; i++) {
            push_byte(&next, piece.text[i], &writer, tokenizer->add_dummy_prefix);
        }
    }
    if (writer.count > out_capacity) {
        return sg_fail(error, SG_STATUS_BUFFER_TOO_SMALL, "out", 0, out_capacity, writer.count);
    }
    *state = next;
    *out_bytes = writer.count;
    return SG_STATUS_OK;
}

int sg_detokenize_flush(struct sg_detokenizer *state, uint8_t *out, size_t out_capacity, size_t *out_bytes) {
    *out_bytes = 0;
    if (state->pending_count == 0) return SG_STATUS_OK;
    if (out_capacity < 3) return SG_STATUS_BUFFER_TOO_SMALL;
    struct writer writer = {out, out_capacity, 0};
    give_up_pending(state, &writer);
    *out_bytes = writer.count;
    return SG_STATUS_OK;
}
