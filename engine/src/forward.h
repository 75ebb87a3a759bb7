/* The forward pass over one block of tokens, for both generations. */
#ifndef SG_FORWARD_H
#define SG_FORWARD_H

#include "session.h"

/* Runs `count` tokens (at most session->block_tokens, all below the vocabulary, room checked) through all layers. The
 * lanes after the last layer stay in `work.streams`. */
void sg_forward(struct sg_session *session, const uint32_t *ids, uint32_t count);
/* What the logits of the block's t-th token are made of: (D,). */
void sg_forward_last(const struct sg_session *session, uint32_t t, float *last);

/* Logits of `count` tokens, given what they are made of, `last` (count, D); then row by row of the embedding, as far as
 * they are wanted: `logits` is (count, logit_count). */
void sg_logits_begin(struct sg_session *session, const float *last, uint32_t count);
void sg_logits_put(struct sg_session *session, uint32_t first_row, uint32_t row_count, float *logits);

/* Parts of a layer, each in its own file. `count` tokens each. */
/* attention.c: hidden += gate * norm(attention(norm(hidden))) */
void sg_attend(struct sg_session *session, uint32_t layer, uint32_t count);
/* hadamard.c: hidden += mlp(norm(hidden)) */
void sg_hadamard_mlp(struct sg_session *session, const struct sg_layer *layer, uint32_t count);
/* walsh.c: the same for generation 2 */
void sg_walsh_mlp(struct sg_session *session, const struct sg_layer *layer, uint32_t count);
/* engram.c: hidden += gate(input, keys) * values, for the given site */
void sg_engram_add(struct sg_session *session, uint32_t site, uint32_t count);
/* lanes.c: streams -> input (and hidden, a copy); then streams and hidden - input -> streams */
void sg_lanes_read(struct sg_session *session, uint32_t layer, uint32_t count);
void sg_lanes_write(struct sg_session *session, uint32_t layer, uint32_t count);
/* The mean of the lanes of the block's t-th token: (D,). */
void sg_lanes_mean(const struct sg_session *session, uint32_t t, float *mean);

/* out = x / rms(x), with zeros up to `padded`; times (1 + scale) where `scale` is given. */
void sg_normalise(const float *x, size_t count, const float *scale, float *out, size_t padded);
/* out[t] = sum over j of taps[j] * window[reach + t - j * dilation]; window: (reach + count, width). */
void sg_convolve(const float *window, uint32_t reach, const float *taps, uint32_t tap_count, uint32_t dilation,
                 size_t width, uint32_t count, float *out, size_t out_stride);

#endif
