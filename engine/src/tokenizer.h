/* The embedded SentencePiece BPE vocabulary: pieces by id, by text, and by longest marker.
 *
 * Owns: rule 10 of docs/formats/cact.md, encoding and decoding.
 * Knows nothing of: prompts, models. */
#ifndef SG_TOKENIZER_H
#define SG_TOKENIZER_H

#include "arena.h"
#include "cursor.h"
#include "error.h"

#define SG_NO_PIECE UINT32_MAX

enum sg_piece_type { SG_PIECE_NORMAL, SG_PIECE_UNKNOWN, SG_PIECE_CONTROL, SG_PIECE_USER_DEFINED, SG_PIECE_BYTE };

struct sg_tokenizer {
    const uint8_t *blob;
    uint32_t piece_count; /* 0: there is no tokenizer */
    uint32_t pad_id, eos_id, bos_id, unk_id;
    bool add_dummy_prefix, byte_fallback;
    uint32_t piece_bytes_max;
    uint32_t *offsets;  /* (piece_count,) where each piece's record starts in the blob */
    uint32_t *sorted;   /* (piece_count,) ids in order of their texts */
    uint32_t *markers;  /* (marker_count,) ids of the user-defined pieces, in order of their texts */
    uint32_t *prefixes; /* (marker_count,) index of the longest other marker that starts this one, or SG_NO_PIECE */
    uint32_t marker_count;
    bool starts_marker[256]; /* by first byte */
    uint32_t byte_ids[256];  /* SG_NO_PIECE where there is no such piece */
};

struct sg_piece {
    const uint8_t *text;
    uint32_t byte_count;
    float score;
    enum sg_piece_type type;
};

/* Checks the blob, which stands at byte `offset` of the file, and fills `tokenizer` with pieces of `arena`. That no two
 * pieces have one text is found only with memory. */
int sg_tokenizer_load(const uint8_t *blob, uint64_t blob_bytes, uint64_t offset, uint32_t vocab_count,
                      struct sg_tokenizer *tokenizer, struct sg_arena *arena, struct sg_error *error);

struct sg_piece sg_piece_at(const struct sg_tokenizer *tokenizer, uint32_t id);
/* Id of the piece with this text, whatever its type, or SG_NO_PIECE. */
uint32_t sg_piece_find(const struct sg_tokenizer *tokenizer, const uint8_t *text, size_t byte_count);
/* Id of the longest marker that the text starts with, or SG_NO_PIECE. */
uint32_t sg_marker_find(const struct sg_tokenizer *tokenizer, const uint8_t *text, size_t byte_count);

/* Bytes of the valid UTF-8 character at the start of the text, or 0. */
size_t sg_utf8_length(const uint8_t *text, size_t byte_count);

#endif
