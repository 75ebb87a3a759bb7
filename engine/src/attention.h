/* Attention over the cache, once in float32 (`exact`) and once over 8-bit keys and values (`fast`).
 *
 * Owns: what a token sees, and in which whole key blocks that lies. Letters as in session.h.
 * Knows nothing of: projections, norms, gates; attention.c does those. */
#ifndef SG_ATTENTION_H
#define SG_ATTENTION_H

#include "session.h"

#define SG_HEAD_MAX 512u /* what the header's rules allow a head to have */
#define SG_NO_SCORE (-0x1p120f) /* so far below any score that its weight is zero */

/* What one token sees: the positions below `pinned`, and those from `first` to `last`; pinned < first, or both are 0. */
struct sg_seen {
    size_t pinned, first, last;
};

/* A run of whole key blocks: positions from `start` up to `end`. */
struct sg_span {
    size_t start, end;
};

struct sg_seen sg_seen_by(const struct sg_session *session, uint32_t layer, uint32_t position);
/* The key blocks that hold what is seen: one span, or two if there are blocks between that hold nothing. */
size_t sg_find_spans(const struct sg_seen *seen, struct sg_span spans[2]);
/* Gives `value` to those of a row's numbers that lie in the spans and are not seen. */
void sg_set_unseen(float *row, const struct sg_seen *seen, const struct sg_span *spans, size_t span_count,
                   float value);

/* The block's keys (count, G, Q), normed and rotated, or values (count, G, V), into the layer's cache. */
void sg_store_keys_exact(const struct sg_session *session, uint32_t layer, const float *keys, uint32_t count);
void sg_store_values_exact(const struct sg_session *session, uint32_t layer, const float *values, uint32_t count);
void sg_store_keys_fast(const struct sg_session *session, uint32_t layer, const float *keys, uint32_t count);
void sg_store_values_fast(const struct sg_session *session, uint32_t layer, const float *values, uint32_t count);
/* `work.mixed` of the block's tokens from their `work.q`; the cache holds them already. */
void sg_mix_exact(const struct sg_session *session, uint32_t layer, uint32_t count);
void sg_mix_fast(const struct sg_session *session, uint32_t layer, uint32_t count);

#endif
