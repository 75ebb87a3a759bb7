/* The constants of docs/formats/patch.md: what the maker writes and the rebuilder reads.
 *
 * Owns: sizes, kinds, coders and limits. Knows nothing of: how anything is coded. */
#ifndef SG_PATCH_FORMAT_H
#define SG_PATCH_FORMAT_H

#include <stdint.h>

#include "delta_basis.h"

#define SG_PATCH_VERSION 1u
#define SG_PATCH_HEADER_BYTES 104u
#define SG_PATCH_HEADER_CHECKED_BYTES 100u /* the last four bytes are a check over these */
#define SG_PATCH_TRAILER_BYTES 8u
#define SG_PATCH_FIELDS_MAX 64u            /* bytes of a segment's fields, its length byte apart */
#define SG_PATCH_PAYLOAD_MAX (256u * 1024u)
#define SG_PATCH_PIECE_MAX (64u * 1024u)   /* target bytes of one literal, words or halves segment */

#define SG_PATCH_EFFORT_MAX 9u
#define SG_PATCH_TABLE_COUNT 32u
#define SG_PATCH_ROW_CODES_MAX 16384u
#define SG_PATCH_BLOCK_CODES_MAX (512u * 1024u)
#define SG_PATCH_GROUP_CODES 128u

/* As the tail of PNG's signature: a transfer in text mode damages it. */
static const uint8_t sg_patch_magic[8] = {0x89, 'S', 'G', 'P', '\r', '\n', 0x1a, '\n'};

enum sg_patch_kind {
    SG_SEGMENT_COPY = 1,    /* base bytes as they are */
    SG_SEGMENT_LITERAL = 2, /* bytes without a base */
    SG_SEGMENT_WORDS = 3,   /* 32-bit words, each as its difference to the base's */
    SG_SEGMENT_HALVES = 4,  /* 16-bit floats, each as the distance of its bits to the base's */
    SG_SEGMENT_CQ = 5,      /* a CQ tensor: codes and norms given the base's */
    SG_SEGMENT_TABLE = 6,   /* frequencies for the CQ segments that follow; no target bytes */
};

enum sg_patch_coder {
    SG_CODER_STORED = 0,   /* literal: the bytes themselves */
    SG_CODER_MODELLED = 1, /* everything but CQ: adaptive binary coder */
    SG_CODER_UNGUIDED = 1, /* CQ: context is the base's code; table: its rows are listed */
    SG_CODER_GUIDED = 2,   /* CQ: context is the base's code and a predicted shift; table: its rows are computed */
    SG_CODER_SEEDED = 3,   /* CQ: guided, with Q near the span of a named basis */
    SG_CODER_NARROWED = 3, /* table: computed, for weights that lie near their level */
    SG_CODER_PREDICTED = 4,        /* CQ: as guided, but the shift alone says the codes */
    SG_CODER_PREDICTED_SEEDED = 5, /* CQ: as seeded, likewise */
};

/* The fields of one segment, in the order in which they stand. */
struct sg_patch_segment {
    uint8_t kind;
    uint8_t coder;
    uint64_t base_skip;    /* base bytes to leave out first */
    uint64_t byte_count;   /* target bytes; as many base bytes are read, but for a literal */
    /* CQ */
    uint32_t row_count;
    uint32_t group_count;  /* norms per row; 128 codes each */
    uint32_t bits;         /* as in the container: 1 to 4, or 5 for ternary */
    uint32_t table_index;
    uint32_t block_rows;   /* rows per block; the last block may have fewer */
    /* guided CQ */
    uint32_t rank;
    uint32_t pre_shift;
    struct sg_basis basis; /* seeded; its rank is apart from the shift's */
    uint32_t boost;        /* predicted */
    /* computed table */
    uint32_t noise;
    uint32_t bucket_shift;
    uint32_t floor;
    uint32_t width;        /* narrowed */
};

static inline int sg_coder_is_seeded(uint32_t coder) {
    return coder == SG_CODER_SEEDED || coder == SG_CODER_PREDICTED_SEEDED;
}

static inline int sg_coder_is_predicted(uint32_t coder) {
    return coder == SG_CODER_PREDICTED || coder == SG_CODER_PREDICTED_SEEDED;
}

/* Bits that one stored code takes, from a record's `bits`; ternary is kept in crumbs. 0 for an unknown width. */
static inline uint32_t sg_cq_code_bits(uint32_t bits) { return bits == 5 ? 2 : bits <= 4 ? bits : 0; }

#endif
