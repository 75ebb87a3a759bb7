/* Coding of CQ tensors, unguided: new codes given old ones under shared tables, norms as differences.
 *
 * Owns: the choice of tables and the coding of blocks. Source: docs/formats/patch.md, "CQ". Integers only. */
#include <string.h>

#include "patch_write.h"

/* A table of its own costs about this much, in 1/65536 bit: some 200 frequencies of 7 bits. */
#define TABLE_COST ((uint64_t)1400 << 16)

/* Code length of all counted codes under their own frequencies, in 1/65536 bit. */
static uint64_t counts_cost(const struct sg_code_counts *counts, const struct sg_code_counts *more) {
    uint64_t cost = 0;
    for (uint32_t old_code = 0; old_code < SG_RANS_SYMBOLS; old_code++) {
        uint64_t spent = 0;
        uint32_t total = 0;
        for (uint32_t new_code = 0; new_code < SG_RANS_SYMBOLS; new_code++) {
            const uint32_t count = counts->count[old_code][new_code] + (more ? more->count[old_code][new_code] : 0);
            spent += (uint64_t)count * sg_log2_fixed(count);
            total += count;
        }
        cost += (uint64_t)total * sg_log2_fixed(total) - spent;
    }
    return cost;
}

static size_t row_codes_of(const struct sg_part *part) {
    return (size_t)part->record.group_count * SG_PATCH_GROUP_CODES;
}

static void count_part(struct sg_patch_maker *maker, const struct sg_part *part, struct sg_code_counts *counts) {
    const uint32_t code_bits = sg_cq_code_bits(part->record.bits);
    const size_t row_codes = row_codes_of(part), row_bytes = row_codes / 8 * code_bits;
    const uint8_t *old_row = maker->base.file + part->base_offset, *new_row = maker->target.file + part->target_offset;
    memset(counts, 0, sizeof *counts);
    for (uint32_t row = 0; row < part->record.row_count; row++) {
        sg_unpack_codes(old_row + row * row_bytes, code_bits, row_codes, maker->contexts);
        sg_unpack_codes(new_row + row * row_bytes, code_bits, row_codes, maker->row);
        for (size_t i = 0; i < row_codes; i++)
            counts->count[maker->contexts[i]][maker->row[i]]++;
    }
}

/* The table that grows least; `*extra` is by how much. SG_PATCH_TABLE_COUNT if none has this width. */
static uint32_t nearest_table(const struct sg_patch_maker *maker, const struct sg_code_counts *counts,
                              uint32_t code_bits, uint64_t *extra) {
    const uint64_t alone = counts_cost(counts, NULL);
    uint32_t best = SG_PATCH_TABLE_COUNT;
    for (uint32_t i = 0; i < SG_PATCH_TABLE_COUNT; i++) {
        if (maker->table_bits[i] != code_bits)
            continue;
        const struct sg_code_counts *table = &maker->table_counts[i];
        const uint64_t grown = counts_cost(table, counts) - counts_cost(table, NULL) - alone;
        if (best == SG_PATCH_TABLE_COUNT || grown < *extra) {
            best = i;
            *extra = grown;
        }
    }
    return best;
}

/* One table per width is always kept free for the widths that are still to come. */
static uint32_t free_table(const struct sg_patch_maker *maker) {
    for (uint32_t i = 0; i < SG_PATCH_TABLE_COUNT; i++)
        if (!maker->table_bits[i])
            return i;
    return SG_PATCH_TABLE_COUNT;
}

void sg_count_codes(struct sg_patch_maker *maker, const struct sg_part *part) {
    const uint32_t code_bits = sg_cq_code_bits(part->record.bits);
    struct sg_code_counts counts;
    uint64_t extra = 0;
    count_part(maker, part, &counts);
    uint32_t index = nearest_table(maker, &counts, code_bits, &extra);
    const uint32_t spare = free_table(maker);
    if (index == SG_PATCH_TABLE_COUNT || (extra > TABLE_COST && spare < SG_PATCH_TABLE_COUNT - 4))
        index = spare;
    maker->table_bits[index] = code_bits;
    for (uint32_t i = 0; i < SG_RANS_SYMBOLS; i++)
        for (uint32_t j = 0; j < SG_RANS_SYMBOLS; j++)
            maker->table_counts[index].count[i][j] += counts.count[i][j];
}

void sg_fit_tables(struct sg_patch_maker *maker) {
    for (uint32_t i = 0; i < SG_PATCH_TABLE_COUNT; i++) {
        maker->tables[i].alphabet = maker->table_bits[i] ? 1u << maker->table_bits[i] : 0;
        for (uint32_t old_code = 0; old_code < maker->tables[i].alphabet; old_code++)
            sg_rans_row_from_counts(&maker->tables[i].row[old_code], maker->table_counts[i].count[old_code],
                                    maker->tables[i].alphabet);
    }
}

static uint32_t frequency_of(const struct sg_rans_row *row, uint32_t symbol) {
    return (uint32_t)row->end[symbol + 1] - row->end[symbol];
}

