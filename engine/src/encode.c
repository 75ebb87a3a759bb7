/* Text to ids: SentencePiece's BPE, with a heap of candidate merges.
 *
 * Source: sentencepiece, `bpe_model.cc` and `prefix_matcher` (what it does, not its code). Order of work: spaces become
 * U+2581, the dummy prefix is put in front, the longest marker wins at each place and stands alone, and what lies
 * between markers is merged: always the adjacent pair whose text is the piece with the highest score, the leftmost of
 * equals. Symbols that are no piece at the end become byte pieces, or the unknown id without byte fallback. */
#include "model.h"

#include "utf8.h"

/* U+2581, which stands for a space. */
static const uint8_t space_mark[3] = {0xe2, 0x96, 0x81};

/* A run of text that is one symbol so far; merged-away symbols have no bytes. */
struct symbol {
    uint32_t start;
    uint32_t byte_count;
    uint32_t before, after; /* neighbours, or SG_NO_PIECE */
};

struct merge {
    float score;
    uint32_t left;       /* symbol */
    uint32_t byte_count; /* of both; a mismatch later means that one of them has changed */
};

struct encoder {
    const struct sg_tokenizer *tokenizer;
    const uint8_t *text; /* escaped */
    struct symbol *symbols;
    struct merge *merges; /* a heap, the best on top */
    uint32_t merge_count;
    uint32_t *ids;
    size_t id_capacity, id_count;
};

/* Counts behind the scratch memory: escaped bytes, symbols, and merges (each join adds two at most). */
static uint64_t escaped_bytes_max(uint64_t text_bytes) { return 3 * text_bytes + sizeof space_mark; }
static uint64_t symbol_count_max(uint64_t text_bytes) { return text_bytes + 1; }
static uint64_t merge_count_max(uint64_t text_bytes) { return 3 * (text_bytes + 1); }

static void lay_out(struct sg_arena *arena, uint64_t text_bytes, uint8_t **text, struct encoder *encoder) {
    encoder->symbols = sg_arena_take(arena, symbol_count_max(text_bytes), sizeof *encoder->symbols);
    encoder->merges = sg_arena_take(arena, merge_count_max(text_bytes), sizeof *encoder->merges);
    *text = sg_arena_take(arena, escaped_bytes_max(text_bytes), 1);
}

size_t sg_encode_scratch_size(size_t text_bytes) {
    struct sg_arena arena = {0};
    struct encoder encoder;
    uint8_t *text;
    lay_out(&arena, text_bytes, &text, &encoder);
    return sg_arena_fits(&arena) ? (size_t)arena.used : 0;
}

