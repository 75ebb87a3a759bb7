/* Reading the tokenizer's blob: rule 10 of docs/formats/cact.md, and the tables that encoding looks into.
 *
 * Texts are found by binary search over sorted ids: no hash that a hostile vocabulary could fill with collisions. */
#include "tokenizer.h"

#include "utf8.h"

#define BLOB_HEADER_BYTES 24u
#define PIECE_HEADER_BYTES 7u /* f32 score, u8 type, u16 length */

static int bad(struct sg_error *error, const char *field, uint64_t offset, uint64_t found, uint64_t allowed) {
    return sg_fail(error, SG_STATUS_CACT_BAD_TOKENIZER, field, offset, found, allowed);
}

struct sg_piece sg_piece_at(const struct sg_tokenizer *tokenizer, uint32_t id) {
    const uint8_t *record = tokenizer->blob + tokenizer->offsets[id];
    return (struct sg_piece){
        .text = record + PIECE_HEADER_BYTES,
        .byte_count = sg_load_u16(record + 5),
        .score = sg_float_of_bits(sg_load_u32(record)),
        .type = (enum sg_piece_type)record[4],
    };
}

size_t sg_utf8_length(const uint8_t *text, size_t byte_count) {
    if (byte_count == 0) return 0;
    const uint32_t need = sg_utf8_need(text[0]);
    if (need > byte_count) return 0;
    for (uint32_t place = 1; place < need; place++) {
        if (!sg_utf8_continues(text[0], place, text[place])) return 0;
    }
    return need;
}

