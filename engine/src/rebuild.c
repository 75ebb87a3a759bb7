/* Streaming rebuild: the state machine that takes base and patch bytes as they arrive.
 *
 * Owns: order, sizes and hashes. Knows nothing of: how a payload is coded (rebuild_payload.c).
 * Source: docs/formats/patch.md. Every phase gathers a known, bounded number of bytes before anything looks at them. */
#include "rebuild.h"

#include <string.h>

/* Small enough to stay in the first cache between copy and hash, and to let a browser swap in its better code. */
#define SG_COPY_BYTES 16384u

size_t sg_rebuild_size(void) { return sizeof(struct sg_rebuild); }

uint64_t sg_rebuild_written(const struct sg_rebuild *rebuild) { return rebuild->hashed_bytes; }

static void enter(struct sg_rebuild *rebuild, enum sg_rebuild_phase phase, uint64_t byte_count) {
    rebuild->phase = phase;
    rebuild->left_bytes = byte_count;
    rebuild->gathered = 0;
}

int sg_rebuild_begin(struct sg_rebuild *rebuild, const struct sg_rebuild_expect *expect, uint8_t *target,
                     struct sg_error *error) {
    if (!rebuild || !expect || !target)
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "rebuild", 0, 0, 0);
    memset(rebuild, 0, sizeof *rebuild);
    rebuild->expect = *expect;
    rebuild->target = target;
    sg_models_reset(&rebuild->models, sizeof rebuild->models);
    sg_sha256_init(&rebuild->target_hash);
    sg_sha256_init(&rebuild->patch_hash);
    enter(rebuild, SG_PHASE_HEADER, SG_PATCH_HEADER_BYTES);
    return SG_STATUS_OK;
}

static int read_header(struct sg_rebuild *rebuild, struct sg_error *error) {
    const uint8_t *header = rebuild->payload;
    const struct sg_rebuild_expect *expect = &rebuild->expect;
    struct sg_sha256 hash;
    uint8_t digest[32];
    if (memcmp(header, sg_patch_magic, sizeof sg_patch_magic) != 0)
        return sg_fail(error, SG_STATUS_PATCH_BAD_MAGIC, "header.magic", 0, header[0], sg_patch_magic[0]);
    if (sg_load_u16(header + 8) != SG_PATCH_VERSION)
        return sg_fail(error, SG_STATUS_PATCH_BAD_VERSION, "header.version", 8, sg_load_u16(header + 8),
                       SG_PATCH_VERSION);
    sg_sha256_init(&hash);
    sg_sha256_update(&hash, header, SG_PATCH_HEADER_CHECKED_BYTES);
    sg_sha256_final(&hash, digest);
    if (memcmp(header + SG_PATCH_HEADER_CHECKED_BYTES, digest, 4) != 0)
        return sg_fail(error, SG_STATUS_PATCH_BAD_HEADER, "header.check", SG_PATCH_HEADER_CHECKED_BYTES,
                       sg_load_u32(header + SG_PATCH_HEADER_CHECKED_BYTES), sg_load_u32(digest));
    if (sg_load_u16(header + 10))
        return sg_fail(error, SG_STATUS_PATCH_BAD_HEADER, "header.flags", 10, sg_load_u16(header + 10), 0);
    if (memcmp(header + 32, expect->base_sha256, 32) != 0)
        return sg_fail(error, SG_STATUS_PATCH_WRONG_BASE, "header.base_sha256", 32, 0, 0);
    if (sg_load_u64(header + 16) != expect->base_bytes)
        return sg_fail(error, SG_STATUS_PATCH_WRONG_BASE, "header.base_bytes", 16, sg_load_u64(header + 16),
                       expect->base_bytes);
    if (memcmp(header + 64, expect->target_sha256, 32) != 0)
        return sg_fail(error, SG_STATUS_PATCH_WRONG_TARGET, "header.target_sha256", 64, 0, 0);
    if (sg_load_u64(header + 24) != expect->target_bytes)
        return sg_fail(error, SG_STATUS_PATCH_WRONG_TARGET, "header.target_bytes", 24, sg_load_u64(header + 24),
                       expect->target_bytes);
    rebuild->segments_left = sg_load_u32(header + 96);
    return SG_STATUS_OK;
}

static void enter_next_segment(struct sg_rebuild *rebuild) {
    if (rebuild->segments_left)
        enter(rebuild, SG_PHASE_FIELDS_SIZE, 1);
    else
        enter(rebuild, SG_PHASE_TRAILER, SG_PATCH_TRAILER_BYTES);
}

