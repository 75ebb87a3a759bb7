/* Hyper-connections: how a layer reads its input from the residual lanes, and how the lanes mix afterwards. */
#include "forward.h"

#include "math.h"

#define SINKHORN_ROUNDS 20
#define OWN_LANE_LOGIT 4.0f /* a layer reads and writes its own lane by default: +-4 before the sigmoid */
#define EXPONENT_MIN -600.0 /* smaller ratios count as e^-600: 40 divisions cannot bring that to zero */

static void read_one(const struct sg_model *model, uint32_t layer, const float *logits, const float *stream,
                     float *input) {
    const struct sg_connections *c = &model->connections;
    const size_t d = model->geometry.d_model, lanes = model->geometry.lane_count, origin = model->layers[layer].origin;
    for (size_t n = 0; n < lanes; n++) {
        const float own = n == layer % lanes ? OWN_LANE_LOGIT : -OWN_LANE_LOGIT;
        const float bias = c->b_pre[origin * lanes + n] + own;
        const float share = sg_sigmoidf(c->a_pre[origin] * logits[n] + bias);
        if (n == 0) {
            for (size_t i = 0; i < d; i++) input[i] = share * stream[i];
        } else {
            sg_axpy(input, share, stream + n * d, d);
        }
    }
}

void sg_lanes_read(struct sg_session *session, uint32_t layer, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_connections *c = &model->connections;
    struct sg_work *work = &session->work;
    const uint32_t d = model->geometry.d_model, lanes = model->geometry.lane_count;
    const uint32_t first_row = model->layers[layer].origin * lanes;
    const size_t columns = (size_t)lanes * d;
    sg_fixed_begin(&work->flat, columns, count);
    for (uint32_t t = 0; t < count; t++) {
        sg_normalise(work->streams + t * columns, columns, NULL, work->row, columns);
        sg_fixed_put(&work->flat, t, work->row, columns);
    }
    sg_product(&c->phi_pre, first_row, lanes, &work->flat, work->lane_in, lanes);
    sg_product(&c->phi_post, first_row, lanes, &work->flat, work->lane_out, lanes);
    sg_product(&c->phi_res, first_row * lanes, lanes * lanes, &work->flat, work->lane_mix, (size_t)lanes * lanes);
    for (uint32_t t = 0; t < count; t++) {
        read_one(model, layer, work->lane_in + t * lanes, work->streams + t * columns, work->input + (size_t)t * d);
    }
    memcpy(work->hidden, work->input, (size_t)count * d * sizeof *work->hidden);
}

/* exp(logits) with rows and columns scaled in turn until both sum to 1; in place. Ratios instead of upstream's
 * logarithms: the same numbers, with less rounding. */
static void sinkhorn(double *mix, size_t lanes) {
    for (size_t i = 0; i < lanes; i++) {
        double *row = mix + i * lanes, top = row[0];
        for (size_t j = 1; j < lanes; j++) top = row[j] > top ? row[j] : top;
        for (size_t j = 0; j < lanes; j++) {
            const double exponent = row[j] - top;
            row[j] = sg_exp(exponent < EXPONENT_MIN ? EXPONENT_MIN : exponent);
        }
    }
    for (int round = 0; round < SINKHORN_ROUNDS; round++) {
        for (size_t i = 0; i < lanes; i++) {
            double sum = 0.0;
            for (size_t j = 0; j < lanes; j++) sum += mix[i * lanes + j];
            for (size_t j = 0; j < lanes; j++) mix[i * lanes + j] /= sum;
        }
        for (size_t j = 0; j < lanes; j++) {
            double sum = 0.0;
            for (size_t i = 0; i < lanes; i++) sum += mix[i * lanes + j];
            for (size_t i = 0; i < lanes; i++) mix[i * lanes + j] /= sum;
        }
    }
}

/* lane := sum over k of share[k] * from[k] + share[lanes] * change; (d,) each, `from` the old lanes. */
static inline __attribute__((always_inline)) void mix_lane(const float *restrict share, const float *restrict from,
                                                           const float *restrict change, size_t lanes, size_t d,
                                                           float *restrict lane) {
    for (size_t i = 0; i < d; i++) {
        float sum = share[0] * from[i];
        for (size_t k = 1; k < lanes; k++) sum += share[k] * from[k * d + i];
        lane[i] = sum + share[lanes] * change[i];
    }
}

/* One token: stream := mix * stream + share (x) (hidden - input). */
static void write_one(const struct sg_model *model, uint32_t layer, const float *out_logits, const float *mix_logits,
                      const float *change, float *stream, float *old) {
    const struct sg_connections *c = &model->connections;
    const size_t d = model->geometry.d_model, lanes = model->geometry.lane_count, origin = model->layers[layer].origin;
    double mix[SG_LANE_MAX * SG_LANE_MAX];
    for (size_t i = 0; i < lanes * lanes; i++) {
        mix[i] = (double)(c->a_res[origin] * mix_logits[i] + c->b_res[origin * lanes * lanes + i]);
    }
    sinkhorn(mix, lanes);
    memcpy(old, stream, lanes * d * sizeof *old);
    for (size_t n = 0; n < lanes; n++) {
        const float own = n == layer % lanes ? 0.0f : -OWN_LANE_LOGIT;
        const float bias = c->b_post[origin * lanes + n] + own;
        float share[SG_LANE_MAX + 1];
        for (size_t k = 0; k < lanes; k++) share[k] = (float)mix[n * lanes + k];
        share[lanes] = 2.0f * sg_sigmoidf(c->a_post[origin] * out_logits[n] + bias);
        if (lanes == 4) mix_lane(share, old, change, 4, d, stream + n * d); /* as in all published models: unrolled */
        else mix_lane(share, old, change, lanes, d, stream + n * d);
    }
}

void sg_lanes_write(struct sg_session *session, uint32_t layer, uint32_t count) {
    const struct sg_model *model = session->model;
    struct sg_work *work = &session->work;
    const size_t d = model->geometry.d_model, lanes = model->geometry.lane_count;
    for (size_t t = 0; t < count; t++) {
        float *change = work->change + t * d;
        for (size_t i = 0; i < d; i++) change[i] = work->hidden[t * d + i] - work->input[t * d + i];
        write_one(model, layer, work->lane_out + t * lanes, work->lane_mix + t * lanes * lanes, change,
                  work->streams + t * lanes * d, work->row);
    }
}

void sg_lanes_mean(const struct sg_session *session, uint32_t t, float *mean) {
    const size_t d = session->model->geometry.d_model, lanes = session->model->geometry.lane_count;
    const float *stream = session->work.streams + t * lanes * d;
    for (size_t i = 0; i < d; i++) {
        float sum = stream[i];
        for (size_t n = 1; n < lanes; n++) sum += stream[n * d + i];
        mean[i] = sum / (float)lanes;
    }
}
