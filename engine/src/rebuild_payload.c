/* A gathered payload becomes target bytes.
 *
 * Owns: the decoders of all kinds and coders. Knows nothing of: the stream around them (rebuild.c).
 * Source: docs/formats/patch.md, "Payloads". Fields were checked (rebuild_fields.c), so every count here is bounded. */
#include <string.h>

#include "rebuild.h"

static int corrupt(const struct sg_rebuild *rebuild, const char *field, struct sg_error *error) {
    return sg_fail(error, SG_STATUS_PATCH_CORRUPT, field, rebuild->patch_position, 0, 0);
}

static void decode_bytes(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder, uint8_t *target) {
    uint32_t before = 0;
    for (uint64_t i = 0; i < rebuild->segment.byte_count; i++)
        target[i] = (uint8_t)(before = sg_decode_tree(decoder, rebuild->models.byte[before].node, 8));
}

/* A directory whose offsets all moved by the same amount repeats one difference every 11 words. */
static void decode_words(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder, uint8_t *target) {
    struct sg_delta_models *models = &rebuild->models;
    uint32_t recent[SG_WORDS_PERIOD] = {0}, was_repeat = 1;
    for (uint64_t i = 0; i < rebuild->segment.byte_count / 4; i++) {
        uint32_t *before = &recent[i % SG_WORDS_PERIOD];
        was_repeat = sg_range_decode(decoder, &models->word_is_repeat[was_repeat]);
        if (!was_repeat)
            *before = sg_decode_signed(decoder, &models->word);
        sg_store_u32(target + 4 * i, sg_load_u32(target + 4 * i) + *before);
    }
}

/* `count` halves in place, each as a difference to what lies there. */
static void decode_halves(struct sg_number_model *models, uint32_t *before, struct sg_range_decoder *decoder,
                          uint8_t *target, size_t count) {
    for (size_t i = 0; i < count; i++) {
        *before = sg_decode_signed(decoder, &models[sg_size_context(*before, SG_NORM_CONTEXTS)]);
        sg_store_u16(target + 2 * i, (sg_load_u16(target + 2 * i) + *before) & 0xffff);
    }
}

static int decode_table(struct sg_rebuild *rebuild, struct sg_range_decoder *decoder, struct sg_error *error) {
    struct sg_code_table *table = &rebuild->tables[rebuild->segment.table_index];
    const uint32_t alphabet = 1u << rebuild->segment.bits;
    static const uint32_t no_counts[SG_RANS_SYMBOLS] = {0};
    table->alphabet = 0;
    for (uint32_t old_code = 0; old_code < alphabet; old_code++) {
        uint32_t frequency[SG_RANS_SYMBOLS] = {0};
        sg_rans_row_from_counts(&table->row[old_code], no_counts, alphabet);
        if (!sg_range_decode(decoder, &rebuild->models.row_is_used))
            continue;
        for (uint32_t new_code = 0; new_code < alphabet; new_code++)
            frequency[new_code] = sg_decode_number(
                decoder, &rebuild->models.frequency[sg_table_context(old_code, new_code)]);
        if (!sg_rans_row_from_frequencies(&table->row[old_code], frequency))
            return sg_fail(error, SG_STATUS_PATCH_BAD_TABLE, "table.frequency", rebuild->patch_position, old_code,
                           SG_RANS_ONE);
    }
    table->alphabet = alphabet;
    return SG_STATUS_OK;
}

static int decode_row(struct sg_rebuild *rebuild, struct sg_range_decoder *range, struct sg_rans_decoder *rans,
                      uint8_t *codes, uint8_t *norms, uint32_t *before) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    const uint32_t code_bits = sg_cq_code_bits(segment->bits);
    const size_t row_codes = (size_t)segment->group_count * SG_PATCH_GROUP_CODES;
    decode_halves(rebuild->models.norm, before, range, norms, segment->group_count);
    sg_unpack_codes(codes, code_bits, row_codes, rebuild->contexts);
    if (!sg_rans_decode(rans, rebuild->tables[segment->table_index].row, rebuild->contexts, row_codes,
                        rebuild->symbols))
        return 0;
    sg_pack_codes(rebuild->symbols, code_bits, row_codes, codes);
    return 1;
}

