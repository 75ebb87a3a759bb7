/* The MLP: three learned Kronecker products with diagonals between them, two fixed shuffles, and a SiLU that eight
 * learned conditions scale. */
#include "forward.h"

#include "math.h"

/* out = A' Z B, z and out read as (a, b). */
static void kronecker(const struct sg_model *model, const struct sg_kronecker *factor, const float *z, float *half,
                      float *out) {
    const size_t a = model->hada_a, b = model->hada_b;
    for (size_t i = 0; i < a; i++) sg_weighted_sum(factor->a + i, a, z, a, b, half + i * b);
    for (size_t i = 0; i < a; i++) sg_weighted_sum(half + i * b, 1, factor->b, b, b, out + i * b);
}

/* 1 + softmax(x cond_v) cond_u, into out (M,). */
static void find_condition(const struct sg_model *model, const struct sg_layer *layer, const float *x, float *out) {
    const size_t n = model->geometry.hada_n;
    float weights[SG_CONDITION_COUNT], sum = 0.0f;
    sg_weighted_sum(x, 1, layer->cond_v, model->geometry.d_model, SG_CONDITION_COUNT, weights);
    float top = weights[0];
    for (size_t k = 1; k < SG_CONDITION_COUNT; k++) top = weights[k] > top ? weights[k] : top;
    for (size_t k = 0; k < SG_CONDITION_COUNT; k++) sum += weights[k] = sg_expf(weights[k] - top);
    for (size_t k = 0; k < SG_CONDITION_COUNT; k++) weights[k] /= sum;
    sg_weighted_sum(weights, 1, layer->cond_u, SG_CONDITION_COUNT, n, out);
    for (size_t i = 0; i < n; i++) out[i] += 1.0f;
}

/* One token: x (D,) normed input, zero-padded to M in `x`; hidden (D,) receives the sum. */
static void add_token(const struct sg_model *model, const struct sg_layer *layer, float *const buffer[4],
                      float *hidden) {
    const size_t n = model->geometry.hada_n;
    float *x = buffer[0], *y = buffer[1], *spare = buffer[2], *condition = buffer[3];
    find_condition(model, layer, x, condition);
    for (size_t i = 0; i < n; i++) x[i] *= layer->d1[i];
    kronecker(model, &layer->w[0], x, spare, y);
    for (size_t i = 0; i < n; i++) x[i] = layer->d2[i] * condition[i] * y[model->permutation_1[i]] + layer->b2[i];
    for (size_t i = 0; i < n; i++) x[i] = sg_siluf(x[i]);
    kronecker(model, &layer->w[1], x, spare, y);
    for (size_t i = 0; i < n; i++) x[i] = layer->d3[i] * y[model->permutation_2[i]];
    kronecker(model, &layer->w[2], x, spare, y);
    for (size_t i = 0; i < model->geometry.d_model; i++) hidden[i] += layer->d4[i] * y[i];
}

void sg_hadamard_mlp(struct sg_session *session, const struct sg_layer *layer, uint32_t count) {
    const struct sg_model *model = session->model;
    const size_t d = model->geometry.d_model;
    for (uint32_t t = 0; t < count; t++) {
        float *hidden = session->work.hidden + t * d;
        sg_normalise(hidden, d, layer->pre_hada_norm, session->work.hada[0], model->geometry.hada_n);
        add_token(model, layer, session->work.hada, hidden);
    }
}
