/* Input: u16 base size, u16 target size, u8 segment count, u8 piece size, then the patch's segments. Header and seal are
 * made good, so that what is behind them is reached. Whatever comes, the rebuilder may only ask for more, end or refuse,
 * and never be done: the target's hash is one that no target has. */
#include <stdlib.h>
#include <string.h>

#include "patch_format.h"
#include "saguaro.h"
#include "targets.h"

#define HEAD_BYTES 6u

static void store(uint8_t *at, uint64_t value, uint32_t byte_count) {
    for (uint32_t i = 0; i < byte_count; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void digest_of(const uint8_t *bytes, size_t byte_count, uint8_t digest[32]) {
    struct sg_sha256 hash;
    sg_sha256_init(&hash);
    sg_sha256_update(&hash, bytes, byte_count);
    sg_sha256_final(&hash, digest);
}

static size_t seal_patch(uint8_t *patch, const struct sg_rebuild_expect *expect, uint32_t segment_count,
                         const uint8_t *segments, size_t byte_count) {
    const size_t end = SG_PATCH_HEADER_BYTES + byte_count;
    uint8_t digest[32];
    memset(patch, 0, SG_PATCH_HEADER_BYTES);
    memcpy(patch, sg_patch_magic, sizeof sg_patch_magic);
    store(patch + 8, SG_PATCH_VERSION, 2);
    store(patch + 16, expect->base_bytes, 8);
    store(patch + 24, expect->target_bytes, 8);
    memcpy(patch + 32, expect->base_sha256, 32);
    memcpy(patch + 64, expect->target_sha256, 32);
    store(patch + 96, segment_count, 4);
    digest_of(patch, SG_PATCH_HEADER_CHECKED_BYTES, digest);
    memcpy(patch + SG_PATCH_HEADER_CHECKED_BYTES, digest, 4);
    memcpy(patch + SG_PATCH_HEADER_BYTES, segments, byte_count);
    digest_of(patch, end, digest);
    memcpy(patch + end, digest, SG_PATCH_TRAILER_BYTES);
    return end + SG_PATCH_TRAILER_BYTES;
}

/* A piece in a block of its own size, so that a read past it is seen. */
static uint8_t *piece_of(const uint8_t *bytes, size_t byte_count) {
    uint8_t *piece = malloc(byte_count ? byte_count : 1);
    memcpy(piece, bytes, byte_count);
    return piece;
}

static void rebuild(const uint8_t *base, const uint8_t *patch, size_t patch_bytes, size_t piece_bytes,
                    const struct sg_rebuild_expect *expect, uint8_t *target) {
    struct sg_rebuild *state = malloc(sg_rebuild_size());
    struct sg_error error;
    size_t base_at = 0, patch_at = 0;
    int status = sg_rebuild_begin(state, expect, target, &error);
    for (;;) {
        const size_t base_left = (size_t)expect->base_bytes - base_at, patch_left = patch_bytes - patch_at;
        struct sg_rebuild_io io = {.base_count = base_left < piece_bytes ? base_left : piece_bytes,
                                   .patch_count = patch_left < piece_bytes ? patch_left : piece_bytes};
        if ((status == SG_STATUS_NEED_BASE && !base_left) || (status == SG_STATUS_NEED_PATCH && !patch_left))
            break;
        uint8_t *base_piece = piece_of(base + base_at, io.base_count);
        uint8_t *patch_piece = piece_of(patch + patch_at, io.patch_count);
        io.base = base_piece, io.patch = patch_piece;
        status = sg_rebuild_step(state, &io, &error);
        base_at += io.base_used, patch_at += io.patch_used;
        free(base_piece), free(patch_piece);
        if (status != SG_STATUS_NEED_BASE && status != SG_STATUS_NEED_PATCH)
            break;
    }
    if (status == SG_STATUS_DONE || sg_rebuild_written(state) > expect->target_bytes)
        abort();
    free(state);
}

void fuzz_rebuild(const uint8_t *data, size_t byte_count) {
    if (byte_count < HEAD_BYTES)
        return;
    struct sg_rebuild_expect expect = {.base_bytes = data[0] | data[1] << 8, .target_bytes = data[2] | data[3] << 8};
    uint8_t *base = malloc(expect.base_bytes + 1), *target = malloc(expect.target_bytes + 1);
    uint8_t *patch = malloc(SG_PATCH_HEADER_BYTES + byte_count + SG_PATCH_TRAILER_BYTES);
    for (size_t i = 0; i < expect.base_bytes; i++)
        base[i] = (uint8_t)(i * 167 >> 3);
    digest_of(base, (size_t)expect.base_bytes, expect.base_sha256);
    const size_t patch_bytes = seal_patch(patch, &expect, data[4], data + HEAD_BYTES, byte_count - HEAD_BYTES);
    rebuild(base, patch, patch_bytes, 1 + (size_t)data[5] * data[5], &expect, target);
    free(base), free(target), free(patch);
}
