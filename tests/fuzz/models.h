/* Models for the targets that need one, from the folder that SAGUARO_FUZZ_MODELS names (models.py writes it). */
#ifndef FUZZ_MODELS_H
#define FUZZ_MODELS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "saguaro.h"

/* Taken to the byte, so that a step outside is seen. */
static inline void *fuzz_block(size_t byte_count) {
    void *memory = malloc(byte_count ? byte_count : 1);
    if (!memory)
        abort();
    return memory;
}

static inline uint8_t *fuzz_model_file(const char *name, size_t *byte_count) {
    const char *folder = getenv("SAGUARO_FUZZ_MODELS");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.cact", folder ? folder : ".", name);
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        abort();
    *byte_count = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = fuzz_block(*byte_count);
    if (fread(bytes, 1, *byte_count, file) != *byte_count)
        abort();
    fclose(file);
    return bytes;
}

/* What is left of an input; zeros behind its end. */
struct fuzz_input {
    const uint8_t *bytes;
    size_t byte_count;
};

static inline uint32_t fuzz_take(struct fuzz_input *input, uint32_t byte_count) {
    uint32_t value = 0;
    for (uint32_t i = 0; i < byte_count && input->byte_count; i++, input->byte_count--)
        value |= (uint32_t)*input->bytes++ << 8 * i;
    return value;
}

#endif