static bool is_better(const struct merge *a, const struct merge *b) {
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void push_merge(struct encoder *encoder, struct merge merge) {
    uint32_t place = encoder->merge_count++;
    while (place > 0 && is_better(&merge, &encoder->merges[(place - 1) / 2])) {
        encoder->merges[place] = encoder->merges[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    encoder->merges[place] = merge;
}

static struct merge pop_merge(struct encoder *encoder) {
    struct merge *heap = encoder->merges;
    const struct merge best = heap[0], last = heap[--encoder->merge_count];
    const uint32_t count = encoder->merge_count;
    uint32_t place = 0;
    for (uint32_t child = 1; child < count; child = 2 * place + 1) {
        if (child + 1 < count && is_better(&heap[child + 1], &heap[child])) child++;
        if (!is_better(&heap[child], &last)) break;
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = last;
    return best;
}

/* Offers the merge of a symbol with the one after it, if their text is a piece. */
static void offer_merge(struct encoder *encoder, uint32_t left) {
    if (left == SG_NO_PIECE || encoder->symbols[left].after == SG_NO_PIECE) return;
    const struct symbol *first = &encoder->symbols[left], *second = &encoder->symbols[first->after];
    const uint32_t byte_count = first->byte_count + second->byte_count;
    const uint32_t id = sg_piece_find(encoder->tokenizer, encoder->text + first->start, byte_count);
    if (id == SG_NO_PIECE) return;
    const struct sg_piece piece = sg_piece_at(encoder->tokenizer, id);
    if (piece.type != SG_PIECE_NORMAL) return; /* a marker cannot appear here; the others are never spelt out */
    push_merge(encoder, (struct merge){piece.score, left, byte_count});
}

static void join_symbols(struct encoder *encoder, uint32_t left) {
    struct symbol *first = &encoder->symbols[left], *second = &encoder->symbols[first->after];
    first->byte_count += second->byte_count;
    second->byte_count = 0;
    first->after = second->after;
    if (first->after != SG_NO_PIECE) encoder->symbols[first->after].before = left;
    offer_merge(encoder, first->before);
    offer_merge(encoder, left);
}

static void put_id(struct encoder *encoder, uint32_t id) {
    if (encoder->id_count < encoder->id_capacity) encoder->ids[encoder->id_count] = id;
    encoder->id_count++;
}

static void put_symbol(struct encoder *encoder, const struct symbol *symbol) {
    const uint8_t *text = encoder->text + symbol->start;
    const uint32_t id = sg_piece_find(encoder->tokenizer, text, symbol->byte_count);
    if (id != SG_NO_PIECE && sg_piece_at(encoder->tokenizer, id).type == SG_PIECE_NORMAL) {
        put_id(encoder, id);
    } else if (encoder->tokenizer->byte_fallback) {
        for (uint32_t i = 0; i < symbol->byte_count; i++) put_id(encoder, encoder->tokenizer->byte_ids[text[i]]);
    } else {
        put_id(encoder, encoder->tokenizer->unk_id);
    }
}

/* Text without markers: characters become symbols, symbols are merged, what remains becomes ids. */
static void encode_run(struct encoder *encoder, size_t start, size_t end) {
    uint32_t count = 0;
    for (size_t at = start; at < end; count++) {
        const size_t length = sg_utf8_need(encoder->text[at]);
        encoder->symbols[count] = (struct symbol){(uint32_t)at, (uint32_t)length, count - 1, count + 1};
        at += length;
    }
    if (count == 0) return;
    encoder->symbols[count - 1].after = SG_NO_PIECE;
    encoder->merge_count = 0;
    for (uint32_t i = 0; i < count; i++) offer_merge(encoder, i);
    while (encoder->merge_count > 0) {
        const struct merge merge = pop_merge(encoder);
        const struct symbol *left = &encoder->symbols[merge.left];
        if (left->byte_count == 0 || left->after == SG_NO_PIECE) continue;
        if (left->byte_count + encoder->symbols[left->after].byte_count != merge.byte_count) continue;
        join_symbols(encoder, merge.left);
    }
    for (uint32_t i = 0; i != SG_NO_PIECE; i = encoder->symbols[i].after) put_symbol(encoder, &encoder->symbols[i]);
}

/* Writes the escaped text; its length, or SIZE_MAX with the place of the first bad byte in `*bad_at`. */
static size_t escape(const uint8_t *text, size_t text_bytes, bool dummy_prefix, uint8_t *out, size_t *bad_at) {
    size_t used = 0;
    if (dummy_prefix) {
        memcpy(out, space_mark, sizeof space_mark);
        used = sizeof space_mark;
    }
    for (size_t at = 0; at < text_bytes;) {
        const size_t length = sg_utf8_length(text + at, text_bytes - at);
        if (length == 0) {
            *bad_at = at;
            return SIZE_MAX;
        }
        const bool space = text[at] == ' ';
        const size_t put = space ? sizeof space_mark : length;
        memcpy(out + used, space ? space_mark : text + at, put);
        used += put;
        at += length;
    }
    return used;
}

int sg_encode(const struct sg_model *model, const uint8_t *text, size_t text_bytes, uint32_t *ids,
              size_t id_capacity, size_t *id_count, void *scratch, size_t scratch_bytes, struct sg_error *error) {
    const struct sg_tokenizer *tokenizer = &model->tokenizer;
    *id_count = 0;
    if (tokenizer->piece_count == 0) return sg_fail(error, SG_STATUS_CACT_UNSUPPORTED, "tokenizer", 0, 0, 1);
    if (text_bytes > UINT32_MAX / 4) {
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "text", 0, text_bytes, UINT32_MAX / 4);
    }
    if (text_bytes == 0) return SG_STATUS_OK;
    struct sg_arena arena = {.base = scratch, .capacity = scratch_bytes};
    struct encoder encoder = {.tokenizer = tokenizer, .ids = ids, .id_capacity = id_capacity};
    uint8_t *escaped;
    lay_out(&arena, text_bytes, &escaped, &encoder);
    if (!scratch || !sg_arena_fits(&arena)) {
        return sg_fail(error, SG_STATUS_BUFFER_TOO_SMALL, "scratch", 0, scratch_bytes, arena.used);
    }
    encoder.text = escaped;
    size_t bad_at = 0;
    const size_t end = escape(text, text_bytes, tokenizer->add_dummy_prefix, escaped, &bad_at);
    if (end == SIZE_MAX) return sg_fail(error, SG_STATUS_BAD_UTF8, "text", bad_at, text[bad_at], 0);
    size_t run_start = 0;
    for (size_t at = 0; at < end;) {
        const uint32_t marker = sg_marker_find(tokenizer, escaped + at, end - at);
        if (marker == SG_NO_PIECE) {
            at += sg_utf8_need(escaped[at]);
            continue;
        }
        encode_run(&encoder, run_start, at);
        put_id(&encoder, marker);
        at += sg_piece_at(tokenizer, marker).byte_count;
        run_start = at;
    }
    encode_run(&encoder, run_start, end);
    *id_count = encoder.id_count;
    if (encoder.id_count > id_capacity) {
        return sg_fail(error, SG_STATUS_BUFFER_TOO_SMALL, "ids", 0, id_capacity, encoder.id_count);
    }
    return SG_STATUS_OK;
}
