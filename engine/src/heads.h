/* Probe heads of a session: what has to be kept of each token until somebody asks.
 *
 * A head looks at cells: the embedding, and the mean of the lanes after each layer. Each of its probes takes the softmax
 * mean of a row of cells over all tokens; the mean is carried along, token after token, so that no cell is kept and blocks
 * of any size give the same bits (docs/numerics.md, "Probe heads"). Letters as in model.h; R counts the rung's layers and one.
 * Owns: the means and the answers out of them. Knows nothing of: what an answer is used for. */
#ifndef SG_HEADS_H
#define SG_HEADS_H

#include "model.h"

struct sg_session;

/* A mean is D + 2 floats: the largest score so far, the sum of the weights exp(score - largest), and the sum of the vectors
 * times their weights. */
struct sg_listener {
    const struct sg_head *head; /* NULL: nobody listens */
    float *now, *mark; /* (R, P) means each, by row and probe */
    float *answer;     /* (S) means, by query; generation 2: (P), by probe */
    float *cell;       /* (D,) */
    float *outputs;    /* (O,) */
};

/* The block's cells of one row, to all that listen; row 0 is the embedding, row l + 1 follows layer l. */
void sg_heads_hear(struct sg_session *session, uint32_t row, uint32_t count);
void sg_heads_mark(struct sg_session *session);
void sg_heads_rewind(struct sg_session *session);
void sg_heads_reset(struct sg_session *session);

#endif
