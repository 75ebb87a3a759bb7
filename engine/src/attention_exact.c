/* Attention in float32: keys in blocks of 16 side by side, so that scores need no sum across a vector. */
#include "attention.h"

#include "math.h"

static float *keys_of(const struct sg_session *session, uint32_t layer, size_t group) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const size_t place = (size_t)layer * geometry->kv_head_count + group;
    return session->cache.keys + place * sg_key_rows(session->capacity) * geometry->qk_head_dim;
}

static float *values_of(const struct sg_session *session, uint32_t layer, size_t group) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const size_t place = (size_t)layer * geometry->kv_head_count + group;
    return session->cache.values + place * session->capacity * geometry->v_head_dim;
}

void sg_store_values_exact(const struct sg_session *session, uint32_t layer, const float *values, uint32_t count) {
    const uint32_t groups = session->model->geometry.kv_head_count;
    const size_t width = session->model->geometry.v_head_dim;
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t g = 0; g < groups; g++) {
            float *to = values_of(session, layer, g) + (session->now.position + t) * width;
            memcpy(to, values + ((size_t)t * groups + g) * width, width * sizeof *to);
        }
    }
}

void sg_store_keys_exact(const struct sg_session *session, uint32_t layer, const float *keys, uint32_t count) {
    const uint32_t groups = session->model->geometry.kv_head_count;
    const size_t width = session->model->geometry.qk_head_dim;
    for (uint32_t t = 0; t < count; t++) {
        const size_t position = session->now.position + t, column = position % SG_KEY_BLOCK;
        for (uint32_t g = 0; g < groups; g++) {
            const float *from = keys + ((size_t)t * groups + g) * width;
            float *to = keys_of(session, layer, g) + (position - column) * width + column;
            for (size_t i = 0; i < width; i++) to[i * SG_KEY_BLOCK] = from[i];
        }
    }
}

/* Softmax in place over one head's scores; those that the token does not see get no weight. */
static void softmax(float *scores, const struct sg_seen *seen, const struct sg_span *spans, size_t span_count,
                    float scale) {
    float top = SG_NO_SCORE, sum = 0.0f;
    for (size_t s = 0; s < span_count; s++) {
        for (size_t j = spans[s].start; j < spans[s].end; j++) scores[j] *= scale;
    }
    sg_set_unseen(scores, seen, spans, span_count, SG_NO_SCORE);
    for (size_t s = 0; s < span_count; s++) {
        top = sg_largest(scores + spans[s].start, spans[s].end - spans[s].start, top);
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
static void mix_group(const struct sg_session *session, const float *queries, const float *keys, const float *values,
                      const struct sg_seen *seen, float *out) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const size_t qk = geometry->qk_head_dim, width = geometry->v_head_dim;
    const size_t heads = geometry->head_count / geometry->kv_head_count, stride = sg_key_rows(session->capacity);
    float *scores = session->work.scores; /* (heads, stride) */
    struct sg_span spans[2];
    const size_t span_count = sg_find_spans(seen, spans);
    const struct sg_view query = {queries, heads, qk, qk, 1};
    for (size_t s = 0; s < span_count; s++) {
        for (size_t j = spans[s].start; j < spans[s].end; j += SG_KEY_BLOCK) {
            sg_weighted_sums(query, keys + j * qk, SG_KEY_BLOCK, scores + j, stride);
        }
    }
    const float scale = 1.0f / __builtin_sqrtf((float)qk);
    for (size_t h = 0; h < heads; h++) softmax(scores + h * stride, seen, spans, span_count, scale);
    const struct sg_view near = {scores + seen->first, heads, seen->last - seen->first + 1, stride, 1};
    sg_weighted_sums(near, values + seen->first * width, width, out, width);
    if (seen->pinned == 0) return;
    float *more = session->work.row; /* (heads, V) */
    const struct sg_view far = {scores, heads, seen->pinned, stride, 1};
    sg_weighted_sums(far, values, width, more, width);
    for (size_t i = 0; i < heads * width; i++) out[i] += more[i];
}

void sg_mix_exact(const struct sg_session *session, uint32_t layer, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_geometry *geometry = &model->geometry;
    const size_t heads = geometry->head_count / geometry->kv_head_count;
    for (uint32_t t = 0; t < count; t++) {
        const struct sg_seen seen = sg_seen_by(session, layer, session->now.position + t);
        for (size_t g = 0; g < geometry->kv_head_count; g++) {
            mix_group(session, session->work.q + t * model->q_dim + g * heads * geometry->qk_head_dim,
                      keys_of(session, layer, g), values_of(session, layer, g), &seen,
                      session->work.mixed + t * model->out_dim + g * heads * geometry->v_head_dim);
        }
    }
}
