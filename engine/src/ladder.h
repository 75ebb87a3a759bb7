/* The depth ladder: which layers of a file a shallower model keeps (docs/engine.md, "Depth").
 *
 * Owns: the choice of layers and the header of a rung. Source: `ladder_layer_indices` and `ladder_slice` of cactus-needle
 * 3.2.8. Knows nothing of: tensors. */
#ifndef SG_LADDER_H
#define SG_LADDER_H

#include "container.h"

#define SG_LAYER_MAX 64u

/* Tells which layers rung `depth` keeps; depth 0 keeps all. BAD_DEPTH for a rung that the file does not have. */
int sg_ladder_choose(const struct sg_geometry *geometry, uint32_t depth, bool kept[SG_LAYER_MAX],
                     struct sg_error *error);
/* Makes the file's geometry that of the rung: its layers, global layers and engram sites. */
void sg_ladder_cut(struct sg_geometry *geometry, const bool kept[SG_LAYER_MAX]);

#endif
