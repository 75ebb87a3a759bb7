/* Coding of CQ tensors, guided: side information, computed tables, codes and norms given the predicted shift.
 *
 * Owns: coder 2 on the maker's side. The contexts come from the decoder's own integer code (delta_guide.c); how the
 * shift is found is patch_fit.c's business. Source: docs/formats/patch.md, "Guided codes". */
#include <string.h>

#include "patch_guide.h"

/* 1.2240064 / sqrt(128) and sqrt(2 / pi) / sqrt(128), in 1/65536: ternary and one-bit levels are not stored. */
#define TERNARY_LEVEL 7090
#define BINARY_LEVEL 4622
/* The unused fourth crumb of ternary lies where no weight is. */
#define UNUSED_LEVEL 28000

static int16_t level_units(const uint8_t *codebooks_end, uint32_t index) {
    const float level = sg_float_of_bits(sg_load_u32(codebooks_end - 4 * (28 - index)));
    return (int16_t)(level > -0.44f && level < 0.44f ? (int32_t)(level * 65536) : INT16_MAX);
}

/* 4, 8 and 16 levels for 2, 3 and 4 bits. */
void sg_guide_levels(struct sg_guide_shape *shape, const uint8_t *codebooks_end, uint32_t bits) {
    static const uint32_t first[5] = {0, 0, 0, 4, 12};
    shape->code_bits = sg_cq_code_bits(bits);
    if (bits == 1) {
        shape->level[0] = -BINARY_LEVEL, shape->level[1] = BINARY_LEVEL;
    } else if (bits == 5) {
        shape->level[0] = 0, shape->level[1] = TERNARY_LEVEL;
        shape->level[2] = UNUSED_LEVEL, shape->level[3] = -TERNARY_LEVEL;
    } else {
        for (uint32_t code = 0; code < 1u << bits; code++)
            shape->level[code] = level_units(codebooks_end, first[bits] + code);
    }
}

/* ---- rows, block by block ---- */

static struct sg_guide_rows rows_of(const struct sg_patch_maker *maker, const struct sg_part *part) {
    struct sg_guide_rows rows = {.group_count = part->record.group_count,
                                 .row_count = part->record.row_count,
                                 .code_bits = sg_cq_code_bits(part->record.bits),
                                 .row_codes = part->record.group_count * SG_PATCH_GROUP_CODES};
    rows.row_bytes = rows.row_codes / 8 * rows.code_bits;
    rows.old_codes = maker->base.file + part->base_offset;
    rows.new_codes = maker->target.file + part->target_offset;
    rows.old_norms = rows.old_codes + (size_t)rows.row_bytes * part->record.row_count;
    rows.new_norms = rows.new_codes + (size_t)rows.row_bytes * part->record.row_count;
    return rows;
}

/* Q as the rebuilder will have it; returns 0 if an entry does not fit. */
static int settle_q(struct sg_patch_maker *maker, uint32_t row_codes) {
    const struct sg_fit *fit = maker->fit;
    for (uint32_t k = 0; k < fit->rank; k++)
        for (uint32_t i = 0; i < row_codes; i++)
            if (!sg_guide_q_entry(fit->q[k * row_codes + i], fit->gain[k], fit->mix[k], fit->basis_rows + i,
                                  fit->basis.rank, row_codes, &maker->guide_q[k * row_codes + i]))
                return 0;
    return 1;
}

void sg_guide_walk_row(struct sg_patch_maker *maker, const struct sg_guide_rows *rows,
                       const struct sg_guide_shape *shape, uint32_t row, uint16_t *contexts, uint8_t *symbols,
                       uint32_t *differences) {
    const struct sg_fit *fit = maker->fit;
    const uint8_t *old_norms = rows->old_norms + (size_t)2 * rows->group_count * row;
    const uint8_t *new_norms = rows->new_norms + (size_t)2 * rows->group_count * row;
    sg_guide_row(fit->p + (size_t)row * fit->rank, maker->guide_q, fit->rank, rows->row_codes, fit->pre_shift,
                 maker->guide_shift);
    sg_unpack_codes(rows->new_codes + (size_t)rows->row_bytes * row, rows->code_bits, rows->row_codes, maker->row);
    for (uint32_t i = 0; i < rows->row_codes; i++)
        symbols[i] = (uint8_t)maker->row[i];
    sg_unpack_codes(rows->old_codes + (size_t)rows->row_bytes * row, rows->code_bits, rows->row_codes, maker->row);
    for (uint32_t g = 0; g < rows->group_count; g++) {
        const uint32_t at = g * SG_PATCH_GROUP_CODES;
        struct sg_guide_group group;
        sg_guide_group_contexts(&group, shape, maker->guide_shift + at, sg_load_u16(old_norms),
                                sg_load_u16(old_norms + 2 * g), maker->row + at, contexts + at);
        if (differences)
            differences[g] = sg_half_difference(sg_guide_norm(&group, shape, symbols + at),
                                                sg_load_u16(new_norms + 2 * g));
    }
}

