/* A segment's fields: read and checked before a byte of base, target or payload is touched.
 *
 * Owns: the limits that make every later loop and pointer safe. Source: docs/formats/patch.md, "Segments". */
#include "rebuild.h"

/* LEB128: seven bits a byte, lowest first. The last byte of a longer number is not zero: one spelling per number. A bad number
 * counts as an overrun. */
static uint64_t take_number(struct sg_cursor *cursor) {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 63; shift += 7) {
        const uint32_t byte = sg_take_u8(cursor);
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            cursor->overrun |= shift && !byte;
            return value;
        }
    }
    cursor->overrun = true;
    return 0;
}

static uint32_t take_number_32(struct sg_cursor *cursor) {
    const uint64_t value = take_number(cursor);
    cursor->overrun |= value > UINT32_MAX;
    return (uint32_t)value;
}

static int bad_segment(const struct sg_rebuild *rebuild, const char *field, uint64_t found, uint64_t allowed,
                       struct sg_error *error) {
    return sg_fail(error, SG_STATUS_PATCH_BAD_SEGMENT, field, rebuild->patch_position, found, allowed);
}

static int check_basis(const struct sg_rebuild *rebuild, struct sg_error *error) {
    const struct sg_basis *basis = &rebuild->segment.basis;
    const uint32_t row_codes = rebuild->segment.group_count * SG_PATCH_GROUP_CODES;
    if (!basis->rank || basis->rank > SG_GUIDE_RANK_MAX || basis->rank * row_codes > SG_GUIDE_Q_MAX)
        return bad_segment(rebuild, "segment.basis_rank", basis->rank, SG_GUIDE_RANK_MAX, error);
    if (basis->group >= SG_BASIS_GROUPS)
        return bad_segment(rebuild, "segment.basis_group", basis->group, SG_BASIS_GROUPS - 1, error);
    if (!basis->width || basis->width > row_codes)
        return bad_segment(rebuild, "segment.basis_width", basis->width, row_codes, error);
    return SG_STATUS_OK;
}

static int check_guided_cq(const struct sg_rebuild *rebuild, uint32_t code_bits, struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    if (segment->table_index >= SG_GUIDE_TABLE_COUNT ||
        rebuild->guide_tables[segment->table_index].shape.code_bits != code_bits)
        return bad_segment(rebuild, "segment.table_index", segment->table_index, SG_GUIDE_TABLE_COUNT - 1, error);
    if (!segment->rank || segment->rank > SG_GUIDE_RANK_MAX ||
        segment->rank * segment->group_count * SG_PATCH_GROUP_CODES > SG_GUIDE_Q_MAX)
        return bad_segment(rebuild, "segment.rank", segment->rank, SG_GUIDE_RANK_MAX, error);
    if (segment->pre_shift > SG_GUIDE_PRE_SHIFT_MAX)
        return bad_segment(rebuild, "segment.pre_shift", segment->pre_shift, SG_GUIDE_PRE_SHIFT_MAX, error);
    if (segment->boost > SG_GUIDE_BOOST_MAX)
        return bad_segment(rebuild, "segment.boost", segment->boost, SG_GUIDE_BOOST_MAX, error);
    return sg_coder_is_seeded(segment->coder) ? check_basis(rebuild, error) : SG_STATUS_OK;
}

static int check_guide_table(const struct sg_rebuild *rebuild, struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    if (segment->table_index >= SG_GUIDE_TABLE_COUNT)
        return bad_segment(rebuild, "segment.table_index", segment->table_index, SG_GUIDE_TABLE_COUNT - 1, error);
    if (segment->noise >= SG_GUIDE_NOISE_COUNT)
        return bad_segment(rebuild, "segment.noise", segment->noise, SG_GUIDE_NOISE_COUNT - 1, error);
    if (segment->bucket_shift < SG_GUIDE_BUCKET_SHIFT_MIN || segment->bucket_shift > SG_GUIDE_BUCKET_SHIFT_MAX)
        return bad_segment(rebuild, "segment.bucket_shift", segment->bucket_shift, SG_GUIDE_BUCKET_SHIFT_MAX, error);
    if (segment->floor > 1)
        return bad_segment(rebuild, "segment.floor", segment->floor, 1, error);
    if (segment->width > SG_GUIDE_WIDTH_ONE)
        return bad_segment(rebuild, "segment.width", segment->width, SG_GUIDE_WIDTH_ONE, error);
    return SG_STATUS_OK;
}

