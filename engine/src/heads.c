/* Probe heads: means while tokens go by, and the answer in the end.
 *
 * Source: `probe_pool` and `ProbeHead` in `needle/model/architecture.py` of cactus-needle 3.2.8; generation 2 as needle-rs
 * 0.3.1 has it (one softmax over the cells of all rows). */
#include "heads.h"

#include "arena.h"
#include "attention.h"
#include "forward.h"
#include "math.h"

#define EMBEDDING_EPSILON 1e-12f

/* Floats of a mean: the largest score, the sum of the weights, the sum of the vectors. */
enum { TOP, WEIGHT, SUM };

static size_t mean_floats(const struct sg_model *model) { return model->geometry.d_model + (size_t)SUM; }

static void clear_means(const struct sg_model *model, float *means, size_t count) {
    const size_t size = mean_floats(model);
    memset(means, 0, count * size * sizeof *means);
    for (size_t i = 0; i < count; i++) means[i * size + TOP] = SG_NO_SCORE;
}

static void scale(float *to, const float *from, float factor, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = from[i] * factor;
}

/* Takes in vectors that were summed, with weights relative to this score. */
static void add_to_mean(float *mean, float score, float weight, const float *sum, size_t d) {
    const float distance = score - mean[TOP];
    float factor = sg_expf(distance > 0.0f ? -distance : distance);
    if (distance > 0.0f) {
        mean[TOP] = score;
        scale(mean + WEIGHT, mean + WEIGHT, factor, d + 1);
        factor = 1.0f;
    }
    mean[WEIGHT] += factor * weight;
    sg_axpy(mean + SUM, factor, sum, d);
}

static uint32_t rows_of(const struct sg_model *model) { return model->geometry.layer_count + 1; }

/* Where a row of the rung stands among those of the file. */
static size_t origin_of(const struct sg_model *model, uint32_t row) {
    return row == 0 ? 0 : model->layers[row - 1].origin + (size_t)1;
}

static size_t mean_count(const struct sg_model *model, const struct sg_head *head) {
    return (size_t)rows_of(model) * head->probe_count;
}

/* Means that the answer joins: one per query, or per probe in generation 2. */
static size_t part_count(const struct sg_head *head) {
    return head->query_count ? head->query_count : head->probe_count;
}

static struct sg_listener take_listener(const struct sg_model *model, const struct sg_head *head,
                                        struct sg_arena *arena) {
    const size_t d = model->geometry.d_model, size = mean_floats(model);
    const size_t means = mean_count(model, head) * size, parts = part_count(head) * size;
    struct sg_listener listener = {.head = head};
    float *block = sg_arena_take(arena, 2 * means + parts + d + head->output_count, sizeof *block);
    if (!block) return listener;
    listener.now = block;
    listener.mark = listener.now + means;
    listener.answer = listener.mark + means;
    listener.cell = listener.answer + parts;
    listener.outputs = listener.cell + d;
    return listener;
}

/* The head, or NULL and a failure. */
static const struct sg_head *find_head(const struct sg_model *model, uint32_t code, struct sg_error *error) {
    static const char *const fields[] = {"heads", "heads.embedding", "heads.confidence", "heads.router"};
    const uint32_t known = code <= SG_HEAD_ROUTER ? code : 0;
    if (model->heads[known].output_count) return &model->heads[known];
    sg_fail(error, SG_STATUS_UNKNOWN_HEAD, fields[known], 0, code, SG_HEAD_ROUTER);
    return NULL;
}

int sg_head_measure(const struct sg_model *model, uint32_t head, uint32_t *output_count, size_t *listen_bytes,
                    struct sg_error *error) {
    struct sg_arena arena = {0};
    *output_count = 0;
    *listen_bytes = 0;
    const struct sg_head *found = find_head(model, head, error);
    if (!found) return SG_STATUS_UNKNOWN_HEAD;
    take_listener(model, found, &arena);
    if (!sg_arena_fits(&arena)) return sg_fail(error, SG_STATUS_OUT_OF_MEMORY, "heads", 0, 0, arena.used);
    *output_count = found->output_count;
    *listen_bytes = (size_t)arena.used;
    return SG_STATUS_OK;
}

int sg_session_listen(struct sg_session *session, uint32_t head, void *memory, size_t memory_bytes,
                      struct sg_error *error) {
    const struct sg_model *model = session->model;
    const struct sg_head *found = find_head(model, head, error);
    if (!found) return SG_STATUS_UNKNOWN_HEAD;
    if (!memory) return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "memory", 0, 0, 0);
    if (session->now.position) {
        return sg_fail(error, SG_STATUS_BAD_STATE, "session.position", 0, session->now.position, 0);
    }
    struct sg_arena arena = {.base = memory, .capacity = memory_bytes};
    const struct sg_listener listener = take_listener(model, found, &arena);
    if (!sg_arena_fits(&arena)) {
        return sg_fail(error, SG_STATUS_OUT_OF_MEMORY, "heads", 0, memory_bytes, arena.used);
    }
    clear_means(model, listener.now, 2 * mean_count(model, found)); /* the mark's too: one may be set already */
    session->listeners[head] = listener;
    return SG_STATUS_OK;
}

static void hear_cell(const struct sg_model *model, struct sg_listener *listener, uint32_t row) {
    const struct sg_head *head = listener->head;
    const size_t d = model->geometry.d_model, count = head->probe_count, size = mean_floats(model);
    const float *probes = head->probes + (head->query_count ? origin_of(model, row) * count * d : 0);
    const float root = __builtin_sqrtf((float)d);
    for (size_t p = 0; p < count; p++) {
        const float score = sg_dot(listener->cell, probes + p * d, d) / root;
        add_to_mean(listener->now + (row * count + p) * size, score, 1.0f, listener->cell, d);
    }
}