/* Whether codes and norms are those that the shift gives by itself. */
static int shift_says_all(struct sg_patch_maker *maker, const struct sg_guide_rows *rows, uint32_t row_count,
                          const struct sg_guide_shape *shape, uint32_t boost) {
    struct sg_guide_cells cells;
    if (!sg_guide_cells_fill(&cells, shape))
        return 0;
    for (uint32_t row = 0; row < row_count; row++) {
        const uint8_t *old_norms = rows->old_norms + (size_t)2 * rows->group_count * row;
        const uint8_t *new_norms = rows->new_norms + (size_t)2 * rows->group_count * row;
        uint16_t *new_codes = maker->contexts;
        sg_guide_row(maker->fit->p + (size_t)row * maker->fit->rank, maker->guide_q, maker->fit->rank, rows->row_codes,
                     maker->fit->pre_shift, maker->guide_shift);
        sg_unpack_codes(rows->old_codes + (size_t)rows->row_bytes * row, rows->code_bits, rows->row_codes, maker->row);
        sg_unpack_codes(rows->new_codes + (size_t)rows->row_bytes * row, rows->code_bits, rows->row_codes, new_codes);
        for (uint32_t g = 0; g < rows->group_count; g++) {
            const uint32_t at = g * SG_PATCH_GROUP_CODES;
            struct sg_guide_group group;
            uint8_t predicted[SG_PATCH_GROUP_CODES];
            sg_guide_group_open(&group, shape, maker->guide_shift + at, sg_load_u16(old_norms),
                                sg_load_u16(old_norms + 2 * g), maker->row + at);
            sg_guide_group_codes(&group, shape, &cells, boost, maker->row + at, predicted);
            if (sg_guide_norm(&group, shape, predicted) != sg_load_u16(new_norms + 2 * g))
                return 0;
            for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++)
                if (predicted[i] != new_codes[at + i])
                    return 0;
        }
    }
    return 1;
}

/* ---- the table ---- */

static int is_same_shape(const struct sg_guide_shape *a, const struct sg_guide_shape *b) {
    return a->code_bits == b->code_bits && a->noise == b->noise && a->bucket_shift == b->bucket_shift &&
           a->floor == b->floor && a->width == b->width && memcmp(a->level, b->level, sizeof a->level) == 0;
}

/* Index of the live table with this shape, written first if there is none. */
static uint32_t live_table(struct sg_patch_maker *maker, const struct sg_guide_shape *shape) {
    struct sg_range_encoder encoder;
    uint32_t before = 0;
    for (uint32_t i = 0; i < SG_GUIDE_TABLE_COUNT; i++)
        if (maker->guide_shapes[i].code_bits && is_same_shape(&maker->guide_shapes[i], shape))
            return i;
    const uint32_t index = maker->guide_next++ % SG_GUIDE_TABLE_COUNT;
    sg_guide_table_build(&maker->guide_tables[index], shape);
    maker->guide_shapes[index] = *shape;
    sg_range_encoder_init(&encoder, maker->payload, sizeof maker->payload);
    for (uint32_t code = 0; code < 1u << shape->code_bits; code++) {
        const uint32_t level = (uint32_t)(int32_t)shape->level[code];
        sg_encode_signed(&encoder, &maker->models.level, level - before);
        before = level;
    }
    sg_write_fields(maker,
                    (struct sg_patch_segment){.kind = SG_SEGMENT_TABLE,
                                              .coder = shape->width == SG_GUIDE_WIDTH_ONE ? SG_CODER_GUIDED
                                                                                          : SG_CODER_NARROWED,
                                              .bits = shape->code_bits,
                                              .table_index = index,
                                              .noise = shape->noise,
                                              .bucket_shift = shape->bucket_shift,
                                              .floor = shape->floor,
                                              .width = shape->width},
                    maker->base_position);
    sg_write_payload(&maker->writer, maker->payload, sg_range_encoder_finish(&encoder));
    return index;
}