/* Blob size = rows * (packed codes + norms), with a table that fits and blocks that end. */
static int check_cq(const struct sg_rebuild *rebuild, struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    const uint32_t code_bits = sg_cq_code_bits(segment->bits);
    if (!code_bits)
        return bad_segment(rebuild, "segment.bits", segment->bits, 5, error);
    if (!segment->group_count || segment->group_count > SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES)
        return bad_segment(rebuild, "segment.group_count", segment->group_count,
                           SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES, error);
    const uint64_t row_bytes = (uint64_t)segment->group_count * (SG_PATCH_GROUP_CODES / 8 * code_bits + 2);
    if (!segment->row_count || segment->byte_count != row_bytes * segment->row_count)
        return bad_segment(rebuild, "segment.byte_count", segment->byte_count, row_bytes * segment->row_count, error);
    if (!segment->block_rows || (uint64_t)segment->block_rows * segment->group_count * SG_PATCH_GROUP_CODES >
                                    SG_PATCH_BLOCK_CODES_MAX)
        return bad_segment(rebuild, "segment.block_rows", segment->block_rows,
                           SG_PATCH_BLOCK_CODES_MAX / SG_PATCH_GROUP_CODES / segment->group_count, error);
    if (segment->coder != SG_CODER_UNGUIDED)
        return check_guided_cq(rebuild, code_bits, error);
    if (segment->table_index >= SG_PATCH_TABLE_COUNT ||
        rebuild->tables[segment->table_index].alphabet != 1u << code_bits)
        return bad_segment(rebuild, "segment.table_index", segment->table_index, SG_PATCH_TABLE_COUNT - 1, error);
    return SG_STATUS_OK;
}

static int check_table(const struct sg_rebuild *rebuild, struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    if (segment->base_skip || segment->byte_count)
        return bad_segment(rebuild, "segment.byte_count", segment->byte_count, 0, error);
    if (segment->coder == SG_CODER_UNGUIDED && segment->table_index >= SG_PATCH_TABLE_COUNT)
        return bad_segment(rebuild, "segment.table_index", segment->table_index, SG_PATCH_TABLE_COUNT - 1, error);
    if (segment->bits < 1 || segment->bits > 4)
        return bad_segment(rebuild, "segment.bits", segment->bits, 4, error);
    return segment->coder == SG_CODER_UNGUIDED ? SG_STATUS_OK : check_guide_table(rebuild, error);
}

static int check_kind(const struct sg_rebuild *rebuild, struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    const uint32_t unit = segment->kind == SG_SEGMENT_WORDS ? 4 : segment->kind == SG_SEGMENT_HALVES ? 2 : 1;
    switch (segment->kind) {
    case SG_SEGMENT_COPY:
        return segment->byte_count ? SG_STATUS_OK : bad_segment(rebuild, "segment.byte_count", 0, 1, error);
    case SG_SEGMENT_LITERAL:
    case SG_SEGMENT_WORDS:
    case SG_SEGMENT_HALVES:
        if (!segment->byte_count || segment->byte_count > SG_PATCH_PIECE_MAX || segment->byte_count % unit)
            return bad_segment(rebuild, "segment.byte_count", segment->byte_count, SG_PATCH_PIECE_MAX, error);
        return SG_STATUS_OK;
    case SG_SEGMENT_CQ:
        return check_cq(rebuild, error);
    default:
        return check_table(rebuild, error);
    }
}

