/* Decoding of guided CQ tensors: computed tables, the low-rank shift, rows.
 *
 * Owns: coder 2 of tables and CQ segments. Source: docs/formats/patch.md, "Guided codes". Fields were checked
 * (rebuild_fields.c), so rank, rows and table are bounded here. */
#include "rebuild.h"

static int corrupt(const struct sg_rebuild *rebuild, const char *field, struct sg_error *error) {
    return sg_fail(error, SG_STATUS_PATCH_CORRUPT, field, rebuild->patch_position, 0, 0);
}

int sg_rebuild_decode_guide_table(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder,
                                  struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    struct sg_guide_shape shape = {.code_bits = segment->bits,
                                   .noise = segment->noise,
                                   .bucket_shift = segment->bucket_shift,
                                   .floor = segment->floor,
                                   .width = segment->width};
    uint32_t level = 0;
    for (uint32_t code = 0; code < 1u << segment->bits; code++) {
        level += sg_decode_signed(decoder, &rebuild->models.level);
        shape.level[code] = (int16_t)(level & 0xffff);
    }
    if (!sg_guide_table_build(&rebuild->guide_tables[segment->table_index], &shape))
        return sg_fail(error, SG_STATUS_PATCH_BAD_TABLE, "table.level", rebuild->patch_position, 0, 0);
    return SG_STATUS_OK;
}

static int decode_mix(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder, int16_t mix[SG_GUIDE_RANK_MAX]) {
    int is_bad = 0;
    for (uint32_t j = 0; j < rebuild->segment.basis.rank; j++) {
        const int32_t entry = (int32_t)sg_decode_signed(decoder, &rebuild->models.mix);
        is_bad |= entry > SG_GUIDE_MIX_MAX || entry < -SG_GUIDE_MIX_MAX;
        mix[j] = (int16_t)entry;
    }
    return !is_bad;
}

/* Component after component: gain, classes, mix (if there is a basis), then its vector of Q. */
int sg_rebuild_decode_side(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder, struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    const uint32_t row_codes = segment->group_count * SG_PATCH_GROUP_CODES;
    struct sg_delta_models *models = &rebuild->models;
    if (segment->basis.rank)
        sg_basis_fill(&segment->basis, row_codes, rebuild->basis);
    for (uint32_t k = 0; k < segment->rank; k++) {
        const uint32_t exponent = sg_decode_tree(decoder, models->gain_exponent, 4);
        const uint32_t gain = (8 + sg_decode_tree(decoder, models->gain_mantissa, 3)) << exponent;
        const uint32_t q_class = sg_decode_tree(decoder, models->side_class, 5);
        int16_t mix[SG_GUIDE_RANK_MAX];
        rebuild->p_class[k] = (uint8_t)sg_decode_tree(decoder, models->side_class, 5);
        if (gain > SG_GUIDE_GAIN_MAX)
            return corrupt(rebuild, "side.gain", error);
        if (!decode_mix(rebuild, decoder, mix))
            return corrupt(rebuild, "side.mix", error);
        for (uint32_t i = 0; i < row_codes; i++) {
            const int32_t entry =
                q_class == SG_SIDE_CLASS_NONE ? 0 : sg_decode_side(decoder, &models->q[q_class]);
            if (!sg_guide_q_entry(entry, gain, mix, rebuild->basis + i, segment->basis.rank, row_codes,
                                  &rebuild->q[k * row_codes + i]))
                return corrupt(rebuild, "side.q", error);
        }
    }
    return SG_STATUS_OK;
}

static void decode_p(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder, int16_t p[SG_GUIDE_RANK_MAX]) {
    uint32_t size_sum = 0, typical_sum = 0;
    for (uint32_t k = 0; k < rebuild->segment.rank; k++) {
        const uint32_t class = rebuild->p_class[k], context = sg_side_row_context(size_sum, typical_sum);
        const int32_t entry = sg_decode_side(decoder, &rebuild->models.p[class][context]);
        p[k] = (int16_t)entry;
        size_sum += (uint32_t)(entry < 0 ? -entry : entry);
        typical_sum += sg_side_typical[class];
    }
}

int sg_rebuild_decode_guided_row(struct sg_rebuild *rebuild, struct sg_range_decoder *range,
                                 struct sg_rans_decoder *rans, uint8_t *codes, uint8_t *norms, uint32_t *before) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    const struct sg_guide_table *table = &rebuild->guide_tables[segment->table_index];
    const uint32_t code_bits = table->shape.code_bits, row_codes = segment->group_count * SG_PATCH_GROUP_CODES;
    const uint32_t row_norm = sg_load_u16(norms);
    const int is_predicted = sg_coder_is_predicted(segment->coder);
    struct sg_guide_cells cells;
    int16_t p[SG_GUIDE_RANK_MAX];
    sg_guide_cells_fill(&cells, &table->shape);
    decode_p(rebuild, range, p);
    sg_guide_row(p, rebuild->q, segment->rank, row_codes, segment->pre_shift, rebuild->shift);
    for (uint32_t g = 0; g < segment->group_count; g++) {
        uint8_t *group_codes = codes + g * (SG_PATCH_GROUP_CODES / 8) * code_bits, *norm = norms + 2 * g;
        uint16_t old_codes[SG_PATCH_GROUP_CODES], contexts[SG_PATCH_GROUP_CODES];
        uint8_t new_codes[SG_PATCH_GROUP_CODES];
        struct sg_guide_group group;
        sg_unpack_codes(group_codes, code_bits, SG_PATCH_GROUP_CODES, old_codes);
        if (is_predicted) {
            sg_guide_group_open(&group, &table->shape, rebuild->shift + g * SG_PATCH_GROUP_CODES, row_norm,
                                sg_load_u16(norm), old_codes);
            sg_guide_group_codes(&group, &table->shape, &cells, segment->boost, old_codes, new_codes);
        } else {
            sg_guide_group_contexts(&group, &table->shape, rebuild->shift + g * SG_PATCH_GROUP_CODES, row_norm,
                                    sg_load_u16(norm), old_codes, contexts);
            if (!sg_rans_decode(rans, table->row, contexts, SG_PATCH_GROUP_CODES, new_codes))
                return 0;
        }
        sg_pack_codes(new_codes, code_bits, SG_PATCH_GROUP_CODES, group_codes);
        *before = sg_decode_signed(range, &rebuild->models.guided_norm[sg_size_context(*before, SG_NORM_CONTEXTS)]);
        sg_store_u16(norm, (sg_guide_norm(&group, &table->shape, new_codes) + *before) & 0xffff);
    }
    return 1;
}
