/* Runs the grammar natively over a model and files of tools, with memory taken to the byte, so that AddressSanitizer sees
 * every step outside. Each file is compiled, also with bytes flipped; what compiles is walked at random. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "saguaro.h"

static uint64_t state = 1;

static uint32_t random_below(uint32_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % bound;
}

static uint8_t *read_file(const char *path, size_t *byte_count) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) abort();
    *byte_count = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*byte_count);
    if (!bytes || fread(bytes, 1, *byte_count, file) != *byte_count) abort();
    fclose(file);
    return bytes;
}

/* A random allowed id; UINT32_MAX if there is none. */
static uint32_t draw(struct sg_grammar *grammar, uint32_t logit_count, uint32_t room) {
    const uint32_t *words;
    uint32_t count = 0, chosen = UINT32_MAX;
    sg_grammar_allowed(grammar, room, &words);
    for (uint32_t id = 0; id < logit_count; id++) {
        if (words[id / 32] >> id % 32 & 1 && random_below(++count) == 0) chosen = id;
    }
    return chosen;
}

static void walk(struct sg_grammar *grammar, const struct sg_model_info *info, uint32_t room) {
    struct sg_error error;
    uint32_t id = info->tool_call_open_id;
    sg_grammar_reset(grammar);
    while (id != info->tool_call_close_id) {
        if (sg_grammar_accept(grammar, id, &error) != SG_STATUS_OK) abort();
        id = draw(grammar, info->logit_count, --room);
        if (id == UINT32_MAX) abort();
    }
}

static int try(const struct sg_model *model, const struct sg_model_info *info, const uint8_t *tools, size_t tools_bytes) {
    struct sg_error error = {0};
    size_t grammar_bytes;
    struct sg_grammar *grammar;
    int status = sg_grammar_measure(model, tools, tools_bytes, &grammar_bytes, &error);
    if (status != SG_STATUS_OK) return status;
    void *memory = malloc(grammar_bytes);
    if (!memory) abort();
    status = sg_grammar_open(model, tools, tools_bytes, memory, grammar_bytes, &grammar, &error);
    if (status == SG_STATUS_OK) walk(grammar, info, 60);
    else if (strlen(error.field) >= 200) abort();
    free(memory);
    return status;
}

int main(int count, char **paths) {
    size_t file_bytes, model_bytes;
    struct sg_error error;
    struct sg_model *model;
    struct sg_model_info info;
    uint8_t *file = read_file(paths[1], &file_bytes);
    if (sg_model_measure(file, file_bytes, &model_bytes, &error) != SG_STATUS_OK) abort();
    void *memory = malloc(model_bytes);
    if (sg_model_open(file, file_bytes, memory, model_bytes, &model, &error) != SG_STATUS_OK) abort();
    sg_model_describe(model, &info);
    uint32_t compiled = 0, refused = 0;
    for (int i = 2; i < count; i++) {
        size_t byte_count;
        uint8_t *tools = read_file(paths[i], &byte_count);
        for (int round = 0; round < 12; round++) {
            if (try(model, &info, tools, byte_count) == SG_STATUS_OK) compiled++;
            else refused++;
            const uint32_t at = random_below((uint32_t)byte_count);
            tools[at] = round % 2 ? (uint8_t)random_below(256) : tools[random_below((uint32_t)byte_count)];
        }
        free(tools);
    }
    free(memory);
    free(file);
    printf("%u compiled, %u refused\n", compiled, refused);
    return 0;
}
