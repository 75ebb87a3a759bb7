/* A session: one KV cache, what the convolutions remember, and the buffers of one block of tokens.
 *
 * Owns: the memory of a running model. Letters as in model.h; C capacity, B tokens of a block, R = (K - 1), reach =
 * (engram taps - 1) * dilation.
 * Knows nothing of: text, prompts. */
#ifndef SG_SESSION_H
#define SG_SESSION_H

#include "heads.h"
#include "model.h"
#include "product.h"

/* All that a mark must keep. Keys and values are not in it: positions before a mark are never written again. */
struct sg_state {
    uint32_t position;
    uint32_t pinned; /* positions below stay visible behind the KV window */
    uint32_t recent_ids[SG_ORDER_MAX - 1]; /* the newest first; 0 before the start */
    float *raw;                            /* (L, R, q_dim + k_dim + v_dim) projections before the taps, oldest first */
    float *engram_values;                  /* (sites, reach, D) values before the taps, oldest first */
    float *last; /* (D,) what the logits of the last token are made of */
};

/* Buffers for one block; each holds up to B tokens. Those named "padded" have rows of whole groups. */
struct sg_work {
    float *streams;    /* (B, N, D); for a score then logits of as many tokens as fit, one at least */
    struct sg_fixed flat; /* (B, N D) unit-rms streams */
    float *input;      /* (B, D) what the layer reads from its lanes; for a score then what the logits are made of */
    float *hidden;     /* (B, D) the layer's own residual stream */
    struct sg_fixed operand; /* (B, max(D, H V, E)) of the next product */
    float *row;        /* (max(N D, H V, E + padded row of a table, padded D),) one token on its way to fixed point */
    float *raw;        /* (R + B, max(q_dim, k_dim, v_dim)); nothing without taps */
    float *q;          /* (B, q_dim) */
    float *kv;         /* (B, max(k_dim, v_dim)) */
    float *gate;       /* (B, max(H V, D)) */
    float *mixed;      /* (B, H V) */
    float *change;     /* (B, D) */
    float *engram_raw; /* (reach + B, D) */
    float *scores;     /* (rows, C rounded up to whole key blocks), rows those of one key group; also (Q,) */
    int16_t *queries, *weights; /* (rows, Q), (rows, C rounded up); these and the next two are for `fast` alone */
    int32_t *sums;     /* (rows, max(16, V)) */
    float *factors;    /* (rows,) */
    float *hada[4];    /* (B, M) each; generation 2: one of (M,) */
    float *cosines;    /* (B, Q / 2) */
    float *sines;      /* (B, Q / 2) */
    float *lane_in, *lane_out, *lane_mix; /* (B, N), (B, N), (B, N N) */
    uint32_t *ids;     /* (order_max - 1 + B,) oldest first */
    float *logits;     /* (logit_count,) of the last token */
    uint32_t *ranking; /* (logit_count,) for sampling */
};

/* Keys after taps, norm and RoPE; values after taps. Either the floats or the rest is there; C is rounded up to whole key
 * blocks but for `values`. */
struct sg_cache {
    float *keys;            /* (L, G, C / 16, Q, 16) */
    float *values;          /* (L, G, C, V) */
    int8_t *key_numbers;    /* (L, G, C / 16, Q / 2, 16, 2) */
    int8_t *value_numbers;  /* (L, G, C / 2, V, 2) */
    float *key_units, *value_units; /* (L, G, C) */
    size_t bytes;
};

struct sg_session {
    const struct sg_model *model;
    uint32_t capacity;
    uint32_t block_tokens; /* B */
    uint32_t has_mark;
    uint32_t has_logits;    /* those of the last token are all there */
    uint32_t is_rehearsing; /* tokens of a score: they leave nothing behind, and heads do not hear them */
    uint32_t numerics;      /* enum sg_numerics */
    struct sg_cache cache;
    struct sg_state now, mark, kept;
    struct sg_listener listeners[SG_HEAD_ROUTER + 1]; /* by their code in the manifest */
    struct sg_work work;
};

/* session.c: sees to it that `work.logits` holds the last token's: all, or at least those of the ids in `words`. */
void sg_session_form_logits(struct sg_session *session, const uint32_t *words);

#define SG_KEY_BLOCK 16u       /* keys that stand side by side in the cache */
#define SG_TOKENS_TOGETHER 4u  /* tokens that share one reading of an 8-bit cache */

/* `count` rounded up to whole key blocks. */
static inline size_t sg_key_rows(size_t count) { return (count + SG_KEY_BLOCK - 1) / SG_KEY_BLOCK * SG_KEY_BLOCK; }

static inline uint32_t sg_engram_reach(const struct sg_geometry *geometry) {
    return (geometry->engram_conv_taps - 1) * geometry->engram_dilation;
}

static inline uint32_t sg_tap_reach(const struct sg_geometry *geometry) {
    return geometry->qkv_conv_taps ? geometry->qkv_conv_taps - 1 : 0;
}

#endif