/* Code length under a table, in 1/65536 bit; UINT64_MAX if the table lacks a symbol. */
static uint64_t table_cost(const struct sg_code_table *table, const struct sg_code_counts *counts) {
    uint64_t cost = 0;
    for (uint32_t old_code = 0; old_code < table->alphabet; old_code++)
        for (uint32_t new_code = 0; new_code < table->alphabet; new_code++) {
            const uint32_t count = counts->count[old_code][new_code];
            const uint32_t frequency = frequency_of(&table->row[old_code], new_code);
            if (count && !frequency)
                return UINT64_MAX;
            cost += (uint64_t)count * ((SG_RANS_BITS << 16) - sg_log2_fixed(frequency));
        }
    return cost;
}

static uint32_t cheapest_table(struct sg_patch_maker *maker, const struct sg_part *part, uint64_t *cost) {
    const uint32_t alphabet = 1u << sg_cq_code_bits(part->record.bits);
    struct sg_code_counts counts;
    uint32_t best = SG_PATCH_TABLE_COUNT;
    count_part(maker, part, &counts);
    for (uint32_t i = 0; i < SG_PATCH_TABLE_COUNT; i++) {
        if (maker->tables[i].alphabet != alphabet)
            continue;
        const uint64_t here = table_cost(&maker->tables[i], &counts);
        if (here != UINT64_MAX && (best == SG_PATCH_TABLE_COUNT || here < *cost)) {
            best = i;
            *cost = here;
        }
    }
    return best;
}

static void write_table(struct sg_patch_maker *maker, uint32_t index) {
    const struct sg_code_table *table = &maker->tables[index];
    struct sg_range_encoder encoder;
    if (maker->table_is_written[index])
        return;
    maker->table_is_written[index] = 1;
    sg_range_encoder_init(&encoder, maker->payload, sizeof maker->payload);
    for (uint32_t old_code = 0; old_code < table->alphabet; old_code++) {
        uint32_t total = 0;
        for (uint32_t new_code = 0; new_code < table->alphabet; new_code++)
            total += maker->table_counts[index].count[old_code][new_code];
        sg_range_encode(&encoder, &maker->models.row_is_used, total != 0);
        for (uint32_t new_code = 0; total && new_code < table->alphabet; new_code++)
            sg_encode_number(&encoder, &maker->models.frequency[sg_table_context(old_code, new_code)],
                             frequency_of(&table->row[old_code], new_code));
    }
    sg_write_fields(maker,
                    (struct sg_patch_segment){.kind = SG_SEGMENT_TABLE,
                                              .coder = SG_CODER_MODELLED,
                                              .bits = maker->table_bits[index],
                                              .table_index = index},
                    maker->base_position);
    sg_write_payload(&maker->writer, maker->payload, sg_range_encoder_finish(&encoder));
}

/* Norms of `row_count` rows from `row`; both files have them after all codes. */
static size_t encode_norms(struct sg_patch_maker *maker, const struct sg_part *part, uint32_t row, uint32_t row_count,
                           uint8_t *out, size_t capacity) {
    const size_t row_bytes = row_codes_of(part) / 8 * sg_cq_code_bits(part->record.bits);
    const size_t at = row_bytes * part->record.row_count + (size_t)2 * part->record.group_count * row;
    const uint8_t *old_norms = maker->base.file + part->base_offset + at;
    const uint8_t *new_norms = maker->target.file + part->target_offset + at;
    struct sg_range_encoder encoder;
    uint32_t before = 0;
    sg_range_encoder_init(&encoder, out, capacity);
    for (size_t i = 0; i < (size_t)part->record.group_count * row_count; i++) {
        struct sg_number_model *model = &maker->models.norm[sg_size_context(before, SG_NORM_CONTEXTS)];
        before = sg_half_difference(sg_load_u16(old_norms + 2 * i), sg_load_u16(new_norms + 2 * i));
        sg_encode_signed(&encoder, model, before);
    }
    return sg_range_encoder_finish(&encoder);
}

/* One block into `payload`; returns its size, 0 if it does not fit. */
static size_t encode_block(struct sg_patch_maker *maker, const struct sg_part *part, uint32_t table_index,
                           uint32_t row, uint32_t row_count) {
    const uint32_t code_bits = sg_cq_code_bits(part->record.bits);
    const size_t row_codes = row_codes_of(part), row_bytes = row_codes / 8 * code_bits;
    const uint8_t *old_codes = maker->base.file + part->base_offset + row_bytes * row;
    const uint8_t *new_codes = maker->target.file + part->target_offset + row_bytes * row;
    const size_t room = sizeof maker->payload - 4;
    const size_t norm_bytes = encode_norms(maker, part, row, row_count, maker->payload + 4, room);
    if (norm_bytes > room)
        return 0;
    for (uint32_t k = 0; k < row_count; k++) {
        sg_unpack_codes(old_codes + k * row_bytes, code_bits, row_codes, maker->contexts + k * row_codes);
        sg_unpack_codes(new_codes + k * row_bytes, code_bits, row_codes, maker->row);
        for (size_t i = 0; i < row_codes; i++)
            maker->symbols[k * row_codes + i] = (uint8_t)maker->row[i];
    }
    sg_store_u32(maker->payload, (uint32_t)norm_bytes);
    const size_t code_bytes = sg_rans_encode(maker->tables[table_index].row, maker->contexts, maker->symbols,
                                             row_codes * row_count, maker->payload + 4 + norm_bytes,
                                             room - norm_bytes);
    return code_bytes ? 4 + norm_bytes + code_bytes : 0;
}