/* One block: the size of its range stream (P and norms), that stream, then the rANS stream with the codes. */
static int decode_cq_block(struct sg_rebuild *rebuild, uint32_t byte_count, struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    const uint32_t code_bits = sg_cq_code_bits(segment->bits);
    const size_t row_codes = (size_t)segment->group_count * SG_PATCH_GROUP_CODES;
    const size_t row_bytes = row_codes / 8 * code_bits;
    const uint32_t rows_left = segment->row_count - rebuild->row;
    const uint32_t last_row = rebuild->row + (rows_left < segment->block_rows ? rows_left : segment->block_rows);
    uint8_t *codes = rebuild->target + rebuild->target_position + row_bytes * rebuild->row;
    uint8_t *norms = rebuild->target + rebuild->target_position + row_bytes * segment->row_count +
                     (size_t)2 * segment->group_count * rebuild->row;
    struct sg_range_decoder range;
    struct sg_rans_decoder rans;
    const int is_predicted = sg_coder_is_predicted(segment->coder);
    uint32_t before = 0;
    if (byte_count < 4 || sg_load_u32(rebuild->payload) > byte_count - 4)
        return corrupt(rebuild, "block.norm_bytes", error);
    const uint32_t norm_bytes = sg_load_u32(rebuild->payload);
    sg_range_decoder_init(&range, rebuild->payload + 4, norm_bytes);
    if (is_predicted ? norm_bytes != byte_count - 4
                     : !sg_rans_decoder_init(&rans, rebuild->payload + 4 + norm_bytes, byte_count - 4 - norm_bytes))
        return corrupt(rebuild, "block.codes", error);
    for (; rebuild->row < last_row; rebuild->row++) {
        const int is_decoded = segment->coder != SG_CODER_UNGUIDED
                                   ? sg_rebuild_decode_guided_row(rebuild, &range, &rans, codes, norms, &before)
                                   : decode_row(rebuild, &range, &rans, codes, norms, &before);
        if (!is_decoded)
            return corrupt(rebuild, "block.codes", error);
        codes += row_bytes;
        norms += (size_t)2 * segment->group_count;
    }
    if (!sg_range_decoder_is_spent(&range))
        return corrupt(rebuild, "block.norms", error);
    if (!is_predicted && !sg_rans_decoder_is_spent(&rans))
        return corrupt(rebuild, "block.codes", error);
    return SG_STATUS_OK;
}

int sg_rebuild_decode_payload(struct sg_rebuild *rebuild, uint32_t byte_count, struct sg_error *error) {
    const struct sg_patch_segment *segment = &rebuild->segment;
    uint8_t *target = rebuild->target + rebuild->target_position;
    struct sg_range_decoder range;
    int status = SG_STATUS_OK;
    uint32_t before = 0;
    memset(rebuild->payload + byte_count, 0, SG_RANS_SLACK_BYTES);
    if (segment->kind == SG_SEGMENT_CQ && (segment->coder == SG_CODER_UNGUIDED || rebuild->has_side))
        return decode_cq_block(rebuild, byte_count, error);
    if (segment->coder == SG_CODER_STORED) {
        if (byte_count != segment->byte_count)
            return corrupt(rebuild, "segment.payload_size", error);
        memcpy(target, rebuild->payload, byte_count);
        return SG_STATUS_OK;
    }
    sg_range_decoder_init(&range, rebuild->payload, byte_count);
    if (segment->kind == SG_SEGMENT_LITERAL)
        decode_bytes(rebuild, &range, target);
    else if (segment->kind == SG_SEGMENT_WORDS)
        decode_words(rebuild, &range, target);
    else if (segment->kind == SG_SEGMENT_HALVES)
        decode_halves(rebuild->models.half, &before, &range, target, (size_t)segment->byte_count / 2);
    else if (segment->kind == SG_SEGMENT_CQ)
        status = sg_rebuild_decode_side(rebuild, &range, error);
    else if (segment->coder == SG_CODER_UNGUIDED)
        status = decode_table(rebuild, &range, error);
    else
        status = sg_rebuild_decode_guide_table(rebuild, &range, error);
    rebuild->has_side = segment->kind == SG_SEGMENT_CQ;
    if (status == SG_STATUS_OK && !sg_range_decoder_is_spent(&range))
        return corrupt(rebuild, "segment.payload", error);
    return status;
}
