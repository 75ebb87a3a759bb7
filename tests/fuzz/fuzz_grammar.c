/* Input: u8 room, u8 how to begin (odd: with `<tool_call>`), the tools' text up to a zero byte, then one step a byte.
 * Most steps draw an allowed id; those from 240 on offer one that may not fit. A room that shrinks by one with each id
 * always has an id left within a call, and the call is closed before the room is used up. Sampling draws what the mask
 * allows, greedy the best of it. In less memory nothing opens. */
#include <stdbool.h>

#include "models.h"
#include "targets.h"

#define TOOLS_BYTES_MAX 4096u
#define GRAMMAR_BYTES_MAX (64u << 20)
#define ROOM_MAX 200u
#define OFFERED 240u

#define SAMPLED 8u
#define FRESH 4u /* logits of a whole vocabulary take most of the time */

struct model {
    struct sg_model *model;
    struct sg_model_info info;
    struct sg_session *session; /* with logits to sample from */
};

static void open_session(struct model *model) {
    struct sg_error error;
    size_t byte_count;
    const uint32_t id = 1;
    if (sg_session_measure(model->model, 1, SG_NUMERICS_EXACT, &byte_count, &error) != SG_STATUS_OK)
        abort();
    void *memory = fuzz_block(byte_count);
    if (sg_session_open(model->model, 1, SG_NUMERICS_EXACT, memory, byte_count, &model->session, &error) ||
        sg_session_append(model->session, &id, 1, &error) || sg_session_mark(model->session, &error))
        abort();
}

/* Opened once: no input changes it. */
static const struct model *shared_model(void) {
    static struct model shared;
    struct sg_error error;
    size_t file_bytes, model_bytes;
    if (shared.model)
        return &shared;
    uint8_t *file = fuzz_model_file("grammar", &file_bytes);
    if (sg_model_measure(file, file_bytes, &model_bytes, &error) != SG_STATUS_OK ||
        sg_model_open(file, file_bytes, fuzz_block(model_bytes), model_bytes, &shared.model, &error) != SG_STATUS_OK)
        abort();
    sg_model_describe(shared.model, &shared.info);
    open_session(&shared);
    return &shared;
}

static bool is_allowed(const uint32_t *words, uint32_t id) { return words[id / 32] >> id % 32 & 1; }

/* The `choice`-th of the allowed ids, counted round; UINT32_MAX if there is none. */
static uint32_t draw(const uint32_t *words, uint32_t logit_count, uint32_t choice) {
    uint32_t count = 0;
    for (uint32_t id = 0; id < logit_count; id++)
        count += is_allowed(words, id);
    if (!count)
        return UINT32_MAX;
    for (uint32_t id = 0, left = choice % count;; id++)
        if (is_allowed(words, id) && left-- == 0)
            return id;
}

/* Whether it was taken; if not, nothing may have moved. */
static bool offer(struct sg_grammar *grammar, uint32_t id, uint32_t room, uint32_t logit_count) {
    const size_t byte_count = (logit_count + 31) / 32 * sizeof(uint32_t);
    uint32_t *before = fuzz_block(byte_count);
    const uint32_t *words;
    struct sg_error error = {0};
    sg_grammar_allowed(grammar, room, &words);
    memcpy(before, words, byte_count);
    const bool is_shown = id < logit_count && is_allowed(before, id);
    const int status = sg_grammar_accept(grammar, id, &error);
    if (status != SG_STATUS_OK) {
        sg_grammar_allowed(grammar, room, &words);
        if (status != SG_STATUS_BAD_TOKEN || is_shown || memcmp(before, words, byte_count) != 0)
            abort();
    }
    free(before);
    return status == SG_STATUS_OK;
}

static void require_best(const struct model *model, const uint32_t *words, uint32_t id) {
    const float *logits;
    struct sg_error error;
    if (sg_session_logits(model->session, &logits, &error) != SG_STATUS_OK)
        abort();
    for (uint32_t other = 0; other < model->info.logit_count; other++)
        if (is_allowed(words, other) && (logits[other] > logits[id] || (logits[other] == logits[id] && other < id)))
            abort();
}

/* Sampling tells of the same ids as the mask, greedy and at a temperature; sometimes no logit is there yet. */
static void sample(const struct model *model, struct sg_grammar *grammar, uint32_t room, bool has_any, uint32_t state) {
    struct sg_sampling sampling = {.temperature = state & 1 ? 2.0f : 0.0f, .top_p = 1.0f, .random_state = state};
    struct sg_error error;
    const uint32_t *words;
    uint32_t id;
    if (state % FRESH == 0 && sg_session_rewind(model->session, &error) != SG_STATUS_OK)
        abort();
    const int status = sg_session_sample_allowed(model->session, grammar, room, &sampling, &id, &error);
    sg_grammar_allowed(grammar, room, &words);
    if ((status == SG_STATUS_OK) != has_any || (has_any && !is_allowed(words, id)))
        abort();
    if (has_any && state % (2 * FRESH) == 0)
        require_best(model, words, id);
}