static int compare(const uint8_t *a, size_t a_bytes, const uint8_t *b, size_t b_bytes) {
    const size_t common = a_bytes < b_bytes ? a_bytes : b_bytes;
    const int order = memcmp(a, b, common);
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int compare_pieces(const struct sg_tokenizer *tokenizer, uint32_t a, uint32_t b) {
    const struct sg_piece first = sg_piece_at(tokenizer, a), second = sg_piece_at(tokenizer, b);
    return compare(first.text, first.byte_count, second.text, second.byte_count);
}

/* How many of the `count` sorted ids have a text that is not above `text`. */
static uint32_t count_up_to(const struct sg_tokenizer *tokenizer, const uint32_t *ids, uint32_t count,
                            const uint8_t *text, size_t byte_count) {
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const struct sg_piece piece = sg_piece_at(tokenizer, ids[middle]);
        if (compare(piece.text, piece.byte_count, text, byte_count) <= 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t sg_piece_find(const struct sg_tokenizer *tokenizer, const uint8_t *text, size_t byte_count) {
    if (byte_count > tokenizer->piece_bytes_max) return SG_NO_PIECE;
    const uint32_t above = count_up_to(tokenizer, tokenizer->sorted, tokenizer->piece_count, text, byte_count);
    if (above == 0) return SG_NO_PIECE;
    const uint32_t id = tokenizer->sorted[above - 1];
    const struct sg_piece piece = sg_piece_at(tokenizer, id);
    return piece.byte_count == byte_count && memcmp(piece.text, text, byte_count) == 0 ? id : SG_NO_PIECE;
}

uint32_t sg_marker_find(const struct sg_tokenizer *tokenizer, const uint8_t *text, size_t byte_count) {
    if (byte_count == 0 || !tokenizer->starts_marker[text[0]]) return SG_NO_PIECE;
    uint32_t index = count_up_to(tokenizer, tokenizer->markers, tokenizer->marker_count, text, byte_count) - 1;
    /* Every marker that starts the text also starts the greatest marker that is not above the text. */
    while (index != SG_NO_PIECE) {
        const struct sg_piece piece = sg_piece_at(tokenizer, tokenizer->markers[index]);
        if (piece.byte_count <= byte_count && memcmp(piece.text, text, piece.byte_count) == 0) {
            return tokenizer->markers[index];
        }
        index = tokenizer->prefixes[index];
    }
    return SG_NO_PIECE;
}

/* Heap sort: no recursion, no extra memory, n log n for any input. */
static void sift_down(const struct sg_tokenizer *tokenizer, uint32_t *ids, uint32_t root, uint32_t count) {
    while (2 * (uint64_t)root + 1 < count) {
        uint32_t child = 2 * root + 1;
        if (child + 1 < count && compare_pieces(tokenizer, ids[child], ids[child + 1]) < 0) child++;
        if (compare_pieces(tokenizer, ids[root], ids[child]) >= 0) return;
        const uint32_t id = ids[root];
        ids[root] = ids[child];
        ids[child] = id;
        root = child;
    }
}

static void sort_pieces(const struct sg_tokenizer *tokenizer) {
    uint32_t *ids = tokenizer->sorted;
    const uint32_t count = tokenizer->piece_count;
    for (uint32_t i = 0; i < count; i++) ids[i] = i;
    for (uint32_t root = count / 2; root > 0; root--) sift_down(tokenizer, ids, root - 1, count);
    for (uint32_t last = count - 1; last > 0; last--) {
        const uint32_t id = ids[0];
        ids[0] = ids[last];
        ids[last] = id;
        sift_down(tokenizer, ids, 0, last);
    }
}

/* The marker just before the i-th in sorted order either starts it, or shares its longest starting marker's chain. */
static void link_prefixes(struct sg_tokenizer *tokenizer) {
    for (uint32_t i = 0; i < tokenizer->marker_count; i++) {
        const struct sg_piece piece = sg_piece_at(tokenizer, tokenizer->markers[i]);
        uint32_t before = i - 1; /* SG_NO_PIECE for the first */
        while (before != SG_NO_PIECE) {
            const struct sg_piece start = sg_piece_at(tokenizer, tokenizer->markers[before]);
            if (start.byte_count < piece.byte_count && memcmp(start.text, piece.text, start.byte_count) == 0) break;
            before = tokenizer->prefixes[before];
        }
        tokenizer->prefixes[i] = before;
        tokenizer->starts_marker[piece.text[0]] = true;
    }
}

/* The value of a byte piece, spelt <0x00> to <0xFF>; -1 for another spelling. */
static int byte_value(const struct sg_piece *piece) {
    static const char digits[] = "0123456789ABCDEF";
    if (piece->byte_count != 6 || memcmp(piece->text, "<0x", 3) != 0 || piece->text[5] != '>') return -1;
    const char *high = memchr(digits, piece->text[3], 16);
    const char *low = memchr(digits, piece->text[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* One piece after the cursor; `*type` receives its type. */
static int check_piece(struct sg_cursor *cursor, uint64_t offset, struct sg_piece *piece, struct sg_error *error) {
    const uint64_t at = offset + cursor->offset;
    const uint8_t *record = sg_take(cursor, PIECE_HEADER_BYTES);
    if (!record) return bad(error, "tokenizer.piece", at, 0, PIECE_HEADER_BYTES);
    const uint32_t score = sg_load_u32(record), byte_count = sg_load_u16(record + 5);
    if ((score & 0x7f800000u) == 0x7f800000u) return bad(error, "tokenizer.piece.score", at, score, 0);
    if (record[4] > SG_PIECE_BYTE) return bad(error, "tokenizer.piece.type", at + 4, record[4], SG_PIECE_BYTE);
    const uint8_t *text = byte_count ? sg_take(cursor, byte_count) : NULL;
    if (!text) return bad(error, "tokenizer.piece.length", at + 5, byte_count, cursor->byte_count - cursor->offset);
    for (uint32_t i = 0; i < byte_count;) {
        const size_t length = sg_utf8_length(text + i, byte_count - i);
        if (length == 0) return bad(error, "tokenizer.piece.text", at + PIECE_HEADER_BYTES + i, text[i], 0);
        i += (uint32_t)length;
    }
    *piece = (struct sg_piece){text, byte_count, sg_float_of_bits(score), (enum sg_piece_type)record[4]};
    return SG_STATUS_OK;
}

/* All pieces in order; `offsets` is filled where there is memory for it. */
static int read_pieces(struct sg_cursor *cursor, uint64_t offset, struct sg_tokenizer *tokenizer,
                       struct sg_error *error) {
    uint32_t byte_piece_count = 0;
    memset(tokenizer->byte_ids, 0xff, sizeof tokenizer->byte_ids);
    for (uint32_t id = 0; id < tokenizer->piece_count; id++) {
        const size_t start = cursor->offset;
        struct sg_piece piece = {0};
        const int status = check_piece(cursor, offset, &piece, error);
        if (status != SG_STATUS_OK) return status;
        if (tokenizer->offsets) tokenizer->offsets[id] = (uint32_t)start;
        if (piece.byte_count > tokenizer->piece_bytes_max) tokenizer->piece_bytes_max = piece.byte_count;
        if (piece.type == SG_PIECE_USER_DEFINED) tokenizer->marker_count++;
        if (piece.type != SG_PIECE_BYTE) continue;
        const int value = byte_value(&piece);
        if (value < 0) return bad(error, "tokenizer.byte_piece", offset + start, id, 0);
        byte_piece_count += tokenizer->byte_ids[value] == SG_NO_PIECE;
        tokenizer->byte_ids[value] = id;
    }
    if (cursor->offset != cursor->byte_count) {
        return bad(error, "tokenizer.length", offset + cursor->offset, cursor->byte_count, cursor->offset);
    }
    if (tokenizer->byte_fallback && byte_piece_count != 256) {
        return bad(error, "tokenizer.byte_pieces", offset, byte_piece_count, 256);
    }
    return SG_STATUS_OK;
}

static int read_header(struct sg_cursor *cursor, uint64_t offset, uint32_t vocab_count,
                       struct sg_tokenizer *tokenizer, struct sg_error *error) {
    const uint8_t *header = sg_take(cursor, BLOB_HEADER_BYTES);
    if (!header) return bad(error, "tokenizer.header", offset, cursor->byte_count, BLOB_HEADER_BYTES);
    const uint64_t room = (cursor->byte_count - BLOB_HEADER_BYTES) / (PIECE_HEADER_BYTES + 1);
    const uint64_t most = room < vocab_count ? room : vocab_count;
    const uint32_t count = sg_load_u32(header);
    if (count < 1 || count > most) return bad(error, "tokenizer.piece_count", offset, count, most);
    for (uint32_t i = 1; i <= 4; i++) {
        const uint32_t id = sg_load_u32(header + 4 * i);
        if (id >= count) return bad(error, "tokenizer.special_id", offset + 4 * i, id, count - 1);
    }
    if (header[20] > 1 || header[21] > 1 || sg_load_u16(header + 22)) {
        return bad(error, "tokenizer.flags", offset + 20, sg_load_u32(header + 20), 1);
    }
    tokenizer->piece_count = count;
    tokenizer->pad_id = sg_load_u32(header + 4);
    tokenizer->eos_id = sg_load_u32(header + 8);
    tokenizer->bos_id = sg_load_u32(header + 12);
    tokenizer->unk_id = sg_load_u32(header + 16);
    tokenizer->add_dummy_prefix = header[20];
    tokenizer->byte_fallback = header[21];
    return SG_STATUS_OK;
}

/* Needs the memory: order, uniqueness, markers. */
static int build_tables(struct sg_tokenizer *tokenizer, uint64_t offset, struct sg_error *error) {
    sort_pieces(tokenizer);
    uint32_t marker_count = 0;
    for (uint32_t i = 0; i < tokenizer->piece_count; i++) {
        const uint32_t id = tokenizer->sorted[i];
        if (i > 0 && compare_pieces(tokenizer, tokenizer->sorted[i - 1], id) == 0) {
            return bad(error, "tokenizer.piece.text", offset + tokenizer->offsets[id], id, tokenizer->sorted[i - 1]);
        }
        if (sg_piece_at(tokenizer, id).type == SG_PIECE_USER_DEFINED) tokenizer->markers[marker_count++] = id;
    }
    link_prefixes(tokenizer);
    return SG_STATUS_OK;
}

int sg_tokenizer_load(const uint8_t *blob, uint64_t blob_bytes, uint64_t offset, uint32_t vocab_count,
                      struct sg_tokenizer *tokenizer, struct sg_arena *arena, struct sg_error *error) {
    memset(tokenizer, 0, sizeof *tokenizer);
    if (blob_bytes > UINT32_MAX) return bad(error, "tokenizer.length", offset, blob_bytes, UINT32_MAX);
    struct sg_cursor cursor = sg_cursor_at(blob, (size_t)blob_bytes);
    int status = read_header(&cursor, offset, vocab_count, tokenizer, error);
    if (status != SG_STATUS_OK) return status;
    tokenizer->blob = blob;
    tokenizer->offsets = sg_arena_take(arena, tokenizer->piece_count, sizeof *tokenizer->offsets);
    status = read_pieces(&cursor, offset, tokenizer, error);
    if (status != SG_STATUS_OK) return status;
    tokenizer->sorted = sg_arena_take(arena, tokenizer->piece_count, sizeof *tokenizer->sorted);
    tokenizer->markers = sg_arena_take(arena, tokenizer->marker_count, sizeof *tokenizer->markers);
    tokenizer->prefixes = sg_arena_take(arena, tokenizer->marker_count, sizeof *tokenizer->prefixes);
    if (!arena->base || !sg_arena_fits(arena)) return SG_STATUS_OK;
    return build_tables(tokenizer, offset, error);
}
