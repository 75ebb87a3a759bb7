/* The MLP: three learned Kronecker products with diagonals between them, two fixed shuffles, and a SiLU that eight
 * learned conditions scale. */
#include "forward.h"

#include "math.h"

/* out = A' Z B for each of `count` tokens; z, half and out: (count, M), each token read as (a, b). */
static void kronecker(const struct sg_model *model, const struct sg_kronecker *factor, const float *z, uint32_t count,
                      float *half, float *out) {
    const size_t a = model->hada_a, b = model->hada_b, n = model->geometry.hada_n;
    const struct sg_view columns = {factor->a, a, a, 1, a}; /* A' */
    for (size_t t = 0; t < count; t++) sg_weighted_sums(columns, z + t * n, b, half + t * n, b);
    const struct sg_view rows = {half, count * a, b, b, 1};
    sg_weighted_sums(rows, factor->b, b, out, b);
}

/* 1 + softmax(x cond_v) cond_u; x and out: (count, M). */
static void find_conditions(const struct sg_model *model, const struct sg_layer *layer, const float *x, uint32_t count,
                            float *out) {
    const size_t n = model->geometry.hada_n;
    float weights[SG_TOKEN_BLOCK * SG_CONDITION_COUNT];
    const struct sg_view inputs = {x, count, model->geometry.d_model, n, 1};
    sg_weighted_sums(inputs, layer->cond_v, SG_CONDITION_COUNT, weights, SG_CONDITION_COUNT);
    for (size_t t = 0; t < count; t++) {
        float *weight = weights + t * SG_CONDITION_COUNT, top = weight[0], sum = 0.0f;
        for (size_t k = 1; k < SG_CONDITION_COUNT; k++) top = weight[k] > top ? weight[k] : top;
        for (size_t k = 0; k < SG_CONDITION_COUNT; k++) sum += weight[k] = sg_expf(weight[k] - top);
        for (size_t k = 0; k < SG_CONDITION_COUNT; k++) weight[k] /= sum;
    }
    const struct sg_view shares = {weights, count, SG_CONDITION_COUNT, SG_CONDITION_COUNT, 1};
    sg_weighted_sums(shares, layer->cond_u, n, out, n);
    for (size_t i = 0; i < count * n; i++) out[i] += 1.0f;
}

void sg_hadamard_mlp(struct sg_session *session, const struct sg_layer *layer, uint32_t count) {
    const struct sg_model *model = session->model;
    const size_t d = model->geometry.d_model, n = model->geometry.hada_n;
    float *x = session->work.hada[0], *y = session->work.hada[1], *spare = session->work.hada[2];
    float *condition = session->work.hada[3];
    for (size_t t = 0; t < count; t++) {
        sg_normalise(session->work.hidden + t * d, d, layer->pre_hada_norm, x + t * n, n);
    }
    find_conditions(model, layer, x, count, condition);
    for (size_t t = 0; t < count; t++) {
        for (size_t i = 0; i < n; i++) x[t * n + i] *= layer->d1[i];
    }
    kronecker(model, &layer->w[0], x, count, spare, y);
    for (size_t t = 0; t < count; t++) {
        float *row = x + t * n;
        const float *from = y + t * n, *scale = condition + t * n;
        for (size_t i = 0; i < n; i++) row[i] = layer->d2[i] * scale[i] * from[model->permutation_1[i]] + layer->b2[i];
        for (size_t i = 0; i < n; i++) row[i] = sg_siluf(row[i]);
    }
    kronecker(model, &layer->w[1], x, count, spare, y);
    for (size_t t = 0; t < count; t++) {
        for (size_t i = 0; i < n; i++) x[t * n + i] = layer->d3[i] * y[t * n + model->permutation_2[i]];
    }
    kronecker(model, &layer->w[2], x, count, spare, y);
    for (size_t t = 0; t < count; t++) {
        float *hidden = session->work.hidden + t * d;
        for (size_t i = 0; i < d; i++) hidden[i] += layer->d4[i] * y[t * n + i];
    }
}
