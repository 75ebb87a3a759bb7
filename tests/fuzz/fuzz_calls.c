/* Input: u8 model, u8 capacity, u8 numerics, then calls: u8 operation and its arguments. All that a host may call in
 * any order; calls that must be refused are. In the end a fresh session is given the tokens that count, one by one: its
 * logits and heads must be the same bits. */
#include <stdbool.h>

#include "models.h"
#include "targets.h"

#define HEAD_COUNT 4u
#define CAPACITY_MAX 60u
#define EVENTS_MAX 256u
#define CALLS_MAX 64u
#define TEMPERATURE_MAX 1e6f

/* What a session was given and has not forgotten: an id, or a pin. */
struct event {
    uint32_t value;
    bool is_pin;
};

struct history {
    struct event events[EVENTS_MAX];
    uint32_t count, position;
};

struct host {
    const struct sg_model *model;
    struct sg_model_info info;
    uint32_t capacity, numerics;
    struct sg_session *session;
    void *memory;
    void *listeners[HEAD_COUNT];
    struct history now, mark;
    bool has_mark;
};

static void require(bool holds) {
    if (!holds)
        abort();
}

static void open_session(struct host *host) {
    struct sg_error error;
    size_t byte_count;
    require(sg_session_measure(host->model, host->capacity, host->numerics, &byte_count, &error) == SG_STATUS_OK);
    host->memory = fuzz_block(byte_count);
    require(sg_session_open(host->model, host->capacity, host->numerics, host->memory, byte_count, &host->session,
                            &error) == SG_STATUS_OK);
}

static void close_session(struct host *host) {
    for (uint32_t head = 0; head < HEAD_COUNT; head++)
        free(host->listeners[head]);
    free(host->memory);
}

static void listen(struct host *host, uint32_t head) {
    struct sg_error error;
    uint32_t output_count;
    size_t byte_count;
    if (sg_head_measure(host->model, head, &output_count, &byte_count, &error) != SG_STATUS_OK) {
        require(sg_session_listen(host->session, head, NULL, 0, &error) == SG_STATUS_UNKNOWN_HEAD);
        return;
    }
    void *memory = fuzz_block(byte_count);
    const int status = sg_session_listen(host->session, head, memory, byte_count, &error);
    require(status == (host->now.position ? SG_STATUS_BAD_STATE : SG_STATUS_OK));
    if (status == SG_STATUS_OK) {
        free(host->listeners[head]);
        host->listeners[head] = memory;
    } else {
        free(memory);
    }
}

static void remember(struct history *history, uint32_t value, bool is_pin) {
    history->events[history->count++] = (struct event){value, is_pin};
    history->position += !is_pin;
}

/* One id in sixteen does not exist. */
static void append(struct host *host, struct fuzz_input *input) {
    uint32_t ids[CAPACITY_MAX + 8];
    struct sg_error error;
    const uint32_t count = fuzz_take(input, 1) % (CAPACITY_MAX + 8);
    bool exist = true;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t byte = fuzz_take(input, 1);
        ids[i] = byte < 240 ? byte % host->info.vocab_count : host->info.vocab_count + byte;
        exist = exist && byte < 240;
    }
    const bool fits = count <= host->capacity - host->now.position;
    const int status = sg_session_append(host->session, ids, count, &error);
    require(status == (!fits ? SG_STATUS_CONTEXT_FULL : !exist ? SG_STATUS_BAD_TOKEN : SG_STATUS_OK));
    for (uint32_t i = 0; i < count && status == SG_STATUS_OK; i++)
        remember(&host->now, ids[i], false);
}

static void score(struct host *host, struct fuzz_input *input) {
    uint32_t ids[CAPACITY_MAX + 8];
    struct sg_error error;
    double sum;
    const uint32_t count = fuzz_take(input, 1) % (CAPACITY_MAX + 8);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = fuzz_take(input, 1) % host->info.logit_count;
    const bool fits = count <= host->capacity - host->now.position;
    const int status = sg_session_score(host->session, ids, count, &sum, &error);
    require(status == (!host->now.position ? SG_STATUS_BAD_STATE : fits ? SG_STATUS_OK : SG_STATUS_CONTEXT_FULL));
}

static void sample(struct host *host, struct fuzz_input *input) {
    struct sg_error error;
    struct sg_sampling sampling = {.top_k = fuzz_take(input, 1), .reserved = 0, .random_state = fuzz_take(input, 1)};
    uint32_t bits[2] = {fuzz_take(input, 2) << 16, fuzz_take(input, 2) << 16}, id;
    memcpy(&sampling.temperature, bits, 4);
    memcpy(&sampling.top_p, bits + 1, 4);
    const bool is_sound = sampling.temperature >= 0 && sampling.temperature <= TEMPERATURE_MAX && sampling.top_p > 0 &&
                          sampling.top_p <= 1;
    const int status = sg_session_sample(host->session, &sampling, &id, &error);
    require((status == SG_STATUS_OK) == (is_sound && host->now.position));
    require(id < host->info.logit_count);
}