uint32_t sg_block_rows(const struct sg_part *part) {
    const uint32_t most_rows = (uint32_t)(SG_PATCH_BLOCK_CODES_MAX / row_codes_of(part));
    const uint32_t block_count = (part->record.row_count - 1) / most_rows + 1;
    return (part->record.row_count - 1) / block_count + 1;
}

static int write_blocks(struct sg_patch_maker *maker, const struct sg_part *part, uint32_t table_index) {
    const uint32_t block_rows = sg_block_rows(part);
    sg_write_fields(maker,
                    (struct sg_patch_segment){.kind = SG_SEGMENT_CQ,
                                              .coder = SG_CODER_UNGUIDED,
                                              .byte_count = part->byte_count,
                                              .row_count = part->record.row_count,
                                              .group_count = part->record.group_count,
                                              .bits = part->record.bits,
                                              .table_index = table_index,
                                              .block_rows = block_rows},
                    part->base_offset);
    for (uint32_t row = 0; row < part->record.row_count; row += block_rows) {
        const uint32_t left = part->record.row_count - row;
        const size_t size = encode_block(maker, part, table_index, row, left < block_rows ? left : block_rows);
        if (!size)
            return 0;
        sg_write_payload(&maker->writer, maker->payload, size);
    }
    return 1;
}

/* What a failed attempt at a part must leave as it was. */
struct checkpoint {
    struct sg_patch_writer writer;
    uint64_t base_position;
    uint8_t table_is_written[SG_PATCH_TABLE_COUNT];
    struct sg_guide_shape guide_shapes[SG_GUIDE_TABLE_COUNT];
};

static struct checkpoint save(struct sg_patch_maker *maker) {
    struct checkpoint checkpoint = {.writer = maker->writer, .base_position = maker->base_position};
    memcpy(checkpoint.table_is_written, maker->table_is_written, sizeof maker->table_is_written);
    memcpy(checkpoint.guide_shapes, maker->guide_shapes, sizeof maker->guide_shapes);
    maker->models_before = maker->models;
    return checkpoint;
}

static void restore(struct sg_patch_maker *maker, const struct checkpoint *before) {
    maker->writer = before->writer;
    maker->base_position = before->base_position;
    memcpy(maker->table_is_written, before->table_is_written, sizeof maker->table_is_written);
    for (uint32_t i = 0; i < SG_GUIDE_TABLE_COUNT; i++)
        if (memcmp(&maker->guide_shapes[i], &before->guide_shapes[i], sizeof maker->guide_shapes[i]) != 0)
            maker->guide_shapes[i].code_bits = 0; /* the rebuilder may still have the old one; neither is used */
    maker->models = maker->models_before;
}

/* Bytes that an attempt took, or SIZE_MAX if it failed. */
static size_t write_unguided(struct sg_patch_maker *maker, const struct sg_part *part) {
    const size_t before = maker->writer.byte_count;
    uint64_t cost = 0;
    const uint32_t table_index = cheapest_table(maker, part, &cost);
    if (table_index == SG_PATCH_TABLE_COUNT || cost >> 19 >= part->byte_count)
        return SIZE_MAX;
    write_table(maker, table_index);
    const int is_written = write_blocks(maker, part, table_index) && !maker->writer.is_full;
    return is_written ? maker->writer.byte_count - before : SIZE_MAX;
}

static size_t write_guided(struct sg_patch_maker *maker, const struct sg_part *part) {
    const size_t before = maker->writer.byte_count;
    const int is_written = sg_write_guided(maker, part) && !maker->writer.is_full;
    return is_written ? maker->writer.byte_count - before : SIZE_MAX;
}

/* Guided, unless unguided is as small; unguided, unless the bytes as they are would be as small. */
int sg_write_cq(struct sg_patch_maker *maker, const struct sg_part *part) {
    const struct checkpoint before = save(maker);
    const size_t unguided = write_unguided(maker, part);
    if (maker->effort || sg_settled_shift(maker, part)) {
        restore(maker, &before);
        const size_t guided = write_guided(maker, part);
        if (guided < unguided && guided < part->byte_count)
            return 1;
        restore(maker, &before);
        write_unguided(maker, part);
    }
    if (unguided <= part->byte_count)
        return 1;
    restore(maker, &before);
    return 0;
}