/* All of the segment's target bytes are final. */
static void finish_segment(struct sg_rebuild *rebuild) {
    const uint64_t end = rebuild->target_position + rebuild->segment.byte_count;
    while (rebuild->hashed_bytes < end) {
        const uint64_t left = end - rebuild->hashed_bytes;
        const size_t piece = left < SG_COPY_BYTES ? (size_t)left : SG_COPY_BYTES;
        sg_sha256_update(&rebuild->target_hash, rebuild->target + rebuild->hashed_bytes, piece);
        rebuild->hashed_bytes += piece;
    }
    rebuild->target_position = end;
    enter_next_segment(rebuild);
}

static int has_base(const struct sg_patch_segment *segment) {
    return segment->kind != SG_SEGMENT_LITERAL && segment->kind != SG_SEGMENT_TABLE;
}

static void enter_after_skip(struct sg_rebuild *rebuild) {
    if (has_base(&rebuild->segment))
        enter(rebuild, SG_PHASE_BASE, rebuild->segment.byte_count);
    else
        enter(rebuild, SG_PHASE_PAYLOAD_SIZE, 4);
}

static int finish_payload(struct sg_rebuild *rebuild, struct sg_error *error) {
    const int status = sg_rebuild_decode_payload(rebuild, rebuild->gathered, error);
    if (status != SG_STATUS_OK)
        return status;
    if (rebuild->segment.kind == SG_SEGMENT_CQ && rebuild->row < rebuild->segment.row_count)
        enter(rebuild, SG_PHASE_PAYLOAD_SIZE, 4);
    else
        finish_segment(rebuild);
    return SG_STATUS_OK;
}

static int finish_patch(struct sg_rebuild *rebuild, struct sg_error *error) {
    const uint64_t at = rebuild->patch_position - SG_PATCH_TRAILER_BYTES;
    uint8_t digest[32];
    sg_sha256_final(&rebuild->patch_hash, digest);
    if (memcmp(rebuild->payload, digest, SG_PATCH_TRAILER_BYTES) != 0)
        return sg_fail(error, SG_STATUS_PATCH_CORRUPT, "trailer.check", at, 0, 0);
    if (rebuild->target_position != rebuild->expect.target_bytes)
        return sg_fail(error, SG_STATUS_PATCH_CORRUPT, "target_bytes", at, rebuild->target_position,
                       rebuild->expect.target_bytes);
    sg_sha256_final(&rebuild->target_hash, digest);
    if (memcmp(rebuild->expect.target_sha256, digest, 32) != 0)
        return sg_fail(error, SG_STATUS_PATCH_HASH_MISMATCH, "target_sha256", 0, 0, 0);
    enter(rebuild, SG_PHASE_DONE, 0);
    return SG_STATUS_OK;
}

/* Everything that the present phase wanted is there. */
static int finish_phase(struct sg_rebuild *rebuild, struct sg_error *error) {
    int status = SG_STATUS_OK;
    switch (rebuild->phase) {
    case SG_PHASE_HEADER:
        status = read_header(rebuild, error);
        if (status == SG_STATUS_OK)
            enter_next_segment(rebuild);
        return status;
    case SG_PHASE_FIELDS_SIZE:
        if (!rebuild->payload[0] || rebuild->payload[0] > SG_PATCH_FIELDS_MAX)
            return sg_fail(error, SG_STATUS_PATCH_BAD_SEGMENT, "segment.fields_size", rebuild->patch_position - 1,
                           rebuild->payload[0], SG_PATCH_FIELDS_MAX);
        enter(rebuild, SG_PHASE_FIELDS, rebuild->payload[0]);
        return SG_STATUS_OK;
    case SG_PHASE_FIELDS:
        status = sg_rebuild_read_fields(rebuild, rebuild->gathered, error);
        rebuild->segments_left--;
        rebuild->row = rebuild->has_side = 0;
        if (status == SG_STATUS_OK)
            enter(rebuild, SG_PHASE_SKIP, rebuild->segment.base_skip);
        return status;
    case SG_PHASE_SKIP:
        enter_after_skip(rebuild);
        return SG_STATUS_OK;
    case SG_PHASE_BASE:
        if (rebuild->segment.kind == SG_SEGMENT_COPY)
            finish_segment(rebuild);
        else
            enter(rebuild, SG_PHASE_PAYLOAD_SIZE, 4);
        return SG_STATUS_OK;
    case SG_PHASE_PAYLOAD_SIZE: {
        const uint32_t size = sg_load_u32(rebuild->payload);
        if (size > SG_PATCH_PAYLOAD_MAX)
            return sg_fail(error, SG_STATUS_PATCH_BAD_SEGMENT, "segment.payload_size", rebuild->patch_position - 4,
                           size, SG_PATCH_PAYLOAD_MAX);
        enter(rebuild, SG_PHASE_PAYLOAD, size);
        return SG_STATUS_OK;
    }
    case SG_PHASE_PAYLOAD:
        return finish_payload(rebuild, error);
    case SG_PHASE_TRAILER:
        return finish_patch(rebuild, error);
    case SG_PHASE_DONE:
    case SG_PHASE_DEAD:
        break;
    }
    return sg_fail(error, SG_STATUS_BAD_STATE, "rebuild", rebuild->patch_position, 0, 0);
}

