/* Input: u8 form (1: a piece for each byte stands in front; 2: dummy prefix; 4: what follows the text is the blob as it
 * is), u8 size of the text, the text, then pieces: i8 score, u8 type, u8 size, bytes. With a piece for each byte, what
 * is encoded must decode to the same text; in any case ids exist, sizes hold, and a buffer too small is told. */
#include "model.h"
#include "models.h"
#include "targets.h"

enum { BYTE_PIECES = 1, DUMMY_PREFIX = 2, IS_BLOB = 4 };

#define BLOB_HEADER_BYTES 24u
#define PIECE_BYTES_MAX 40u
#define BLOB_BYTES_MAX 65536u
#define VOCAB_COUNT 5000u

struct blob {
    uint8_t bytes[BLOB_BYTES_MAX];
    size_t byte_count;
    uint32_t piece_count;
};

static void store(uint8_t *at, uint32_t value, uint32_t byte_count) {
    for (uint32_t i = 0; i < byte_count; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void put_piece(struct blob *blob, float score, uint32_t type, const uint8_t *text, uint32_t byte_count) {
    uint8_t *at = blob->bytes + blob->byte_count;
    memcpy(at, &score, 4);
    store(at + 4, type, 1);
    store(at + 5, byte_count, 2);
    memcpy(at + 7, text, byte_count);
    blob->byte_count += 7 + byte_count;
    blob->piece_count++;
}

static void put_byte_pieces(struct blob *blob) {
    for (uint32_t value = 0; value < 256; value++) {
        char text[7];
        snprintf(text, sizeof text, "<0x%02X>", value);
        put_piece(blob, 0.0f, SG_PIECE_BYTE, (const uint8_t *)text, 6);
    }
}

static void put_pieces(struct blob *blob, struct fuzz_input *input) {
    while (input->byte_count > 3 && blob->byte_count + PIECE_BYTES_MAX + 7 < BLOB_BYTES_MAX) {
        const int8_t score = (int8_t)fuzz_take(input, 1);
        const uint32_t type = fuzz_take(input, 1) % 6, told = fuzz_take(input, 1) % PIECE_BYTES_MAX;
        const uint32_t byte_count = told < input->byte_count ? told : (uint32_t)input->byte_count;
        put_piece(blob, score, type, input->bytes, byte_count);
        input->bytes += byte_count, input->byte_count -= byte_count;
    }
}

/* Taken to the byte. */
static uint8_t *make_blob(uint32_t form, struct fuzz_input *input, size_t *byte_count) {
    struct blob *blob = calloc(1, sizeof *blob);
    uint8_t *made;
    if (form & IS_BLOB) {
        blob->byte_count = input->byte_count < BLOB_BYTES_MAX ? input->byte_count : BLOB_BYTES_MAX;
        memcpy(blob->bytes, input->bytes, blob->byte_count);
    } else {
        blob->byte_count = BLOB_HEADER_BYTES;
        if (form & BYTE_PIECES)
            put_byte_pieces(blob);
        put_pieces(blob, input);
        store(blob->bytes, blob->piece_count, 4);
        store(blob->bytes + 20, (form & DUMMY_PREFIX) != 0, 1);
        store(blob->bytes + 21, form & BYTE_PIECES, 1);
    }
    *byte_count = blob->byte_count;
    made = fuzz_block(blob->byte_count);
    memcpy(made, blob->bytes, blob->byte_count);
    free(blob);
    return made;
}

/* The text as it comes back: a space for each U+2581. */
static size_t unmark(const uint8_t *text, size_t byte_count, uint8_t *out) {
    size_t used = 0;
    for (size_t at = 0; at < byte_count;) {
        const bool is_mark = byte_count - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0;
        out[used++] = is_mark ? ' ' : text[at];
        at += is_mark ? 3 : 1;
    }
    return used;
}

/* The bytes of one id into a buffer of just its size, which a smaller one has told. */
static size_t decode_one(const struct sg_model *model, struct sg_detokenizer *state, uint32_t id, uint8_t *out) {
    struct sg_error error = {0};
    size_t byte_count = 0;
    int status = sg_detokenize(model, state, id, NULL, 0, &byte_count, &error);
    if (status != SG_STATUS_BUFFER_TOO_SMALL)
        return 0;
    const size_t needed = (size_t)error.allowed;
    uint8_t *exact = fuzz_block(needed);
    status = sg_detokenize(model, state, id, exact, needed, &byte_count, &error);
    if (status != SG_STATUS_OK || byte_count != needed || needed > SG_DETOKENIZE_BYTES_MAX)
        abort();
    memcpy(out, exact, byte_count);
    free(exact);
    return byte_count;
}

static void require_text(const struct sg_model *model, const uint32_t *ids, size_t id_count, const uint8_t *text,
                         size_t text_bytes) {
    const size_t decoded_max = (id_count + 1) * (model->tokenizer.piece_bytes_max + 8);
    uint8_t *decoded = fuzz_block(decoded_max), *wanted = fuzz_block(text_bytes);
    struct sg_detokenizer state;
    size_t used = 0, last = 0;
    sg_detokenizer_init(&state);
    for (size_t i = 0; i < id_count; i++)
        used += decode_one(model, &state, ids[i], decoded + used);
    sg_detokenize_flush(&state, decoded + used, decoded_max - used, &last);
    if (last || used != unmark(text, text_bytes, wanted) || memcmp(decoded, wanted, used) != 0)
        abort();
    free(decoded), free(wanted);
}

static void encode(const struct sg_model *model, const uint8_t *text, size_t text_bytes) {
    const size_t scratch_bytes = sg_encode_scratch_size(text_bytes), capacity = 3 * text_bytes + 3;
    void *scratch = fuzz_block(scratch_bytes);
    uint32_t *ids = fuzz_block(capacity * sizeof *ids);
    struct sg_error error = {0};
    size_t id_count, told;
    const int status = sg_encode(model, text, text_bytes, ids, capacity, &id_count, scratch, scratch_bytes, &error);
    if (status == SG_STATUS_BUFFER_TOO_SMALL)
        abort();
    if (status == SG_STATUS_OK) {
        for (size_t i = 0; i < id_count; i++)
            if (ids[i] >= model->tokenizer.piece_count)
                abort();
        if (id_count && (sg_encode(model, text, text_bytes, ids, id_count - 1, &told, scratch, scratch_bytes, &error) !=
                             SG_STATUS_BUFFER_TOO_SMALL || told != id_count))
            abort();
        sg_encode(model, text, text_bytes, ids, id_count, &told, scratch, scratch_bytes, &error);
        if (model->tokenizer.byte_fallback)
            require_text(model, ids, id_count, text, text_bytes);
    }
    free(scratch), free(ids);
}

static void decode_all(const struct sg_model *model) {
    struct sg_detokenizer state;
    uint8_t *out = fuzz_block(SG_DETOKENIZE_BYTES_MAX);
    size_t left;
    sg_detokenizer_init(&state);
    for (uint32_t id = 0; id < model->tokenizer.piece_count + 2; id++)
        decode_one(model, &state, id * 97 % (model->tokenizer.piece_count + 2), out);
    sg_detokenize_flush(&state, out, 3, &left);
    free(out);
}

void fuzz_tokenizer(const uint8_t *data, size_t byte_count) {
    struct fuzz_input input = {data, byte_count};
    const uint32_t form = fuzz_take(&input, 1), told = fuzz_take(&input, 1);
    const size_t text_bytes = told < input.byte_count ? told : input.byte_count;
    struct sg_model *model = calloc(1, sizeof *model);
    struct sg_arena arena = {0};
    struct sg_error error = {0};
    uint8_t *text = fuzz_block(text_bytes);
    size_t blob_bytes;
    memcpy(text, input.bytes, text_bytes);
    input.bytes += text_bytes, input.byte_count -= text_bytes;
    uint8_t *blob = make_blob(form, &input, &blob_bytes);
    model->geometry.vocab_count = VOCAB_COUNT;
    if (sg_tokenizer_load(blob, blob_bytes, 0, VOCAB_COUNT, &model->tokenizer, &arena, &error) == SG_STATUS_OK) {
        arena = (struct sg_arena){.base = fuzz_block((size_t)arena.used), .capacity = arena.used};
        if (sg_tokenizer_load(blob, blob_bytes, 0, VOCAB_COUNT, &model->tokenizer, &arena, &error) == SG_STATUS_OK) {
            encode(model, text, text_bytes);
            decode_all(model);
        }
        free(arena.base);
    }
    free(blob), free(text), free(model);
}
