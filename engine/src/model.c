/* Opening a model and telling what it is. */
#include "model.h"

#include "model_load.h"

int sg_model_measure_rung(const uint8_t *file, size_t file_bytes, uint32_t depth, size_t *model_bytes,
                          struct sg_error *error) {
    struct sg_arena arena = {0};
    struct sg_model model;
    *model_bytes = 0;
    sg_arena_take(&arena, 1, sizeof model);
    const int status = sg_model_load(file, file_bytes, depth, &model, &arena, error);
    if (status == SG_STATUS_OK) *model_bytes = (size_t)arena.used;
    return status;
}

int sg_model_open_rung(const uint8_t *file, size_t file_bytes, uint32_t depth, void *memory, size_t memory_bytes,
                       struct sg_model **model, struct sg_error *error) {
    *model = NULL;
    if (!memory) return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "memory", 0, 0, 0);
    struct sg_arena arena = {.base = memory, .capacity = memory_bytes};
    struct sg_model *made = sg_arena_take(&arena, 1, sizeof *made);
    if (!made) return sg_fail(error, SG_STATUS_OUT_OF_MEMORY, "model", 0, memory_bytes, arena.used);
    const int status = sg_model_load(file, file_bytes, depth, made, &arena, error);
    if (status == SG_STATUS_OK) *model = made;
    return status;
}

int sg_model_measure(const uint8_t *file, size_t file_bytes, size_t *model_bytes, struct sg_error *error) {
    return sg_model_measure_rung(file, file_bytes, 0, model_bytes, error);
}

int sg_model_open(const uint8_t *file, size_t file_bytes, void *memory, size_t memory_bytes, struct sg_model **model,
                  struct sg_error *error) {
    return sg_model_open_rung(file, file_bytes, 0, memory, memory_bytes, model, error);
}

/* A piece by its spelling; UINT32_MAX where the tokenizer has none. */
static uint32_t id_of(const struct sg_model *model, const char *text) {
    return model->tokenizer.piece_count ? sg_piece_find(&model->tokenizer, (const uint8_t *)text, strlen(text))
                                        : SG_NO_PIECE;
}

void sg_model_describe(const struct sg_model *model, struct sg_model_info *info) {
    const struct sg_geometry *geometry = &model->geometry;
    const struct sg_tokenizer *tokenizer = &model->tokenizer;
    *info = (struct sg_model_info){
        .tag = geometry->tag,
        .vocab_count = geometry->vocab_count,
        .logit_count = geometry->logit_count,
        .piece_count = tokenizer->piece_count,
        .layer_count = geometry->layer_count,
        .d_model = geometry->d_model,
        .max_seq_len = geometry->max_seq_len,
        .pad_id = tokenizer->pad_id,
        .eos_id = tokenizer->eos_id,
        .bos_id = tokenizer->bos_id,
        .unk_id = tokenizer->unk_id,
        .im_start_id = id_of(model, "<|im_start|>"),
        .im_end_id = id_of(model, "<|im_end|>"),
        .think_open_id = id_of(model, "<think>"),
        .think_close_id = id_of(model, "</think>"),
        .tool_call_open_id = id_of(model, "<tool_call>"),
        .tool_call_close_id = id_of(model, "</tool_call>"),
    };
    for (uint32_t head = SG_HEAD_EMBEDDING; head <= SG_HEAD_ROUTER; head++) {
        if (model->heads[head].output_count) info->heads |= 1u << head;
    }
}
