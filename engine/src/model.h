/* A model: a checked container with its small tensors as floats and its large ones still in their codes.
 *
 * Owns: what the forward pass reads. Shapes are written behind each field; letters: D d_model, L layers, N lanes, H
 * query heads, G key/value heads, Q and V their head dimensions, K taps, M hada_n with a * b = M, E engram columns.
 * Knows nothing of: sessions, sampling. */
#ifndef SG_MODEL_H
#define SG_MODEL_H

#include "container.h"
#include "kernels.h"
#include "tokenizer.h"

#define SG_CONDITION_COUNT 8u

/* One Kronecker factor pair of the MLP: z, read as (a, b), becomes A' Z B. */
struct sg_kronecker {
    const float *a; /* (a, a) */
    const float *b; /* (b, b) */
};

struct sg_layer {
    uint32_t origin; /* its place among the file's layers: hyper-connections and heads are looked up by it */
    const float *norm_in;                                 /* (D,) */
    struct sg_matrix q_proj, k_proj, v_proj;              /* (H Q, D), (G Q, D), (G V, D) */
    const float *q_taps, *k_taps, *v_taps;                /* (K, rows of the projection); NULL without taps */
    const float *q_norm, *k_norm;                         /* (Q,) */
    struct sg_matrix gate_proj, out_proj;                 /* (H V, D), (D, H V) */
    const float *post_attn_norm, *attn_gate;              /* (D,), (1,) */
    const float *pre_hada_norm;                           /* (D,) */
    const float *d1, *d2, *b2, *d3, *d4;                  /* (M,) */
    struct sg_kronecker w[3];
    const float *cond_v, *cond_u;                         /* (D, 8), (8, M) */
};

struct sg_engram {
    struct sg_matrix tables;               /* (tables * slots, sub_dim) */
    struct sg_matrix key_proj, value_proj; /* (D, E) */
    const float *taps;                     /* (engram taps, D) */
};

/* Hyper-connections of all layers of the file. */
struct sg_connections {
    const float *a_pre, *a_post, *a_res;        /* (L,) */
    const float *b_pre, *b_post, *b_res;        /* (L, N), (L, N), (L, N, N) */
    struct sg_matrix phi_pre, phi_post, phi_res; /* (L N, N D), (L N, N D), (L N N, N D) */
};

/* A probe head. R is the file's layers and one, for what goes into the first; P probes, S queries, O outputs. */
struct sg_head {
    uint32_t probe_count, query_count, output_count; /* P, S (0 in generation 2), O (0: the file has no such head) */
    const float *probes;   /* (R, P, D); generation 2: (P, D), the same for every layer */
    const float *gain;     /* (R, P) */
    const float *query;    /* (S, D) */
    const float *row_bias; /* (S, R, P) */
    const float *proj;     /* (O, S D); generation 2: (O, P D) */
    const float *bias;     /* (O,) */
};

struct sg_model {
    struct sg_geometry geometry;           /* of the rung that is open: L counts its layers */
    uint32_t file_layer_count;
    uint32_t q_dim, k_dim, v_dim, out_dim; /* H Q, G Q, G V, H V */
    uint32_t engram_dim;                   /* E */
    uint32_t hada_a, hada_b;
    uint32_t order_max;
    struct sg_levels levels[SG_TERNARY_BITS + 1]; /* by the `bits` word of a record */
    struct sg_matrix embedding;                   /* (vocab, D) */
    struct sg_layer *layers;                      /* (L,) */
    struct sg_connections connections;
    uint16_t *permutation_1, *permutation_2; /* (M,) */
    struct sg_engram engrams[SG_SITE_MAX];
    const float *final_norm;     /* (D,) */
    struct sg_head heads[SG_HEAD_ROUTER + 1]; /* by their code in the manifest */
    float *rope_frequencies;     /* (Q / 2,) */
    struct sg_tokenizer tokenizer; /* piece_count 0 where the file has none */
};

/* Whether attention of the layer sees everything before it, and not only the sliding window. */
static inline bool sg_is_global(const struct sg_geometry *geometry, uint32_t layer) {
    const uint32_t mask = layer < 32 ? geometry->global_mask_low : geometry->global_mask_high;
    return geometry->sliding_window == 0 || (mask >> layer % 32 & 1) != 0;
}

#endif