static int is_known_coder(const struct sg_patch_segment *segment) {
    if (segment->kind == SG_SEGMENT_COPY)
        return segment->coder == SG_CODER_STORED;
    if (segment->kind == SG_SEGMENT_LITERAL)
        return segment->coder == SG_CODER_STORED || segment->coder == SG_CODER_MODELLED;
    if (segment->kind == SG_SEGMENT_CQ)
        return segment->coder >= SG_CODER_UNGUIDED && segment->coder <= SG_CODER_PREDICTED_SEEDED;
    if (segment->kind == SG_SEGMENT_TABLE)
        return segment->coder >= SG_CODER_UNGUIDED && segment->coder <= SG_CODER_NARROWED;
    return segment->coder == SG_CODER_MODELLED;
}

int sg_rebuild_read_fields(struct sg_rebuild *rebuild, uint32_t byte_count, struct sg_error *error) {
    struct sg_patch_segment *segment = &rebuild->segment;
    struct sg_cursor cursor = sg_cursor_at(rebuild->payload, byte_count);
    *segment = (struct sg_patch_segment){0};
    segment->kind = (uint8_t)sg_take_u8(&cursor);
    segment->coder = (uint8_t)sg_take_u8(&cursor);
    if (segment->kind < SG_SEGMENT_COPY || segment->kind > SG_SEGMENT_TABLE)
        return bad_segment(rebuild, "segment.kind", segment->kind, SG_SEGMENT_TABLE, error);
    if (!cursor.overrun && !is_known_coder(segment)) /* one that is missing is not unknown */
        return sg_fail(error, SG_STATUS_PATCH_BAD_CODER, "segment.coder", rebuild->patch_position, segment->coder, 1);
    segment->base_skip = take_number(&cursor);
    segment->byte_count = take_number(&cursor);
    if (segment->kind == SG_SEGMENT_CQ) {
        segment->row_count = take_number_32(&cursor);
        segment->group_count = take_number_32(&cursor);
        segment->block_rows = take_number_32(&cursor);
    }
    if (segment->kind == SG_SEGMENT_CQ || segment->kind == SG_SEGMENT_TABLE) {
        segment->bits = sg_take_u8(&cursor);
        segment->table_index = sg_take_u8(&cursor);
    }
    if (segment->kind == SG_SEGMENT_CQ && segment->coder != SG_CODER_UNGUIDED) {
        segment->rank = sg_take_u8(&cursor);
        segment->pre_shift = sg_take_u8(&cursor);
    }
    if (segment->kind == SG_SEGMENT_CQ && sg_coder_is_seeded(segment->coder)) {
        segment->basis.seed = take_number_32(&cursor);
        segment->basis.group = sg_take_u8(&cursor);
        segment->basis.layer = sg_take_u8(&cursor);
        segment->basis.width = take_number_32(&cursor);
        segment->basis.rank = sg_take_u8(&cursor);
    }
    if (segment->kind == SG_SEGMENT_CQ && sg_coder_is_predicted(segment->coder))
        segment->boost = take_number_32(&cursor);
    if (segment->kind == SG_SEGMENT_TABLE && segment->coder != SG_CODER_UNGUIDED) {
        segment->noise = sg_take_u8(&cursor);
        segment->bucket_shift = sg_take_u8(&cursor);
        segment->floor = sg_take_u8(&cursor);
        segment->width = segment->coder == SG_CODER_NARROWED ? sg_take_u8(&cursor) : SG_GUIDE_WIDTH_ONE;
    }
    if (cursor.overrun || cursor.offset != byte_count)
        return bad_segment(rebuild, "segment.fields_size", byte_count, cursor.offset, error);
    const uint64_t base_left = rebuild->expect.base_bytes - rebuild->base_position;
    const uint64_t base_read = segment->kind == SG_SEGMENT_LITERAL ? 0 : segment->byte_count;
    if (segment->base_skip > base_left || base_read > base_left - segment->base_skip)
        return bad_segment(rebuild, "segment.base_skip", segment->base_skip, base_left, error);
    const uint64_t target_left = rebuild->expect.target_bytes - rebuild->target_position;
    if (segment->byte_count > target_left)
        return bad_segment(rebuild, "segment.byte_count", segment->byte_count, target_left, error);
    return check_kind(rebuild, error);
}
