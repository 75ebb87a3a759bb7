/* Runs the engine over files, natively: opens each, and if it is a model, makes it work. Memory is taken to the byte, so
 * that AddressSanitizer sees every step outside. Prints one line a file: status, and the hash of the last logits and of what the heads say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "saguaro.h"

#define ID_COUNT 70u
#define CAPACITY 80u

static const char text[] = "<|im_start|>user\nTurn on the lamp \xf0\x9f\x92\xa1 <tool_call>a<s> \xc3\xa9";

static void *block(size_t byte_count) {
    void *memory = malloc(byte_count ? byte_count : 1);
    if (!memory) abort();
    return memory;
}

static uint8_t *read_file(const char *path, size_t *byte_count) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) abort();
    *byte_count = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = block(*byte_count);
    if (fread(bytes, 1, *byte_count, file) != *byte_count) abort();
    fclose(file);
    return bytes;
}

static void use_tokenizer(const struct sg_model *model, const struct sg_model_info *info) {
    struct sg_error error;
    const size_t text_bytes = sizeof text - 1, scratch_bytes = sg_encode_scratch_size(text_bytes);
    uint32_t *ids = block(3 * text_bytes * sizeof *ids + 12);
    void *scratch = block(scratch_bytes);
    size_t id_count = 0, out_bytes = 0;
    sg_encode(model, (const uint8_t *)text, text_bytes, ids, 3 * text_bytes + 3, &id_count, scratch, scratch_bytes, &error);
    struct sg_detokenizer state;
    sg_detokenizer_init(&state);
    uint8_t out[64];
    for (uint32_t id = 0; id < info->vocab_count; id++) {
        sg_detokenize(model, &state, id, out, sizeof out, &out_bytes, &error);
    }
    sg_detokenize_flush(&state, out, sizeof out, &out_bytes);
    free(ids);
    free(scratch);
}

static void *listen(struct sg_session *session, const struct sg_model *model, uint32_t head) {
    struct sg_error error;
    uint32_t output_count;
    size_t byte_count;
    if (sg_head_measure(model, head, &output_count, &byte_count, &error) != SG_STATUS_OK) return NULL;
    void *memory = block(byte_count);
    if (sg_session_listen(session, head, memory, byte_count, &error) != SG_STATUS_OK) abort();
    return memory;
}

static void hash_head(struct sg_sha256 *hash, struct sg_session *session, const struct sg_model *model, uint32_t head) {
    struct sg_error error;
    uint32_t output_count;
    size_t byte_count;
    const float *outputs;
    if (sg_head_measure(model, head, &output_count, &byte_count, &error) != SG_STATUS_OK) return;
    if (sg_session_head(session, head, &outputs, &error) != SG_STATUS_OK) abort();
    sg_sha256_update(hash, (const uint8_t *)outputs, output_count * sizeof *outputs);
}

static int use_session(const struct sg_model *model, const struct sg_model_info *info, uint32_t numerics,
                       uint8_t digest[32]) {
    struct sg_error error;
    const uint32_t capacity = info->max_seq_len < CAPACITY ? info->max_seq_len : CAPACITY;
    size_t session_bytes;
    int status = sg_session_measure(model, capacity, numerics, &session_bytes, &error);
    if (status != SG_STATUS_OK) return status;
    void *memory = block(session_bytes);
    struct sg_session *session;
    status = sg_session_open(model, capacity, numerics, memory, session_bytes, &session, &error);
    void *listeners[SG_HEAD_ROUTER + 1] = {0};
    for (uint32_t head = 0; head <= SG_HEAD_ROUTER; head++) listeners[head] = listen(session, model, head);
    uint32_t ids[ID_COUNT];
    for (uint32_t i = 0; i < ID_COUNT; i++) ids[i] = (uint32_t)((uint64_t)i * i * 7 + 3 * i + 1) % info->logit_count;
    const size_t count = capacity < ID_COUNT ? capacity : ID_COUNT;
    double score;
    uint32_t id;
    const float *logits;
    struct sg_sampling sampling = {.temperature = 1.5f, .top_p = 0.8f, .top_k = 40, .random_state = 9};
    status = sg_session_append(session, ids, count / 2, &error);
    sg_session_mark(session, &error);
    sg_session_score(session, ids, count - count / 2, &score, &error);
    sg_session_append(session, ids + count / 2, count - count / 2, &error);
    sg_session_rewind(session, &error);
    sg_session_append(session, ids + count / 2, count - count / 2, &error);
    sg_session_sample(session, &sampling, &id, &error);
    status = sg_session_logits(session, &logits, &error);
    struct sg_sha256 hash;
    sg_sha256_init(&hash);
    sg_sha256_update(&hash, (const uint8_t *)logits, info->logit_count * sizeof *logits);
    for (uint32_t head = 0; head <= SG_HEAD_ROUTER; head++) hash_head(&hash, session, model, head);
    sg_sha256_final(&hash, digest);
    for (uint32_t head = 0; head <= SG_HEAD_ROUTER; head++) free(listeners[head]);
    free(memory);
    return status;
}

static void run(const char *path, uint32_t numerics) {
    struct sg_error error = {0};
    size_t file_bytes, model_bytes;
    uint8_t *file = read_file(path, &file_bytes);
    int status = sg_model_measure(file, file_bytes, &model_bytes, &error);
    if (status != SG_STATUS_OK) {
        printf("%d %s\n", status, error.field);
        free(file);
        return;
    }
    void *memory = block(model_bytes);
    struct sg_model *model;
    status = sg_model_open(file, file_bytes, memory, model_bytes, &model, &error);
    uint8_t digest[32] = {0};
    if (status == SG_STATUS_OK) {
        struct sg_model_info info;
        sg_model_describe(model, &info);
        use_tokenizer(model, &info);
        use_session(model, &info, numerics, digest);
    }
    printf("%d ", status);
    for (int i = 0; i < 32; i++) printf("%02x", digest[i]);
    printf("\n");
    free(memory);
    free(file);
}

int main(int argument_count, char **arguments) {
    const uint32_t numerics = strcmp(arguments[1], "fast") == 0 ? SG_NUMERICS_FAST : SG_NUMERICS_EXACT;
    for (int i = 2; i < argument_count; i++) run(arguments[i], numerics);
    return 0;
}
