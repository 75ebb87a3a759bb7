/* Grouped-query attention with taps on q, k and v, normed heads, rotary positions and an output gate. */
#include "forward.h"

#include "math.h"

/* Normed and rotated in place: one head of one token. */
static void place_head(float *head, const float *norm, size_t qk, const float *cosines, const float *sines,
                       float *normed) {
    const size_t half = qk / 2;
    sg_normalise(head, qk, norm, normed, qk);
    for (size_t i = 0; i < half; i++) {
        const float a = normed[i], b = normed[half + i];
        head[i] = a * cosines[i] - b * sines[i];
        head[half + i] = b * cosines[i] + a * sines[i];
    }
}

/* One projection of the block, taps applied: out (count, rows). `past` holds the raw rows before the block. */
static void project(struct sg_session *session, const struct sg_matrix *matrix, const float *taps, float *past,
                    uint32_t count, float *out) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const size_t width = matrix->row_count;
    if (!taps) {
        sg_matmul(matrix, 0, matrix->row_count, session->work.operand, count, out, width);
        return;
    }
    const uint32_t reach = sg_tap_reach(geometry);
    float *window = session->work.raw;
    memcpy(window, past, reach * width * sizeof *window);
    sg_matmul(matrix, 0, matrix->row_count, session->work.operand, count, window + reach * width, width);
    memcpy(past, window + count * width, reach * width * sizeof *window);
    sg_convolve(window, reach, taps, geometry->qkv_conv_taps, 1, width, count, out, width);
}

/* Puts the block's keys and values into the cache: from (count, G, width) to (G, C, width). */
static void store(const struct sg_session *session, const float *block, uint32_t count, size_t width, float *cache) {
    const uint32_t groups = session->model->geometry.kv_head_count;
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t g = 0; g < groups; g++) {
            float *to = cache + ((size_t)g * session->capacity + session->now.position + t) * width;
            memcpy(to, block + ((size_t)t * groups + g) * width, width * sizeof *to);
        }
    }
}

/* Softmax over `count` scores, in place. */
static void softmax(float *scores, size_t count) {
    float top = scores[0];
    for (size_t i = 1; i < count; i++) top = scores[i] > top ? scores[i] : top;
    for (size_t i = 0; i < count; i++) scores[i] = sg_expf(scores[i] - top);
    const float inverse = 1.0f / sg_sum(scores, count);
    for (size_t i = 0; i < count; i++) scores[i] *= inverse;
}

/* One query head of one token over the keys and values from `first` to its own position. */
static void attend_head(const struct sg_session *session, const float *query, const float *keys, const float *values,
                        uint32_t first, uint32_t last, float *out) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const size_t qk = geometry->qk_head_dim, width = geometry->v_head_dim, count = last - first + 1;
    const float scale = 1.0f / __builtin_sqrtf((float)qk);
    float *scores = session->work.scores;
    for (size_t j = 0; j < count; j++) scores[j] = sg_dot(query, keys + (first + j) * qk, qk) * scale;
    softmax(scores, count);
    sg_weighted_sum(scores, 1, values + first * width, count, width, out);
}

static void attend_token(const struct sg_session *session, uint32_t layer, uint32_t t) {
    const struct sg_model *model = session->model;
    const struct sg_geometry *geometry = &model->geometry;
    const uint32_t last = session->now.position + t, window = geometry->sliding_window;
    const uint32_t first = sg_is_global(geometry, layer) || last < window ? 0 : last - window + 1;
    const uint32_t heads_per_group = geometry->head_count / geometry->kv_head_count;
    for (uint32_t h = 0; h < geometry->head_count; h++) {
        const size_t cache = ((size_t)layer * geometry->kv_head_count + h / heads_per_group) * session->capacity;
        attend_head(session, session->work.q + (size_t)t * model->q_dim + h * geometry->qk_head_dim,
                    session->keys + cache * geometry->qk_head_dim, session->values + cache * geometry->v_head_dim,
                    first, last, session->work.mixed + (size_t)t * model->out_dim + h * geometry->v_head_dim);
    }
}

/* Projections of the block: q stays in `work.q`, keys and values go to the cache. */
static void find_qkv(struct sg_session *session, uint32_t l, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_geometry *geometry = &model->geometry;
    const struct sg_layer *layer = &model->layers[l];
    struct sg_work *work = &session->work;
    const size_t qk = geometry->qk_head_dim, half = qk / 2, reach = sg_tap_reach(geometry);
    const size_t cache = (size_t)l * geometry->kv_head_count * session->capacity;
    float *past = session->now.raw + l * reach * (model->q_dim + model->k_dim + model->v_dim);
    project(session, &layer->q_proj, layer->q_taps, past, count, work->q);
    project(session, &layer->k_proj, layer->k_taps, past + reach * model->q_dim, count, work->kv);
    for (uint32_t t = 0; t < count; t++) {
        const float *cosines = work->cosines + t * half, *sines = work->sines + t * half;
        for (uint32_t h = 0; h < geometry->head_count; h++) {
            place_head(work->q + (size_t)t * model->q_dim + h * qk, layer->q_norm, qk, cosines, sines, work->scores);
        }
        for (uint32_t g = 0; g < geometry->kv_head_count; g++) {
            place_head(work->kv + (size_t)t * model->k_dim + g * qk, layer->k_norm, qk, cosines, sines, work->scores);
        }
    }
    store(session, work->kv, count, qk, session->keys + cache * qk);
    project(session, &layer->v_proj, layer->v_taps, past + reach * (model->q_dim + model->k_dim), count, work->kv);
    store(session, work->kv, count, geometry->v_head_dim, session->values + cache * geometry->v_head_dim);
}

void sg_attend(struct sg_session *session, uint32_t l, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_layer *layer = &model->layers[l];
    struct sg_work *work = &session->work;
    const size_t d = model->geometry.d_model, padded = sg_padded(d);
    const size_t out_dim = model->out_dim, out_padded = sg_padded(out_dim);
    for (uint32_t t = 0; t < count; t++) {
        sg_normalise(work->hidden + t * d, d, layer->norm_in, work->operand + t * padded, padded);
    }
    sg_rotate(work->operand, count * (padded / SG_GROUP));
    find_qkv(session, l, count);
    sg_matmul(&layer->gate_proj, 0, layer->gate_proj.row_count, work->operand, count, work->gate, out_dim);
    for (uint32_t t = 0; t < count; t++) {
        attend_token(session, l, t);
        float *row = work->operand + t * out_padded;
        for (size_t i = 0; i < out_dim; i++) {
            row[i] = work->mixed[t * out_dim + i] * sg_sigmoidf(work->gate[t * out_dim + i]);
        }
        for (size_t i = out_dim; i < out_padded; i++) row[i] = 0.0f;
    }
    sg_rotate(work->operand, count * (out_padded / SG_GROUP));
    sg_matmul(&layer->out_proj, 0, (uint32_t)d, work->operand, count, work->change, d);
    const float gate = sg_sigmoidf(layer->attn_gate[0]);
    for (uint32_t t = 0; t < count; t++) {
        sg_normalise(work->change + t * d, d, layer->post_attn_norm, work->change + t * d, d);
        sg_axpy(work->hidden + t * d, gate, work->change + t * d, d);
    }
}