/* Moves base bytes on: past the skipped ones, or into the target. */
static void take_base(struct sg_rebuild *rebuild, struct sg_rebuild_io *io) {
    const size_t there = io->base_count - io->base_used;
    size_t taken = rebuild->left_bytes < there ? (size_t)rebuild->left_bytes : there;
    if (rebuild->phase == SG_PHASE_BASE) {
        const uint64_t done = rebuild->segment.byte_count - rebuild->left_bytes;
        uint8_t *to = rebuild->target + rebuild->target_position + done;
        taken = taken < SG_COPY_BYTES ? taken : SG_COPY_BYTES;
        memcpy(to, io->base + io->base_used, taken);
        if (rebuild->segment.kind == SG_SEGMENT_COPY) {
            sg_sha256_update(&rebuild->target_hash, to, taken);
            rebuild->hashed_bytes += taken;
        }
    }
    io->base_used += taken;
    rebuild->base_position += taken;
    rebuild->left_bytes -= taken;
}

static void take_patch(struct sg_rebuild *rebuild, struct sg_rebuild_io *io) {
    const size_t there = io->patch_count - io->patch_used;
    const size_t taken = rebuild->left_bytes < there ? (size_t)rebuild->left_bytes : there;
    const uint8_t *from = io->patch + io->patch_used;
    memcpy(rebuild->payload + rebuild->gathered, from, taken);
    if (rebuild->phase != SG_PHASE_TRAILER)
        sg_sha256_update(&rebuild->patch_hash, from, taken);
    rebuild->gathered += (uint32_t)taken;
    io->patch_used += taken;
    rebuild->patch_position += taken;
    rebuild->left_bytes -= taken;
}

static int run(struct sg_rebuild *rebuild, struct sg_rebuild_io *io, struct sg_error *error) {
    for (;;) {
        if (rebuild->phase == SG_PHASE_DONE)
            return io->patch_used == io->patch_count
                       ? SG_STATUS_DONE
                       : sg_fail(error, SG_STATUS_PATCH_TRAILING_BYTES, "patch_bytes", rebuild->patch_position,
                                 io->patch_count - io->patch_used, 0);
        if (rebuild->left_bytes) {
            const int is_base = rebuild->phase == SG_PHASE_SKIP || rebuild->phase == SG_PHASE_BASE;
            if (is_base ? io->base_used == io->base_count : io->patch_used == io->patch_count)
                return is_base ? SG_STATUS_NEED_BASE : SG_STATUS_NEED_PATCH;
            if (is_base)
                take_base(rebuild, io);
            else
                take_patch(rebuild, io);
        }
        if (!rebuild->left_bytes) {
            const int status = finish_phase(rebuild, error);
            if (status != SG_STATUS_OK)
                return status;
        }
    }
}

int sg_rebuild_step(struct sg_rebuild *rebuild, struct sg_rebuild_io *io, struct sg_error *error) {
    if (rebuild->phase == SG_PHASE_DEAD)
        return sg_fail(error, SG_STATUS_BAD_STATE, "rebuild", rebuild->patch_position, 0, 0);
    io->base_used = io->patch_used = 0;
    const int status = run(rebuild, io, error);
    if (status != SG_STATUS_NEED_BASE && status != SG_STATUS_NEED_PATCH && status != SG_STATUS_DONE)
        rebuild->phase = SG_PHASE_DEAD;
    return status;
}

int sg_rebuild_finish(const struct sg_rebuild *rebuild, struct sg_error *error) {
    if (rebuild->phase == SG_PHASE_DONE)
        return SG_STATUS_DONE;
    if (rebuild->phase == SG_PHASE_SKIP || rebuild->phase == SG_PHASE_BASE)
        return sg_fail(error, SG_STATUS_PATCH_WRONG_BASE, "base_bytes", rebuild->patch_position,
                       rebuild->base_position, rebuild->expect.base_bytes);
    return sg_fail(error, SG_STATUS_PATCH_TRUNCATED, "patch_bytes", rebuild->patch_position, 0,
                   rebuild->left_bytes);
}
