/* Grouped-query attention with taps on q, k and v, normed heads, rotary positions and an output gate. */
#include "forward.h"

#include "math.h"

#define NO_SCORE (-0x1p120f) /* so far below any score that its weight is zero */

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
        sg_product(matrix, 0, matrix->row_count, &session->work.operand, out, width);
        return;
    }
    const uint32_t reach = sg_tap_reach(geometry);
    float *window = session->work.raw;
    memcpy(window, past, reach * width * sizeof *window);
    sg_product(matrix, 0, matrix->row_count, &session->work.operand, window + reach * width, width);
    memcpy(past, window + count * width, reach * width * sizeof *window);
    sg_convolve(window, reach, taps, geometry->qkv_conv_taps, 1, width, count, out, width);
}

/* Puts the block's values into the cache: from (count, G, V) to (G, C, V). */
static void store_values(const struct sg_session *session, const float *block, uint32_t count, float *cache) {
    const uint32_t groups = session->model->geometry.kv_head_count;
    const size_t width = session->model->geometry.v_head_dim;
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t g = 0; g < groups; g++) {
            float *to = cache + ((size_t)g * session->capacity + session->now.position + t) * width;
            memcpy(to, block + ((size_t)t * groups + g) * width, width * sizeof *to);
        }
    }
}

/* The keys: from (count, G, Q) to (G, C / 16, Q, 16), so that 16 scores are found at once. */
static void store_keys(const struct sg_session *session, const float *block, uint32_t count, float *cache) {
    const uint32_t groups = session->model->geometry.kv_head_count;
    const size_t width = session->model->geometry.qk_head_dim;
    for (uint32_t t = 0; t < count; t++) {
        const uint32_t position = session->now.position + t;
        for (uint32_t g = 0; g < groups; g++) {
            const float *from = block + ((size_t)t * groups + g) * width;
            float *to = cache + (g * sg_key_rows(session->capacity) + position / SG_KEY_BLOCK * SG_KEY_BLOCK) * width +
                        position % SG_KEY_BLOCK;
            for (size_t i = 0; i < width; i++) to[i * SG_KEY_BLOCK] = from[i];
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

/* The query heads of one key group, for one token, over the keys and values from `first` to `last`. Scores are found
 * for whole key blocks; those outside get no weight. */
static void attend_group(const struct sg_session *session, const float *queries, const float *keys,
                         const float *values, uint32_t first, uint32_t last, float *out) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const size_t qk = geometry->qk_head_dim, width = geometry->v_head_dim;
    const size_t heads = geometry->head_count / geometry->kv_head_count, stride = sg_key_rows(session->capacity);
    const size_t start = first / SG_KEY_BLOCK * SG_KEY_BLOCK, end = sg_key_rows(last + 1);
    const float scale = 1.0f / __builtin_sqrtf((float)qk);
    float *scores = session->work.scores; /* (heads, stride) */
    const struct sg_view query = {queries, heads, qk, qk, 1};
    for (size_t j = start; j < end; j += SG_KEY_BLOCK) {
        sg_weighted_sums(query, keys + j * qk, SG_KEY_BLOCK, scores + j, stride);
    }
    for (size_t h = 0; h < heads; h++) {
        float *row = scores + h * stride;
        for (size_t j = start; j < end; j++) row[j] *= scale;
        for (size_t j = start; j < first; j++) row[j] = NO_SCORE;
        for (size_t j = last + 1; j < end; j++) row[j] = NO_SCORE;
        softmax(row + start, end - start);
    }
    const struct sg_view weights = {scores + first, heads, last - first + 1, stride, 1};
    sg_weighted_sums(weights, values + first * width, width, out, width);
}

static void attend_token(const struct sg_session *session, uint32_t layer, uint32_t t) {
    const struct sg_model *model = session->model;
    const struct sg_geometry *geometry = &model->geometry;
    const uint32_t last = session->now.position + t, window = geometry->sliding_window;
    const uint32_t first = sg_is_global(geometry, layer) || last < window ? 0 : last - window + 1;
    const size_t heads = geometry->head_count / geometry->kv_head_count;
    for (size_t g = 0; g < geometry->kv_head_count; g++) {
        const size_t cache = (size_t)layer * geometry->kv_head_count + g;
        attend_group(session, session->work.q + t * model->q_dim + g * heads * geometry->qk_head_dim,
                     session->keys + cache * sg_key_rows(session->capacity) * geometry->qk_head_dim,
                     session->values + cache * session->capacity * geometry->v_head_dim, first, last,
                     session->work.mixed + t * model->out_dim + g * heads * geometry->v_head_dim);
    }
}

/* Projections of the block: q stays in `work.q`, keys and values go to the cache. */
static void find_qkv(struct sg_session *session, uint32_t l, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_geometry *geometry = &model->geometry;
    const struct sg_layer *layer = &model->layers[l];
    struct sg_work *work = &session->work;
    const size_t qk = geometry->qk_head_dim, half = qk / 2, reach = sg_tap_reach(geometry);
    const size_t cache = (size_t)l * geometry->kv_head_count;
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
    store_keys(session, work->kv, count, session->keys + cache * sg_key_rows(session->capacity) * qk);
    project(session, &layer->v_proj, layer->v_taps, past + reach * (model->q_dim + model->k_dim), count, work->kv);
    store_values(session, work->kv, count, session->values + cache * session->capacity * geometry->v_head_dim);
}

void sg_attend(struct sg_session *session, uint32_t l, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_layer *layer = &model->layers[l];
    struct sg_work *work = &session->work;
    const size_t d = model->geometry.d_model, out_dim = model->out_dim;
    sg_fixed_begin(&work->operand, d, count);
    for (uint32_t t = 0; t < count; t++) {
        sg_normalise(work->hidden + t * d, d, layer->norm_in, work->row, d);
        sg_fixed_put(&work->operand, t, work->row, d);
    }
    find_qkv(session, l, count);
    sg_product(&layer->gate_proj, 0, layer->gate_proj.row_count, &work->operand, work->gate, out_dim);
    sg_fixed_begin(&work->operand, out_dim, count);
    for (uint32_t t = 0; t < count; t++) {
        attend_token(session, l, t);
        float *row = work->row;
        for (size_t i = 0; i < out_dim; i++) {
            row[i] = work->mixed[t * out_dim + i] * sg_sigmoidf(work->gate[t * out_dim + i]);
        }
        sg_fixed_put(&work->operand, t, row, out_dim);
    }
    sg_product(&layer->out_proj, 0, (uint32_t)d, &work->operand, work->change, d);
    const float gate = sg_sigmoidf(layer->attn_gate[0]);
    for (uint32_t t = 0; t < count; t++) {
        sg_normalise(work->change + t * d, d, layer->post_attn_norm, work->change + t * d, d);
        sg_axpy(work->hidden + t * d, gate, work->change + t * d, d);
    }
}
