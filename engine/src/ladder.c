/* Rungs of the depth ladder. */
#include "ladder.h"

#define DEPTH_MIN 2u

/* The middle of the widest gap between chosen layers, the leftmost of equals. */
static uint32_t middle_of_widest_gap(uint32_t layer_count, const bool kept[SG_LAYER_MAX]) {
    uint32_t widest = 0, start = 0, left = 0;
    for (uint32_t layer = 1; layer < layer_count; layer++) {
        if (!kept[layer]) continue;
        if (layer - left > widest) {
            widest = layer - left;
            start = left;
        }
        left = layer;
    }
    return start + widest / 2;
}

int sg_ladder_choose(const struct sg_geometry *geometry, uint32_t depth, bool kept[SG_LAYER_MAX],
                     struct sg_error *error) {
    const uint32_t layer_count = geometry->layer_count;
    const bool is_whole = depth == 0 || depth == layer_count;
    if (!is_whole && (geometry->generation == 2 || depth < DEPTH_MIN || depth > layer_count)) {
        return sg_fail(error, SG_STATUS_BAD_DEPTH, "depth", 0, depth, layer_count);
    }
    for (uint32_t layer = 0; layer < layer_count; layer++) kept[layer] = is_whole;
    if (is_whole) return SG_STATUS_OK;
    kept[0] = kept[layer_count - 1] = true;
    for (uint32_t count = DEPTH_MIN; count < depth; count++) kept[middle_of_widest_gap(layer_count, kept)] = true;
    return SG_STATUS_OK;
}

static bool is_marked(uint32_t low, uint32_t high, uint32_t layer) {
    return ((layer < 32 ? low : high) >> layer % 32 & 1) != 0;
}

void sg_ladder_cut(struct sg_geometry *geometry, const bool kept[SG_LAYER_MAX]) {
    const struct sg_geometry whole = *geometry;
    uint32_t site = 0;
    geometry->layer_count = geometry->site_count = 0;
    geometry->global_mask_low = geometry->global_mask_high = 0;
    for (uint32_t layer = 0; layer < whole.layer_count; layer++) {
        const bool is_site = site < whole.site_count && whole.sites[site] == layer;
        const uint32_t place = geometry->layer_count;
        site += is_site;
        if (!kept[layer]) continue;
        if (is_marked(whole.global_mask_low, whole.global_mask_high, layer)) {
            uint32_t *mask = place < 32 ? &geometry->global_mask_low : &geometry->global_mask_high;
            *mask |= 1u << place % 32;
        }
        if (is_site) geometry->sites[geometry->site_count++] = place;
        geometry->layer_count++;
    }
}
