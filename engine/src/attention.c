/* Grouped-query attention with taps on q, k and v, normed heads, rotary positions and an output gate. */
#include "forward.h"

#include "math.h"

#define NO_SCORE (-0x1p120f) /* so far below any score that its weight is zero */

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

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

/* What one token sees: the positions below `pinned`, and those from `first` to `last`; pinned < first, or both are 0. */
struct view {
    size_t pinned, first, last;
};

/* A run of whole key blocks: positions from `start` up to `end`. */
struct span {
    size_t start, end;
};

/* The key blocks that hold what is seen: one span, or two if there are blocks between that hold nothing. */
static size_t find_spans(const struct view *view, struct span spans[2]) {
    const size_t first_block = view->first / SG_KEY_BLOCK * SG_KEY_BLOCK, end = sg_key_rows(view->last + 1);
    const size_t pinned_end = sg_key_rows(view->pinned);
    if (pinned_end < first_block && view->pinned) {
        spans[0] = (struct span){0, pinned_end};
        spans[1] = (struct span){first_block, end};
        return 2;
    }
    spans[0] = (struct span){view->pinned ? 0 : first_block, end};
    return 1;
}

/* Softmax in place over one head's scores; those that the token does not see get no weight. */
static void softmax(float *scores, const struct view *view, const struct span *spans, size_t span_count, float scale) {
    float top = NO_SCORE, sum = 0.0f;
    for (size_t s = 0; s < span_count; s++) {
        const size_t start = spans[s].start, end = spans[s].end;
        for (size_t j = start; j < end; j++) scores[j] *= scale;
        for (size_t j = most(start, view->pinned); j < least(end, view->first); j++) scores[j] = NO_SCORE;
        for (size_t j = most(start, view->last + 1); j < end; j++) scores[j] = NO_SCORE;
        for (size_t j = start; j < end; j++) top = scores[j] > top ? scores[j] : top;
    }
    for (size_t s = 0; s < span_count; s++) {
        const size_t start = spans[s].start, end = spans[s].end;
        for (size_t j = start; j < end; j++) scores[j] = sg_expf(scores[j] - top);
        sum += sg_sum(scores + start, end - start);
    }
    const float inverse = 1.0f / sum;
    for (size_t s = 0; s < span_count; s++) {
        for (size_t j = spans[s].start; j < spans[s].end; j++) scores[j] *= inverse;
    }
}

/* The query heads of one key group, for one token. Scores are found for whole key blocks. */
static void attend_group(const struct sg_session *session, const float *queries, const float *keys,
                         const float *values, const struct view *view, float *out) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const size_t qk = geometry->qk_head_dim, width = geometry->v_head_dim;
    const size_t heads = geometry->head_count / geometry->kv_head_count, stride = sg_key_rows(session->capacity);
    float *scores = session->work.scores; /* (heads, stride) */
    struct span spans[2];
    const size_t span_count = find_spans(view, spans);
    const struct sg_view query = {queries, heads, qk, qk, 1};
    for (size_t s = 0; s < span_count; s++) {
        for (size_t j = spans[s].start; j < spans[s].end; j += SG_KEY_BLOCK) {
            sg_weighted_sums(query, keys + j * qk, SG_KEY_BLOCK, scores + j, stride);
        }
    }
    const float scale = 1.0f / __builtin_sqrtf((float)qk);
    for (size_t h = 0; h < heads; h++) softmax(scores + h * stride, view, spans, span_count, scale);
    const struct sg_view near = {scores + view->first, heads, view->last - view->first + 1, stride, 1};
    sg_weighted_sums(near, values + view->first * width, width, out, width);
    if (view->pinned == 0) return;
    float *more = session->work.row; /* (heads, V) */
    const struct sg_view far = {scores, heads, view->pinned, stride, 1};
    sg_weighted_sums(far, values, width, more, width);
    for (size_t i = 0; i < heads * width; i++) out[i] += more[i];
}

/* Generation 2 forgets in every layer what lies behind its KV window and was not pinned; generation 3 has a sliding
 * window in its local layers, and nothing else. */
static struct view view_of(const struct sg_session *session, uint32_t layer, uint32_t position) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const uint32_t sliding = sg_is_global(geometry, layer) ? 0 : geometry->sliding_window;
    const uint32_t window = geometry->generation == 2 ? geometry->kv_window : sliding;
    const size_t first = window == 0 || position < window ? 0 : position - window + 1;
    const size_t pinned = geometry->generation == 2 ? session->now.pinned : 0;
    if (pinned >= first) return (struct view){.pinned = 0, .first = 0, .last = position};
    return (struct view){.pinned = pinned, .first = first, .last = position};
}

static void attend_token(const struct sg_session *session, uint32_t layer, uint32_t t) {
    const struct sg_model *model = session->model;
    const struct sg_geometry *geometry = &model->geometry;
    const struct view view = view_of(session, layer, session->now.position + t);
    const size_t heads = geometry->head_count / geometry->kv_head_count;
    for (size_t g = 0; g < geometry->kv_head_count; g++) {
        const size_t cache = (size_t)layer * geometry->kv_head_count + g;
        attend_group(session, session->work.q + t * model->q_dim + g * heads * geometry->qk_head_dim,
                     session->keys + cache * sg_key_rows(session->capacity) * geometry->qk_head_dim,
                     session->values + cache * session->capacity * geometry->v_head_dim, &view,
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
