/* Engrams: values that the last few token ids select by hash, added to a layer's input as far as their key agrees. */
#include "forward.h"

#include "math.h"

#define HASH_SEED 0x9e3779b9u
#define HASH_PRIME 0x01000193u

/* Row of the table `head` of the order-th n-gram size, for the token at `newest` (ids before it lie below). */
static uint32_t hash_slot(const struct sg_geometry *geometry, uint32_t order_index, uint32_t head,
                          const uint32_t *newest) {
    const uint32_t heads = geometry->engram_table_count / geometry->order_count;
    const uint32_t stride = geometry->engram_seed_heads ? geometry->engram_seed_heads : heads;
    uint32_t hash = HASH_SEED * (order_index * stride + head + 1);
    for (uint32_t back = 0; back < geometry->orders[order_index]; back++) {
        hash = (hash ^ *(newest - back)) * HASH_PRIME;
    }
    hash ^= hash >> 15;
    return hash % geometry->engram_slots;
}

/* The tables' rows side by side: out (E,), and room for one padded row behind; a row is zero where its n-gram is not
 * complete yet. */
static void look_up(const struct sg_session *session, const struct sg_engram *engram, uint32_t t, float *out) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const uint32_t heads = geometry->engram_table_count / geometry->order_count;
    const uint32_t *newest = session->work.ids + session->model->order_max - 1 + t;
    const size_t sub_dim = geometry->engram_sub_dim, engram_dim = session->model->engram_dim;
    memset(out, 0, engram_dim * sizeof *out);
    for (uint32_t o = 0; o < geometry->order_count; o++) {
        if (session->now.position + t + 1 < geometry->orders[o]) continue;
        for (uint32_t h = 0; h < heads; h++) {
            const uint32_t table = o * heads + h;
            const uint32_t row = table * geometry->engram_slots + hash_slot(geometry, o, h, newest);
            sg_matrix_row(&engram->tables, row, out + engram_dim, out + table * sub_dim);
        }
    }
}

/* sigmoid(<unit(input), unit(key)> / sqrt(D)) */
static float agreement(const float *input, const float *key, size_t d) {
    const float input_rms = __builtin_sqrtf(sg_dot(input, input, d) / (float)d + 1e-6f);
    const float key_rms = __builtin_sqrtf(sg_dot(key, key, d) / (float)d + 1e-6f);
    return sg_sigmoidf(sg_dot(input, key, d) / (input_rms * key_rms) / __builtin_sqrtf((float)d));
}

void sg_engram_add(struct sg_session *session, uint32_t site, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_engram *engram = &model->engrams[site];
    struct sg_work *work = &session->work;
    const size_t d = model->geometry.d_model, engram_dim = model->engram_dim;
    const uint32_t reach = sg_engram_reach(&model->geometry);
    float *past = session->now.engram_values + (size_t)site * reach * d;
    float *keys = work->change; /* (B, D); free until the lanes are written */
    sg_fixed_begin(&work->operand, engram_dim, count);
    for (uint32_t t = 0; t < count; t++) {
        look_up(session, engram, t, work->row);
        sg_fixed_put(&work->operand, t, work->row, engram_dim);
    }
    sg_product(&engram->key_proj, 0, (uint32_t)d, &work->operand, keys, d);
    memcpy(work->engram_raw, past, reach * d * sizeof *past);
    sg_product(&engram->value_proj, 0, (uint32_t)d, &work->operand, work->engram_raw + reach * d, d);
    memcpy(past, work->engram_raw + count * d, reach * d * sizeof *past);
    float *values = work->gate; /* (B, D); free until attention */
    sg_convolve(work->engram_raw, reach, engram->taps, model->geometry.engram_conv_taps,
                model->geometry.engram_dilation, d, count, values, d);
    for (size_t t = 0; t < count; t++) {
        const float gate = agreement(work->input + t * d, keys + t * d, d);
        sg_axpy(work->hidden + t * d, gate, values + t * d, d);
    }
}
