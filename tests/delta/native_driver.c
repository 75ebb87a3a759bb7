/* Maker and rebuilder as a native program, for sanitizers and for comparison with WebAssembly.
 *
 *   driver make BASE TARGET PATCH EFFORT
 *   driver rebuild BASE PATCH TARGET CHUNK   inputs in pieces of CHUNK bytes
 *   driver fuzz BASE PATCH COUNT             damaged and resealed patches; every one must be refused
 *   driver seed make|rebuild FILE            one input of a fuzzed surface (tests/fuzz)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fuzz/targets.h"
#include "saguaro.h"

struct bytes {
    uint8_t *data;
    size_t count;
};

static struct bytes read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    struct bytes bytes = {NULL, 0};
    if (!file || fseek(file, 0, SEEK_END))
        exit(2);
    bytes.count = (size_t)ftell(file);
    bytes.data = malloc(bytes.count + 1);
    rewind(file);
    if (fread(bytes.data, 1, bytes.count, file) != bytes.count)
        exit(2);
    fclose(file);
    return bytes;
}

static void write_file(const char *path, const uint8_t *data, size_t count) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, count, file) != count || fclose(file))
        exit(2);
}

static uint64_t read_u64(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

/* Every piece is copied into a block of its own size, so that a read past it is seen. */
static int rebuild(struct bytes base, struct bytes patch, const struct sg_rebuild_expect *expect, uint8_t *target,
                   size_t chunk, struct sg_error *error) {
    struct sg_rebuild *state = malloc(sg_rebuild_size());
    size_t base_at = 0, patch_at = 0;
    int status = sg_rebuild_begin(state, expect, target, error);
    while (status == SG_STATUS_OK || status == SG_STATUS_NEED_BASE || status == SG_STATUS_NEED_PATCH) {
        const size_t base_left = base.count - base_at, patch_left = patch.count - patch_at;
        struct sg_rebuild_io io = {.base_count = base_left < chunk ? base_left : chunk,
                                   .patch_count = patch_left < chunk ? patch_left : chunk};
        if ((status == SG_STATUS_NEED_BASE && !base_left) || (status == SG_STATUS_NEED_PATCH && !patch_left)) {
            status = sg_rebuild_finish(state, error);
            break;
        }
        uint8_t *base_piece = malloc(io.base_count + 1), *patch_piece = malloc(io.patch_count + 1);
        memcpy(base_piece, base.data + base_at, io.base_count);
        memcpy(patch_piece, patch.data + patch_at, io.patch_count);
        io.base = base_piece, io.patch = patch_piece;
        status = sg_rebuild_step(state, &io, error);
        base_at += io.base_used, patch_at += io.patch_used;
        free(base_piece), free(patch_piece);
    }
    free(state);
    return status;
}

static struct sg_rebuild_expect expect_of(struct bytes patch) {
    struct sg_rebuild_expect expect;
    memcpy(expect.base_sha256, patch.data + 32, 32);
    memcpy(expect.target_sha256, patch.data + 64, 32);
    expect.base_bytes = read_u64(patch.data + 16);
    expect.target_bytes = read_u64(patch.data + 24);
    return expect;
}

static int make(char **words) {
    const struct bytes base = read_file(words[2]), target = read_file(words[3]);
    const struct sg_patch_options options = {.effort = (uint32_t)atoi(words[5])};
    const size_t maker_bytes = sg_patch_maker_size(base.count, target.count);
    const size_t capacity = sg_patch_bound(base.count, target.count);
    uint8_t *out = malloc(capacity);
    struct sg_patch_maker *maker = malloc(maker_bytes);
    struct sg_error error;
    int status = sg_patch_begin(maker, maker_bytes, &options, base.data, base.count, target.data, target.count, out,
                                capacity, &error);
    while (status == SG_STATUS_OK)
        status = sg_patch_step(maker, &error);
    write_file(words[4], out, sg_patch_bytes(maker));
    free(out), free(maker), free(base.data), free(target.data);
    return status == SG_STATUS_DONE ? 0 : status;
}

static int apply(char **words) {
    const struct bytes base = read_file(words[2]), patch = read_file(words[3]);
    const struct sg_rebuild_expect expect = expect_of(patch);
    uint8_t *target = malloc(expect.target_bytes);
    struct sg_error error;
    const int status = rebuild(base, patch, &expect, target, (size_t)atoi(words[5]), &error);
    write_file(words[4], target, expect.target_bytes);
    free(target), free(base.data), free(patch.data);
    return status == SG_STATUS_DONE ? 0 : status;
}

static int fuzz(char **words) {
    const struct bytes base = read_file(words[2]), patch = read_file(words[3]);
    const struct sg_rebuild_expect expect = expect_of(patch);
    struct bytes bad = {malloc(patch.count), patch.count};
    uint8_t *target = malloc(expect.target_bytes);
    uint64_t random = 1;
    int accepted = 0;
    for (int round = 0; round < atoi(words[4]); round++) {
        struct sg_error error;
        struct sg_sha256 hash;
        uint8_t seal[32];
        memcpy(bad.data, patch.data, patch.count);
        for (int change = 0; change <= round % 3; change++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bad.data[104 + (random >> 33) % (patch.count - 112)] ^= (uint8_t)(1u << (random >> 29 & 7));
        }
        sg_sha256_init(&hash);
        sg_sha256_update(&hash, bad.data, bad.count - 8);
        sg_sha256_final(&hash, seal);
        memcpy(bad.data + bad.count - 8, seal, 8);
        accepted += memcmp(bad.data, patch.data, patch.count) != 0 &&
                    rebuild(base, bad, &expect, target, 1u << 20, &error) == SG_STATUS_DONE;
    }
    free(target), free(bad.data), free(base.data), free(patch.data);
    return accepted != 0;
}

static int seed(char **words) {
    const struct bytes input = read_file(words[3]);
    (strcmp(words[2], "make") ? fuzz_rebuild : fuzz_make)(input.data, input.count);
    free(input.data);
    return 0;
}

int main(int count, char **words) {
    if (count == 6 && !strcmp(words[1], "make"))
        return make(words);
    if (count == 6 && !strcmp(words[1], "rebuild"))
        return apply(words);
    if (count == 5 && !strcmp(words[1], "fuzz"))
        return fuzz(words);
    if (count == 4 && !strcmp(words[1], "seed"))
        return seed(words);
    return 2;
}
