/* Input: u8 form and effort (looking for shifts is slow: one value in eight), then either two files (u16 size of the first), or a container's description: per tensor u8
 * kind, u8 rows, u8 groups, u8 change, and a number from which its content is drawn. */
#include <stdlib.h>
#include <string.h>

#include "saguaro.h"
#include "targets.h"

#define FILE_BYTES_MAX (256u * 1024u)
#define TENSORS_MAX 6u
#define TENSOR_BYTES 6u
#define HEADER_BYTES 196u
#define CODEBOOKS_BYTES (4u * 28u)
#define RECORD_BYTES 44u
#define TAG 0x05e12a84u

struct file {
    uint8_t *bytes;
    size_t byte_count;
};

static void store(uint8_t *at, uint64_t value, uint32_t byte_count) {
    for (uint32_t i = 0; i < byte_count; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A tensor as its description says; what its target changes is drawn from a state of its own. */
static size_t blob_bytes(const uint8_t *tensor) {
    static const uint32_t stored_bits[6] = {0, 1, 2, 3, 4, 2};
    const uint32_t kind = tensor[0] % 4 + 1, rows = tensor[1] % 48 + 1, groups = tensor[2] % 3 + 1;
    const uint32_t bits = tensor[0] / 4 % 5 + 1;
    return kind == 3 ? (size_t)rows * groups * (16 * stored_bits[bits] + 2) : (size_t)rows * groups * 4;
}

static void write_record(uint8_t *record, const uint8_t *tensor, size_t offset) {
    const uint32_t kind = tensor[0] % 4 + 1, rows = tensor[1] % 48 + 1, groups = tensor[2] % 3 + 1;
    const uint32_t elements = kind == 1 ? 2 * rows * groups : rows * groups;
    store(record, kind, 1);
    store(record + 1, kind == 3 ? 2 : kind == 4 ? 0 : 1, 1);
    store(record + 4, kind == 3 ? rows : kind == 4 ? 0 : elements, 4);
    store(record + 8, kind == 3 ? groups * 128 - tensor[2] / 3 % 128 : 0, 4);
    store(record + 20, offset, 8);
    store(record + 28, blob_bytes(tensor), 8);
    store(record + 36, kind == 3 ? 128 : 0, 4);
    store(record + 40, kind == 3 ? tensor[0] / 4 % 5 + 1 : 0, 4);
}

static void fill_blob(uint8_t *blob, const uint8_t *tensor, int is_target) {
    uint32_t state = tensor[4] * 77777u + tensor[5], change = tensor[3] * 99991u;
    for (size_t i = 0; i < blob_bytes(tensor); i++) {
        blob[i] = (uint8_t)draw(&state);
        if (is_target && draw(&change) % 256 < tensor[3])
            blob[i] = (uint8_t)(blob[i] + draw(&change) % 3 - 1);
    }
}

/* Tensors whose change is odd and above 240 are missing from the target, so that records have to be matched. */
static struct file container(const uint8_t *tensors, size_t tensor_count, int is_target) {
    const uint8_t *kept[TENSORS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < tensor_count; i++)
        if (!is_target || tensors[TENSOR_BYTES * i + 3] <= 240 || tensors[TENSOR_BYTES * i + 3] % 2 == 0)
            kept[count++] = tensors + TENSOR_BYTES * i;
    const size_t directory = HEADER_BYTES + CODEBOOKS_BYTES;
    struct file file = {calloc(1, FILE_BYTES_MAX), directory + RECORD_BYTES * count};
    store(file.bytes, TAG, 4);
    store(file.bytes + 4, count, 4);
    store(file.bytes + 8, 28, 4);
    for (uint32_t i = 0; i < 28; i++) {
        const float level = ((float)(i % 16) - 7.5f) / 32;
        memcpy(file.bytes + HEADER_BYTES + 4 * i, &level, 4);
    }
    for (size_t i = 0; i < count; i++) {
        const size_t offset = (file.byte_count + 63) / 64 * 64;
        write_record(file.bytes + directory + RECORD_BYTES * i, kept[i], offset);
        fill_blob(file.bytes + offset, kept[i], is_target);
        file.byte_count = offset + blob_bytes(kept[i]);
    }
    return file;
}

static struct file copy_of(const uint8_t *bytes, size_t byte_count) {
    struct file file = {malloc(byte_count + 1), byte_count};
    memcpy(file.bytes, bytes, byte_count);
    return file;
}

static uint64_t read_u64(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static void require_round_trip(struct file base, struct file target, const uint8_t *patch, size_t patch_bytes) {
    struct sg_rebuild *state = malloc(sg_rebuild_size());
    struct sg_rebuild_expect expect = {.base_bytes = read_u64(patch + 16), .target_bytes = read_u64(patch + 24)};
    struct sg_rebuild_io io = {base.bytes, base.byte_count, 0, patch, patch_bytes, 0};
    struct sg_error error;
    uint8_t *made = malloc(target.byte_count + 1);
    memcpy(expect.base_sha256, patch + 32, 32);
    memcpy(expect.target_sha256, patch + 64, 32);
    if (expect.target_bytes != target.byte_count)
        abort();
    sg_rebuild_begin(state, &expect, made, &error);
    if (sg_rebuild_step(state, &io, &error) != SG_STATUS_DONE || memcmp(made, target.bytes, target.byte_count) != 0)
        abort();
    free(state), free(made);
}

static void make(struct file base, struct file target, uint32_t effort) {
    const struct sg_patch_options options = {.effort = effort, .adapter_seed = effort * 7};
    const size_t maker_bytes = sg_patch_maker_size(base.byte_count, target.byte_count);
    const size_t capacity = sg_patch_bound(base.byte_count, target.byte_count);
    uint8_t *out = malloc(capacity);
    struct sg_patch_maker *maker = malloc(maker_bytes);
    struct sg_error error;
    int status = sg_patch_begin(maker, maker_bytes, &options, base.bytes, base.byte_count, target.bytes,
                                target.byte_count, out, capacity, &error);
    while (status == SG_STATUS_OK) {
        const uint64_t before = sg_patch_done(maker);
        status = sg_patch_step(maker, &error);
        if (sg_patch_done(maker) < before || sg_patch_done(maker) > target.byte_count)
            abort();
    }
    if (status == SG_STATUS_DONE)
        require_round_trip(base, target, out, sg_patch_bytes(maker));
    free(out), free(maker);
}

void fuzz_make(const uint8_t *data, size_t byte_count) {
    struct file base, target;
    if (byte_count < 3)
        return;
    if (data[0] & 128) {
        const size_t wanted = (size_t)(data[1] | data[2] << 8), left = byte_count - 3;
        const size_t first = wanted < left ? wanted : left;
        base = copy_of(data + 3, first);
        target = copy_of(data + 3 + first, left - first);
    } else {
        const size_t told = (byte_count - 1) / TENSOR_BYTES, count = told < TENSORS_MAX ? told : TENSORS_MAX;
        base = container(data + 1, count, 0);
        target = container(data + 1, count, 1);
    }
    make(base, target, data[0] % 8 == 7 ? 1 + data[0] / 8 % 2 : 0);
    free(base.bytes), free(target.bytes);
}