struct answer {
    const struct model *model;
    struct sg_grammar *grammar;
    const struct sg_model_info *info;
    uint32_t room;
    bool is_calling, is_closed;
    bool is_promised; /* every id so far was allowed in the room that there was */
};

static void require_taken(int status) {
    if (status != SG_STATUS_OK)
        abort();
}

static void keep(struct answer *answer, uint32_t id) {
    answer->is_closed = answer->is_calling && id == answer->info->tool_call_close_id;
    answer->is_calling = !answer->is_closed && (answer->is_calling || id == answer->info->tool_call_open_id);
    answer->room--;
}

static void step(struct answer *answer, uint32_t choice, struct fuzz_input *steps) {
    const struct sg_model_info *info = answer->info;
    struct sg_error error;
    const uint32_t *words;
    sg_grammar_allowed(answer->grammar, answer->room, &words);
    uint32_t id = draw(words, info->logit_count, choice);
    if (choice % SAMPLED == 0)
        sample(answer->model, answer->grammar, answer->room, id != UINT32_MAX, choice / SAMPLED);
    const bool is_none = id == UINT32_MAX, was_promised = answer->is_promised;
    if (is_none && answer->is_calling && was_promised)
        abort();
    if (choice >= OFFERED || is_none) {
        id = fuzz_take(steps, 2) % (info->logit_count + 2);
        answer->is_promised = was_promised && id < info->logit_count && is_allowed(words, id);
        if (!offer(answer->grammar, id, answer->room, info->logit_count)) {
            answer->is_promised = was_promised;
            answer->room -= is_none;
            return;
        }
    } else {
        require_taken(sg_grammar_accept(answer->grammar, id, &error));
    }
    keep(answer, id);
}

static void walk(struct sg_grammar *grammar, const struct model *model, uint32_t room, bool is_calling,
                 struct fuzz_input *steps) {
    const struct sg_model_info *info = &model->info;
    struct answer answer = {model, grammar, info, room, false, false, true};
    struct sg_error error;
    const uint32_t *words;
    sg_grammar_allowed(grammar, room, &words);
    if (is_calling && is_allowed(words, info->tool_call_open_id)) {
        require_taken(sg_grammar_accept(grammar, info->tool_call_open_id, &error));
        keep(&answer, info->tool_call_open_id);
    }
    while (answer.room && !answer.is_closed && (steps->byte_count || answer.is_calling))
        step(&answer, fuzz_take(steps, 1), steps);
    if (answer.is_calling && answer.is_promised)
        abort();
}

/* `field` may be a path that lies in the grammar's memory. */
static void require_reason(int status, const struct sg_error *error) {
    if (status != SG_STATUS_OK && (error->status != (uint32_t)status || !error->field || strlen(error->field) >= 200))
        abort();
}

static void use(const struct model *model, const uint8_t *tools, size_t tools_bytes, uint32_t room, bool is_calling,
                struct fuzz_input *steps) {
    struct sg_error error = {0};
    struct sg_grammar *grammar;
    size_t grammar_bytes;
    int status = sg_grammar_measure(model->model, tools, tools_bytes, &grammar_bytes, &error);
    require_reason(status, &error);
    if (status != SG_STATUS_OK)
        return;
    if (grammar_bytes > GRAMMAR_BYTES_MAX)
        abort();
    const size_t less = grammar_bytes * room / ROOM_MAX;
    void *memory = fuzz_block(less);
    if (sg_grammar_open(model->model, tools, tools_bytes, memory, less, &grammar, &error) == SG_STATUS_OK)
        abort();
    free(memory);
    memory = fuzz_block(grammar_bytes);
    status = sg_grammar_open(model->model, tools, tools_bytes, memory, grammar_bytes, &grammar, &error);
    require_reason(status, &error);
    if (status == SG_STATUS_OK) {
        struct fuzz_input again = *steps;
        walk(grammar, model, room, is_calling, steps);
        sg_grammar_reset(grammar);
        walk(grammar, model, room, is_calling, &again);
    }
    free(memory);
}

void fuzz_grammar(const uint8_t *data, size_t byte_count) {
    struct fuzz_input input = {data, byte_count};
    const uint32_t room = fuzz_take(&input, 1) % ROOM_MAX, how = fuzz_take(&input, 1);
    const uint8_t *end = input.byte_count ? memchr(input.bytes, 0, input.byte_count) : NULL;
    const size_t told = end ? (size_t)(end - input.bytes) : input.byte_count;
    const size_t tools_bytes = told < TOOLS_BYTES_MAX ? told : TOOLS_BYTES_MAX;
    uint8_t *tools = fuzz_block(tools_bytes);
    memcpy(tools, input.bytes, tools_bytes);
    input.bytes += tools_bytes, input.byte_count -= tools_bytes;
    fuzz_take(&input, 1);
    use(shared_model(), tools, tools_bytes, room, how & 1, &input);
    free(tools);
}
