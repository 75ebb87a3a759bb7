/* The rebuilder's state and its parts. See docs/formats/patch.md. */
#ifndef SG_REBUILD_H
#define SG_REBUILD_H

#include "delta_guide.h"
#include "delta_state.h"
#include "error.h"
#include "saguaro.h"

enum sg_rebuild_phase {
    SG_PHASE_HEADER,
    SG_PHASE_FIELDS_SIZE, /* one byte: how long the next segment's fields are */
    SG_PHASE_FIELDS,
    SG_PHASE_SKIP,        /* base bytes that the segment leaves out */
    SG_PHASE_BASE,        /* base bytes that it copies or starts from, into the target */
    SG_PHASE_PAYLOAD_SIZE,
    SG_PHASE_PAYLOAD,
    SG_PHASE_TRAILER,
    SG_PHASE_DONE,
    SG_PHASE_DEAD,
};

struct sg_rebuild {
    struct sg_rebuild_expect expect;
    enum sg_rebuild_phase phase;
    uint8_t *target;
    uint64_t base_position, target_position; /* target_position: start of the present segment */
    uint64_t patch_position;                 /* patch bytes taken */
    uint64_t hashed_bytes;                   /* target bytes in `target_hash` */
    uint64_t left_bytes;                     /* of the present phase */
    uint32_t segments_left;
    uint32_t row;                            /* first row of the next CQ block */
    uint32_t has_side;                       /* the present guided segment's P and Q are there */
    struct sg_patch_segment segment;
    struct sg_sha256 target_hash, patch_hash;
    uint32_t gathered;                       /* bytes in `payload` that belong to the present phase */
    struct sg_delta_models models;
    struct sg_code_table tables[SG_PATCH_TABLE_COUNT];
    struct sg_guide_table guide_tables[SG_GUIDE_TABLE_COUNT];
    int16_t q[SG_GUIDE_Q_MAX];               /* (rank, codes per row), gains multiplied in */
    int16_t basis[SG_GUIDE_Q_MAX];           /* (basis rank, codes per row) */
    uint8_t p_class[SG_GUIDE_RANK_MAX];
    int16_t shift[SG_PATCH_ROW_CODES_MAX];
    uint16_t contexts[SG_PATCH_ROW_CODES_MAX];
    uint8_t symbols[SG_PATCH_ROW_CODES_MAX];
    /* Header, fields, payload: whatever the present phase gathers. The slack is the rANS decoder's look-ahead. */
    uint8_t payload[SG_PATCH_PAYLOAD_MAX + SG_RANS_SLACK_BYTES];
};

/* Reads and checks one segment's fields (the bytes in `payload`). */
int sg_rebuild_read_fields(struct sg_rebuild *rebuild, uint32_t byte_count, struct sg_error *error);
/* Turns one gathered payload into target bytes; the base's bytes already lie in their place. */
int sg_rebuild_decode_payload(struct sg_rebuild *rebuild, uint32_t byte_count, struct sg_error *error);

/* Coder 2, in rebuild_guide.c. */
int sg_rebuild_decode_guide_table(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder,
                                  struct sg_error *error);
int sg_rebuild_decode_side(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder, struct sg_error *error);
/* One row in place; returns 0 if its codes ran out. `*before` is the norm difference before. */
int sg_rebuild_decode_guided_row(struct sg_rebuild *rebuild, struct sg_range_decoder *range,
                                 struct sg_rans_decoder *rans, uint8_t *codes, uint8_t *norms, uint32_t *before);

#endif
