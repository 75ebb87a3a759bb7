/* Grouped-query attention with taps on q, k and v, normed heads, rotary positions and an output gate. */
#include "attention.h"

#include "forward.h"
#include "math.h"

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

size_t sg_find_spans(const struct sg_seen *seen, struct sg_span spans[2]) {
    const size_t first_block = seen->first / SG_KEY_BLOCK * SG_KEY_BLOCK, end = sg_key_rows(seen->last + 1);
    const size_t pinned_end = sg_key_rows(seen->pinned);
    if (pinned_end < first_block && seen->pinned) {
        spans[0] = (struct sg_span){0, pinned_end};
        spans[1] = (struct sg_span){first_block, end};
        return 2;
    }
    spans[0] = (struct sg_span){seen->pinned ? 0 : first_block, end};
    return 1;
}

void sg_set_unseen(float *row, const struct sg_seen *seen, const struct sg_span *spans, size_t span_count,
                   float value) {
    for (size_t s = 0; s < span_count; s++) {
        const size_t start = spans[s].start, end = spans[s].end;
        for (size_t j = most(start, seen->pinned); j < least(end, seen->first); j++) row[j] = value;
        for (size_t j = most(start, seen->last + 1); j < end; j++) row[j] = value;
    }
}

/* Generation 2 forgets in every layer what lies behind its KV window and was not pinned; generation 3 has a sliding
 * window in its local layers, and nothing else. */
struct sg_seen sg_seen_by(const struct sg_session *session, uint32_t layer, uint32_t position) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const uint32_t sliding = sg_is_global(geometry, layer) ? 0 : geometry->sliding_window;
    const uint32_t window = geometry->generation == 2 ? geometry->kv_window : sliding;
    const size_t first = window == 0 || position < window ? 0 : position - window + 1;
    const size_t pinned = geometry->generation == 2 ? session->now.pinned : 0;
    if (pinned >= first) return (struct sg_seen){.pinned = 0, .first = 0, .last = position};
    return (struct sg_seen){.pinned = pinned, .first = first, .last = position};
}

/* Projections of the block: q stays in `work.q`, keys and values go to the cache. */
static void find_qkv(struct sg_session *session, uint32_t l, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_geometry *geometry = &model->geometry;
    const struct sg_layer *layer = &model->layers[l];
    struct sg_work *work = &session->work;
    const size_t qk = geometry->qk_head_dim, half = qk / 2, reach = sg_tap_reach(geometry);
    const bool fast = session->numerics == SG_NUMERICS_FAST;
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
    (fast ? sg_store_keys_fast : sg_store_keys_exact)(session, l, work->kv, count);
    project(session, &layer->v_proj, layer->v_taps, past + reach * (model->q_dim + model->k_dim), count, work->kv);
    (fast ? sg_store_values_fast : sg_store_values_exact)(session, l, work->kv, count);
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
    (session->numerics == SG_NUMERICS_FAST ? sg_mix_fast : sg_mix_exact)(session, l, count);
    sg_fixed_begin(&work->operand, out_dim, count);
    for (uint32_t t = 0; t < count; t++) {
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
