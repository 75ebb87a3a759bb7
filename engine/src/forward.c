/* From ids to lanes to logits: the order of the parts, and the small steps that all share.
 *
 * Source: `needle/model/architecture.py` of cactus-needle 3.2.8 with `quant=False`; generation 2 as needle-rs 0.3.1 has it
 * (its MLP, no taps, a KV window in every layer). Every sum runs in an order that does
 * not depend on how many tokens a block holds (docs/numerics.md). */
#include "forward.h"

#include "math.h"

#define NORM_EPSILON 1e-6f

void sg_normalise(const float *x, size_t count, const float *scale, float *out, size_t padded) {
    const float inverse = 1.0f / __builtin_sqrtf(sg_dot(x, x, count) / (float)count + NORM_EPSILON);
    if (scale) {
        for (size_t i = 0; i < count; i++) out[i] = (1.0f + scale[i]) * (x[i] * inverse);
    } else {
        for (size_t i = 0; i < count; i++) out[i] = x[i] * inverse;
    }
    for (size_t i = count; i < padded; i++) out[i] = 0.0f;
}

void sg_convolve(const float *window, uint32_t reach, const float *taps, uint32_t tap_count, uint32_t dilation,
                 size_t width, uint32_t count, float *out, size_t out_stride) {
    for (uint32_t t = 0; t < count; t++) {
        float *row = out + t * out_stride;
        for (size_t i = 0; i < width; i++) row[i] = 0.0f;
        for (uint32_t j = 0; j < tap_count; j++) {
            const float *past = window + (size_t)(reach + t - j * dilation) * width;
            const float *tap = taps + j * width;
            for (size_t i = 0; i < width; i++) row[i] += tap[i] * past[i];
        }
    }
}

/* Every lane starts as the token's embedding times sqrt(D). */
static void embed(struct sg_session *session, const uint32_t *ids, uint32_t count) {
    const struct sg_model *model = session->model;
    const size_t d = model->geometry.d_model, lanes = model->geometry.lane_count;
    const float scale = __builtin_sqrtf((float)d);
    for (uint32_t t = 0; t < count; t++) {
        float *lane = session->work.streams + t * lanes * d;
        sg_matrix_row(&model->embedding, ids[t], session->work.row, lane);
        for (size_t i = 0; i < d; i++) lane[i] *= scale;
        for (size_t n = 1; n < lanes; n++) memcpy(lane + n * d, lane, d * sizeof *lane);
    }
}

/* The ids that the engrams hash: the recent ones, oldest first, then the block's. */
static void gather_ids(struct sg_session *session, const uint32_t *ids, uint32_t count) {
    const uint32_t before = session->model->order_max - 1;
    uint32_t *window = session->work.ids;
    for (uint32_t i = 0; i < before; i++) window[i] = session->now.recent_ids[before - 1 - i];
    memcpy(window + before, ids, count * sizeof *ids);
    for (uint32_t i = 0; i < before; i++) session->now.recent_ids[i] = window[before + count - 1 - i];
}

/* Rotary angles are rounded to binary32 as upstream's are; sine and cosine are then exact to the last bit or so. */
static void find_rotations(struct sg_session *session, uint32_t count) {
    const struct sg_model *model = session->model;
    const uint32_t half = model->geometry.qk_head_dim / 2;
    for (uint32_t t = 0; t < count; t++) {
        const float position = (float)(session->now.position + t);
        for (uint32_t i = 0; i < half; i++) {
            double sine, cosine;
            sg_sincos((double)(position * model->rope_frequencies[i]), &sine, &cosine);
            session->work.sines[t * half + i] = (float)sine;
            session->work.cosines[t * half + i] = (float)cosine;
        }
    }
}

void sg_forward(struct sg_session *session, const uint32_t *ids, uint32_t count) {
    const struct sg_geometry *geometry = &session->model->geometry;
    embed(session, ids, count);
    gather_ids(session, ids, count);
    find_rotations(session, count);
    sg_heads_hear(session, 0, count);
    uint32_t site = 0;
    for (uint32_t layer = 0; layer < geometry->layer_count; layer++) {
        sg_lanes_read(session, layer, count);
        if (site < geometry->site_count && geometry->sites[site] == layer) {
            sg_engram_add(session, site, count);
            site++;
        }
        sg_attend(session, layer, count);
        (geometry->generation == 2 ? sg_walsh_mlp : sg_hadamard_mlp)(session, &session->model->layers[layer], count);
        sg_lanes_write(session, layer, count);
        sg_heads_hear(session, layer + 1, count);
    }
    session->now.position += count;
}

void sg_forward_last(const struct sg_session *session, uint32_t t, float *last) {
    const size_t d = session->model->geometry.d_model;
    sg_lanes_mean(session, t, last);
    sg_normalise(last, d, session->model->final_norm, last, d);
}

void sg_logits_begin(struct sg_session *session, const float *last, uint32_t count) {
    const size_t d = session->model->geometry.d_model;
    sg_fixed_begin(&session->work.operand, d, count);
    for (uint32_t t = 0; t < count; t++) sg_fixed_put(&session->work.operand, t, last + t * d, d);
}

void sg_logits_put(struct sg_session *session, uint32_t first_row, uint32_t row_count, float *logits) {
    const size_t stride = session->model->geometry.logit_count;
    const struct sg_fixed *operand = &session->work.operand;
    sg_product(&session->model->embedding, first_row, row_count, operand, logits + first_row, stride);
    for (uint32_t t = 0; t < operand->token_count; t++) {
        float *row = logits + t * stride + first_row;
        for (uint32_t i = 0; i < row_count; i++) row[i] = sg_settle_nan(row[i]);
    }
}
