/* The targets without a fuzzer: `replay TARGET ROUNDS FILE...` runs each file and damaged forms of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "targets.h"

#define FILE_BYTES_MAX 65536u

static const struct {
    const char *name;
    void (*take)(const uint8_t *data, size_t byte_count);
} targets[] = {
    {"container", fuzz_container},
    {"tokenizer", fuzz_tokenizer},
    {"grammar", fuzz_grammar},
    {"calls", fuzz_calls},
};

/* Up to three bytes are others, and every fourth time the end is missing. */
static size_t damage(uint8_t *bytes, size_t byte_count, uint64_t *random) {
    for (int change = 0; change < 3; change++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        bytes[(*random >> 33) % byte_count] = (uint8_t)(*random >> 24);
    }
    return *random >> 40 & 3 ? byte_count : (*random >> 42) % byte_count;
}

static void replay(void (*take)(const uint8_t *, size_t), const char *path, int rounds) {
    static uint8_t whole[FILE_BYTES_MAX], damaged[FILE_BYTES_MAX];
    FILE *file = fopen(path, "rb");
    const size_t byte_count = file ? fread(whole, 1, sizeof whole, file) : 0;
    uint64_t random = 1;
    if (!byte_count || fclose(file))
        exit(2);
    take(whole, byte_count);
    for (int round = 0; round < rounds; round++) {
        memcpy(damaged, whole, byte_count);
        take(damaged, damage(damaged, byte_count, &random));
    }
}

int main(int count, char **words) {
    for (size_t i = 0; count > 3 && i < sizeof targets / sizeof targets[0]; i++) {
        if (strcmp(words[1], targets[i].name) != 0)
            continue;
        for (int word = 3; word < count; word++)
            replay(targets[i].take, words[word], atoi(words[2]));
        return 0;
    }
    return 2;
}