static void pin(struct host *host, struct fuzz_input *input) {
    struct sg_error error;
    const uint32_t count = fuzz_take(input, 1) % (CAPACITY_MAX + 8);
    const int status = sg_session_pin(host->session, count, &error);
    require(status == (count <= host->capacity ? SG_STATUS_OK : SG_STATUS_BAD_ARGUMENT));
    if (status == SG_STATUS_OK)
        remember(&host->now, count, true);
}

static void rewind_to_mark(struct host *host) {
    struct sg_error error;
    require(sg_session_rewind(host->session, &error) == (host->has_mark ? SG_STATUS_OK : SG_STATUS_BAD_STATE));
    if (host->has_mark)
        host->now = host->mark;
}

static void ask_head(struct host *host, uint32_t head) {
    struct sg_error error;
    const float *outputs;
    const bool hears = head < HEAD_COUNT && host->listeners[head] && host->now.position;
    require((sg_session_head(host->session, head, &outputs, &error) == SG_STATUS_OK) == hears);
}

enum { APPEND, SAMPLE, MARK, REWIND, SCORE, PIN, LOGITS, RESET, LISTEN, HEAD, OPERATION_COUNT };

static void call(struct host *host, struct fuzz_input *input) {
    struct sg_error error;
    const float *logits;
    switch (fuzz_take(input, 1) % OPERATION_COUNT) {
    case APPEND: append(host, input); break;
    case SAMPLE: sample(host, input); break;
    case MARK:
        require(sg_session_mark(host->session, &error) == SG_STATUS_OK);
        host->mark = host->now, host->has_mark = true;
        break;
    case REWIND: rewind_to_mark(host); break;
    case SCORE: score(host, input); break;
    case PIN: pin(host, input); break;
    case LOGITS:
        require(sg_session_logits(host->session, &logits, &error) ==
                (host->now.position ? SG_STATUS_OK : SG_STATUS_BAD_STATE));
        break;
    case RESET:
        sg_session_reset(host->session);
        host->now = (struct history){0}, host->has_mark = false;
        break;
    case LISTEN: listen(host, fuzz_take(input, 1) % (HEAD_COUNT + 1)); break;
    case HEAD: ask_head(host, fuzz_take(input, 1) % (HEAD_COUNT + 1)); break;
    default: break;
    }
    require(sg_session_position(host->session) == host->now.position);
}

/* A fresh session with the same tokens, and the same ears. */
static void repeat(const struct host *host, struct host *fresh) {
    struct sg_error error;
    *fresh = (struct host){.model = host->model, .capacity = host->capacity, .numerics = host->numerics};
    open_session(fresh);
    for (uint32_t head = 0; head < HEAD_COUNT; head++)
        if (host->listeners[head])
            listen(fresh, head);
    for (uint32_t i = 0; i < host->now.count; i++) {
        const struct event *event = &host->now.events[i];
        require((event->is_pin ? sg_session_pin(fresh->session, event->value, &error)
                               : sg_session_append(fresh->session, &event->value, 1, &error)) == SG_STATUS_OK);
    }
}

static void require_same(struct host *a, struct host *b, uint32_t logit_count) {
    struct sg_error error;
    const float *first, *second;
    if (!a->now.position)
        return;
    require(sg_session_logits(a->session, &first, &error) == SG_STATUS_OK);
    require(sg_session_logits(b->session, &second, &error) == SG_STATUS_OK);
    require(memcmp(first, second, logit_count * sizeof *first) == 0);
    for (uint32_t head = 0; head < HEAD_COUNT; head++) {
        uint32_t output_count;
        size_t byte_count;
        if (!a->listeners[head])
            continue;
        require(sg_head_measure(a->model, head, &output_count, &byte_count, &error) == SG_STATUS_OK);
        require(sg_session_head(a->session, head, &first, &error) == SG_STATUS_OK);
        require(sg_session_head(b->session, head, &second, &error) == SG_STATUS_OK);
        require(memcmp(first, second, output_count * sizeof *first) == 0);
    }
}

static void play(struct host *host, struct fuzz_input *input) {
    struct host fresh;
    open_session(host);
    for (uint32_t i = 0; i < CALLS_MAX && input->byte_count && host->now.count < EVENTS_MAX - CAPACITY_MAX - 8; i++)
        call(host, input);
    repeat(host, &fresh);
    require_same(host, &fresh, host->info.logit_count);
    close_session(&fresh);
    close_session(host);
}

void fuzz_calls(const uint8_t *data, size_t byte_count) {
    static const char *const names[3] = {"tiny83", "tiny84", "tiny84_widths"};
    struct fuzz_input input = {data, byte_count};
    struct host *host = calloc(1, sizeof *host);
    struct sg_error error;
    struct sg_model *model;
    size_t file_bytes, model_bytes;
    uint8_t *file = fuzz_model_file(names[fuzz_take(&input, 1) % 3], &file_bytes);
    host->capacity = 1 + fuzz_take(&input, 1) % CAPACITY_MAX, host->numerics = fuzz_take(&input, 1) % 2;
    require(sg_model_measure(file, file_bytes, &model_bytes, &error) == SG_STATUS_OK);
    void *memory = fuzz_block(model_bytes);
    require(sg_model_open(file, file_bytes, memory, model_bytes, &model, &error) == SG_STATUS_OK);
    host->model = model;
    sg_model_describe(model, &host->info);
    play(host, &input);
    free(memory), free(file), free(host);
}