/* ---- side information and blocks ---- */

/* The class whose spread, 2^(class / 3) / 4, is nearest to that of the entries. */
static uint32_t side_class(const int16_t *entries, size_t step, size_t count) {
    uint64_t square = 0;
    uint32_t class = 0;
    for (size_t i = 0; i < count; i++)
        square += (uint64_t)((int64_t)entries[i * step] * entries[i * step]);
    /* typical is 16 * 0.8 * spread; squares are compared, with the class border half a step up */
    if (!square)
        return SG_SIDE_CLASS_NONE;
    while (class + 1 < SG_SIDE_CLASS_NONE &&
           square * 205 > (uint64_t)sg_side_typical[class] * sg_side_typical[class] * count * 5 / 4)
        class ++;
    return class;
}

static size_t encode_side(struct sg_patch_maker *maker, uint32_t row_codes, uint32_t row_count) {
    const struct sg_fit *fit = maker->fit;
    struct sg_range_encoder encoder;
    sg_range_encoder_init(&encoder, maker->payload, sizeof maker->payload);
    for (uint32_t k = 0; k < fit->rank; k++) {
        const int16_t *q = fit->q + (size_t)k * row_codes;
        const uint32_t q_class = side_class(q, 1, row_codes);
        const uint32_t p_class = side_class(fit->p + k, fit->rank, row_count);
        maker->guide_p_class[k] = (uint8_t)(p_class == SG_SIDE_CLASS_NONE ? 0 : p_class);
        const uint32_t exponent = sg_bit_length(fit->gain[k]) - 4;
        sg_encode_tree(&encoder, maker->models.gain_exponent, 4, exponent);
        sg_encode_tree(&encoder, maker->models.gain_mantissa, 3, (fit->gain[k] >> exponent) - 8);
        sg_encode_tree(&encoder, maker->models.side_class, 5, q_class);
        sg_encode_tree(&encoder, maker->models.side_class, 5, maker->guide_p_class[k]);
        for (uint32_t j = 0; j < fit->basis.rank; j++)
            sg_encode_signed(&encoder, &maker->models.mix, (uint32_t)(int32_t)fit->mix[k][j]);
        for (uint32_t i = 0; q_class != SG_SIDE_CLASS_NONE && i < row_codes; i++)
            sg_encode_side(&encoder, &maker->models.q[q_class], q[i]);
    }
    return sg_range_encoder_finish(&encoder);
}

static void encode_p(struct sg_patch_maker *maker, struct sg_range_encoder *encoder, uint32_t row) {
    const struct sg_fit *fit = maker->fit;
    uint32_t size_sum = 0, typical_sum = 0;
    for (uint32_t k = 0; k < fit->rank; k++) {
        const int32_t entry = fit->p[(size_t)row * fit->rank + k];
        const uint32_t class = maker->guide_p_class[k], context = sg_side_row_context(size_sum, typical_sum);
        sg_encode_side(encoder, &maker->models.p[class][context], entry);
        size_sum += (uint32_t)(entry < 0 ? -entry : entry);
        typical_sum += sg_side_typical[class];
    }
}

/* Without a table's codes, if `is_predicted`. */
static size_t encode_block(struct sg_patch_maker *maker, const struct sg_guide_rows *rows,
                           const struct sg_guide_table *table, int is_predicted, uint32_t first_row,
                           uint32_t row_count) {
    const size_t room = sizeof maker->payload - 4;
    uint32_t differences[SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES], before = 0;
    struct sg_range_encoder encoder;
    sg_range_encoder_init(&encoder, maker->payload + 4, room);
    for (uint32_t k = 0; k < row_count; k++) {
        const size_t at = (size_t)k * rows->row_codes;
        sg_guide_walk_row(maker, rows, &table->shape, first_row + k, maker->contexts + at, maker->symbols + at,
                          differences);
        encode_p(maker, &encoder, first_row + k);
        for (uint32_t g = 0; g < rows->group_count; g++) {
            sg_encode_signed(&encoder, &maker->models.guided_norm[sg_size_context(before, SG_NORM_CONTEXTS)],
                             differences[g]);
            before = differences[g];
        }
    }
    const size_t range_bytes = sg_range_encoder_finish(&encoder);
    if (range_bytes > room)
        return 0;
    sg_store_u32(maker->payload, (uint32_t)range_bytes);
    if (is_predicted)
        return 4 + range_bytes;
    const size_t code_bytes = sg_rans_encode(table->row, maker->contexts, maker->symbols,
                                             (size_t)rows->row_codes * row_count, maker->payload + 4 + range_bytes,
                                             room - range_bytes);
    return code_bytes ? 4 + range_bytes + code_bytes : 0;
}