void sg_heads_hear(struct sg_session *session, uint32_t row, uint32_t count) {
    for (uint32_t code = SG_HEAD_EMBEDDING; code <= SG_HEAD_ROUTER; code++) {
        struct sg_listener *listener = &session->listeners[code];
        if (!listener->head || session->is_rehearsing) continue;
        for (uint32_t t = 0; t < count; t++) {
            sg_lanes_mean(session, t, listener->cell);
            hear_cell(session->model, listener, row);
        }
    }
}

/* From `now` to `mark`, or back. */
static void copy_means(struct sg_session *session, bool back) {
    for (uint32_t code = SG_HEAD_EMBEDDING; code <= SG_HEAD_ROUTER; code++) {
        const struct sg_listener *l = &session->listeners[code];
        if (!l->head) continue;
        const size_t bytes = mean_count(session->model, l->head) * mean_floats(session->model) * sizeof *l->now;
        memcpy(back ? l->now : l->mark, back ? l->mark : l->now, bytes);
    }
}

void sg_heads_mark(struct sg_session *session) { copy_means(session, false); }

void sg_heads_rewind(struct sg_session *session) { copy_means(session, true); }

void sg_heads_reset(struct sg_session *session) {
    for (uint32_t code = SG_HEAD_EMBEDDING; code <= SG_HEAD_ROUTER; code++) {
        const struct sg_listener *l = &session->listeners[code];
        if (l->head) clear_means(session->model, l->now, mean_count(session->model, l->head));
    }
}

/* Generation 3: a mean as a vector of unit rms, times its gain; each query then takes the softmax mean of these vectors,
 * and gives them a bias by place. */
static void join_for_queries(const struct sg_model *model, struct sg_listener *listener, uint32_t row, size_t p) {
    const struct sg_head *head = listener->head;
    const size_t d = model->geometry.d_model, count = head->probe_count, size = mean_floats(model);
    const size_t place = origin_of(model, row) * count + p, places = (model->file_layer_count + (size_t)1) * count;
    const float *mean = listener->now + (row * count + p) * size;
    float *cell = listener->cell;
    scale(cell, mean + SUM, 1.0f / mean[WEIGHT], d);
    sg_normalise(cell, d, NULL, cell, d);
    scale(cell, cell, head->gain[place], d);
    for (size_t s = 0; s < head->query_count; s++) {
        const float match = sg_dot(cell, head->query + s * d, d) / __builtin_sqrtf((float)d);
        add_to_mean(listener->answer + s * size, match + head->row_bias[s * places + place], 1.0f, cell, d);
    }
}

/* Generation 2: each probe's mean over the cells of all rows. */
static void join_for_probe(const struct sg_model *model, struct sg_listener *listener, uint32_t row, size_t p) {
    const size_t size = mean_floats(model);
    const float *mean = listener->now + (row * listener->head->probe_count + p) * size;
    add_to_mean(listener->answer + p * size, mean[TOP], mean[WEIGHT], mean + SUM, model->geometry.d_model);
}

static void join(const struct sg_model *model, struct sg_listener *listener) {
    const struct sg_head *head = listener->head;
    clear_means(model, listener->answer, part_count(head));
    for (uint32_t row = 0; row < rows_of(model); row++) {
        for (size_t p = 0; p < head->probe_count; p++) {
            (head->query_count ? join_for_queries : join_for_probe)(model, listener, row, p);
        }
    }
}

static void project(const struct sg_model *model, struct sg_listener *listener, bool has_bias) {
    const struct sg_head *head = listener->head;
    const size_t d = model->geometry.d_model, parts = part_count(head), size = mean_floats(model);
    for (size_t o = 0; o < head->output_count; o++) {
        float sum = has_bias ? head->bias[o] : 0.0f;
        for (size_t part = 0; part < parts; part++) {
            const float *mean = listener->answer + part * size;
            sum += sg_dot(mean + SUM, head->proj + (o * parts + part) * d, d) / mean[WEIGHT];
        }
        listener->outputs[o] = sum;
    }
}

static void scale_to_length_1(float *x, size_t count) {
    scale(x, x, 1.0f / __builtin_sqrtf(sg_dot(x, x, count) + EMBEDDING_EPSILON), count);
}

int sg_session_head(struct sg_session *session, uint32_t head, const float **outputs, struct sg_error *error) {
    *outputs = NULL;
    const struct sg_head *found = find_head(session->model, head, error);
    if (!found) return SG_STATUS_UNKNOWN_HEAD;
    struct sg_listener *listener = &session->listeners[head];
    if (!listener->head) return sg_fail(error, SG_STATUS_BAD_STATE, "session.listener", 0, 0, 1);
    if (!session->now.position) return sg_fail(error, SG_STATUS_BAD_STATE, "session.position", 0, 0, 1);
    join(session->model, listener);
    project(session->model, listener, head != SG_HEAD_EMBEDDING);
    if (head == SG_HEAD_EMBEDDING) scale_to_length_1(listener->outputs, found->output_count);
    if (head == SG_HEAD_CONFIDENCE) listener->outputs[0] = sg_sigmoidf(listener->outputs[0]);
    for (uint32_t o = 0; o < found->output_count; o++) listener->outputs[o] = sg_settle_nan(listener->outputs[o]);
    *outputs = listener->outputs;
    return SG_STATUS_OK;
}