const uint8_t *sg_settled_shift(const struct sg_patch_maker *maker, const struct sg_part *part) {
    return sg_shifts_find(maker->shifts, maker->shift_bytes, part->target_offset, part->record.row_count,
                          part->record.group_count * SG_PATCH_GROUP_CODES);
}

static void fit_shift(struct sg_patch_maker *maker, const struct sg_part *part, const struct sg_guide_rows *rows,
                      const struct sg_guide_shape *shape) {
    const struct sg_fit_input input = {rows->old_codes,        rows->new_codes,   rows->old_norms, rows->new_norms,
                                       part->record.row_count, rows->group_count, rows->code_bits,
                                       part->record.column_count, shape, maker->effort, &maker->hint};
    sg_fit_run(maker->fit, &input);
}

/* The shift, and the table or the boost that go with it; returns 0 if there is none. */
static int find_shift(struct sg_patch_maker *maker, const struct sg_part *part, const struct sg_guide_rows *rows,
                      struct sg_guide_shape *shape, uint32_t *boost) {
    const uint8_t *settled = sg_settled_shift(maker, part);
    struct sg_shift_use use = {0};
    if (settled)
        use = sg_shift_load(maker->fit, settled);
    else
        fit_shift(maker, part, rows, shape);
    if (!maker->fit->rank || !settle_q(maker, rows->row_codes))
        return 0;
    *boost = use.boost;
    if (use.boost && shift_says_all(maker, rows, part->record.row_count, shape, use.boost))
        return 1;
    *boost = 0;
    if (settled && !use.boost)
        return sg_guide_table_settle(maker, rows, use, shape);
    if (!settled)
        *shape = maker->fit->shape;
    return sg_guide_table_choose(maker, rows, shape);
}

static uint8_t coder_of(const struct sg_fit *fit, uint32_t boost) {
    if (boost)
        return fit->basis.rank ? SG_CODER_PREDICTED_SEEDED : SG_CODER_PREDICTED;
    return fit->basis.rank ? SG_CODER_SEEDED : SG_CODER_GUIDED;
}

int sg_write_guided(struct sg_patch_maker *maker, const struct sg_part *part) {
    const struct sg_guide_rows rows = rows_of(maker, part);
    struct sg_guide_shape shape = {.bucket_shift = 7, .width = SG_GUIDE_WIDTH_ONE};
    struct sg_fit *fit = maker->fit;
    uint32_t boost = 0;
    sg_guide_levels(&shape, maker->target.file + maker->target.directory_offset, part->record.bits);
    if (!find_shift(maker, part, &rows, &shape, &boost))
        return 0;
    const uint32_t table_index = live_table(maker, &shape);
    const uint32_t block_rows = sg_block_rows(part);
    sg_write_fields(maker,
                    (struct sg_patch_segment){.kind = SG_SEGMENT_CQ,
                                              .coder = coder_of(fit, boost),
                                              .byte_count = part->byte_count,
                                              .row_count = part->record.row_count,
                                              .group_count = part->record.group_count,
                                              .bits = part->record.bits,
                                              .table_index = table_index,
                                              .block_rows = block_rows,
                                              .rank = fit->rank,
                                              .pre_shift = fit->pre_shift,
                                              .basis = fit->basis,
                                              .boost = boost},
                    part->base_offset);
    const size_t side_bytes = encode_side(maker, rows.row_codes, part->record.row_count);
    if (side_bytes > sizeof maker->payload)
        return 0;
    sg_write_payload(&maker->writer, maker->payload, side_bytes);
    for (uint32_t row = 0; row < part->record.row_count; row += block_rows) {
        const uint32_t left = part->record.row_count - row;
        const size_t size = encode_block(maker, &rows, &maker->guide_tables[table_index], boost != 0, row,
                                         left < block_rows ? left : block_rows);
        if (!size)
            return 0;
        sg_write_payload(&maker->writer, maker->payload, size);
    }
    return 1;
}
