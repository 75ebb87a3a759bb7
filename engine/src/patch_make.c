/* The patch maker: two containers in, the segments of docs/formats/patch.md out.
 *
 * Owns: what is copied, what is literal, and the frame (header, trailer). Knows nothing of: how CQ is coded
 * (patch_cq.c). Same inputs, same bytes: every decision is made in integers. */
#include <string.h>

#include "patch_write.h"

/* A stored literal costs this beside its bytes: fields and their size, payload size. */
#define LITERAL_OVERHEAD_BYTES 24u

size_t sg_patch_bound(size_t base_bytes, size_t target_bytes) {
    (void)base_bytes;
    return SG_PATCH_HEADER_BYTES + SG_PATCH_TRAILER_BYTES + target_bytes +
           LITERAL_OVERHEAD_BYTES * (target_bytes / SG_PATCH_PIECE_MAX + 1);
}

size_t sg_patch_maker_size(size_t base_bytes, size_t target_bytes) {
    const size_t base_records = base_bytes / SG_RECORD_BYTES, target_records = target_bytes / SG_RECORD_BYTES;
    const size_t bounded_base = base_records < SG_RECORDS_MAX ? base_records : SG_RECORDS_MAX;
    const size_t bounded_target = target_records < SG_RECORDS_MAX ? target_records : SG_RECORDS_MAX;
    return sizeof(struct sg_patch_maker) + sizeof(uint32_t) * (bounded_target + 2 * (bounded_base + 1));
}

static void put(struct sg_patch_writer *writer, const void *bytes, size_t byte_count) {
    if (writer->is_full || byte_count > writer->capacity - writer->byte_count) {
        writer->is_full = 1;
        return;
    }
    memcpy(writer->out + writer->byte_count, bytes, byte_count);
    writer->byte_count += byte_count;
}

static uint8_t *append_number(uint8_t *next, uint64_t value) {
    for (; value > 127; value >>= 7)
        *next++ = (uint8_t)(value & 127) | 128;
    *next++ = (uint8_t)value;
    return next;
}

void sg_write_fields(struct sg_patch_maker *maker, struct sg_patch_segment segment, uint64_t base_offset) {
    uint8_t fields[1 + SG_PATCH_FIELDS_MAX], *next = fields + 1;
    *next++ = segment.kind;
    *next++ = segment.coder;
    next = append_number(next, base_offset - maker->base_position);
    next = append_number(next, segment.byte_count);
    if (segment.kind == SG_SEGMENT_CQ) {
        next = append_number(next, segment.row_count);
        next = append_number(next, segment.group_count);
        next = append_number(next, segment.block_rows);
    }
    if (segment.kind == SG_SEGMENT_CQ || segment.kind == SG_SEGMENT_TABLE) {
        *next++ = (uint8_t)segment.bits;
        *next++ = (uint8_t)segment.table_index;
    }
    if (segment.kind == SG_SEGMENT_CQ && segment.coder != SG_CODER_UNGUIDED) {
        *next++ = (uint8_t)segment.rank;
        *next++ = (uint8_t)segment.pre_shift;
    }
    if (segment.kind == SG_SEGMENT_CQ && sg_coder_is_seeded(segment.coder)) {
        next = append_number(next, segment.basis.seed);
        *next++ = (uint8_t)segment.basis.group;
        *next++ = (uint8_t)segment.basis.layer;
        next = append_number(next, segment.basis.width);
        *next++ = (uint8_t)segment.basis.rank;
    }
    if (segment.kind == SG_SEGMENT_CQ && sg_coder_is_predicted(segment.coder))
        next = append_number(next, segment.boost);
    if (segment.kind == SG_SEGMENT_TABLE && segment.coder != SG_CODER_UNGUIDED) {
        *next++ = (uint8_t)segment.noise;
        *next++ = (uint8_t)segment.bucket_shift;
        *next++ = (uint8_t)segment.floor;
    }
    if (segment.kind == SG_SEGMENT_TABLE && segment.coder == SG_CODER_NARROWED)
        *next++ = (uint8_t)segment.width;
    fields[0] = (uint8_t)(next - fields - 1);
    put(&maker->writer, fields, (size_t)(next - fields));
    maker->writer.segment_count++;
    maker->base_position = base_offset + (segment.kind == SG_SEGMENT_LITERAL ? 0 : segment.byte_count);
}

void sg_write_payload(struct sg_patch_writer *writer, const uint8_t *payload, size_t byte_count) {
    uint8_t size[4];
    sg_store_u32(size, (uint32_t)byte_count);
    put(writer, size, sizeof size);
    put(writer, payload, byte_count);
}

static void encode_bytes(struct sg_patch_maker *maker, struct sg_range_encoder *encoder, const uint8_t *target,
                         size_t byte_count) {
    uint32_t before = 0;
    for (size_t i = 0; i < byte_count; before = target[i++])
        sg_encode_tree(encoder, maker->models.byte[before].node, 8, target[i]);
}

static void encode_words(struct sg_patch_maker *maker, struct sg_range_encoder *encoder, const uint8_t *base,
                         const uint8_t *target, size_t byte_count) {
    uint32_t recent[SG_WORDS_PERIOD] = {0}, was_repeat = 1;
    for (size_t i = 0; i < byte_count / 4; i++) {
        uint32_t *before = &recent[i % SG_WORDS_PERIOD];
        const uint32_t difference = sg_load_u32(target + 4 * i) - sg_load_u32(base + 4 * i);
        const uint32_t is_repeat = difference == *before;
        sg_range_encode(encoder, &maker->models.word_is_repeat[was_repeat], is_repeat);
        if (!is_repeat)
            sg_encode_signed(encoder, &maker->models.word, difference);
        *before = difference;
        was_repeat = is_repeat;
    }
}

static void encode_halves(struct sg_patch_maker *maker, struct sg_range_encoder *encoder, const uint8_t *base,
                          const uint8_t *target, size_t byte_count) {
    uint32_t before = 0;
    for (size_t i = 0; i < byte_count / 2; i++) {
        struct sg_number_model *model = &maker->models.half[sg_size_context(before, SG_NORM_CONTEXTS)];
        before = sg_half_difference(sg_load_u16(base + 2 * i), sg_load_u16(target + 2 * i));
        sg_encode_signed(encoder, model, before);
    }
}

/* One segment of at most SG_PATCH_PIECE_MAX target bytes; a part that its coder would not shrink is stored. */
static void write_piece(struct sg_patch_maker *maker, uint8_t kind, uint64_t base_offset, const uint8_t *target,
                        size_t byte_count) {
    const uint8_t *base = maker->base.file + base_offset;
    struct sg_patch_segment segment = {.kind = kind, .coder = SG_CODER_MODELLED, .byte_count = byte_count};
    struct sg_range_encoder encoder;
    maker->models_before = maker->models;
    sg_range_encoder_init(&encoder, maker->payload, sizeof maker->payload);
    if (kind == SG_SEGMENT_LITERAL)
        encode_bytes(maker, &encoder, target, byte_count);
    else if (kind == SG_SEGMENT_WORDS)
        encode_words(maker, &encoder, base, target, byte_count);
    else
        encode_halves(maker, &encoder, base, target, byte_count);
    const size_t size = sg_range_encoder_finish(&encoder);
    if (size < byte_count) {
        sg_write_fields(maker, segment, kind == SG_SEGMENT_LITERAL ? maker->base_position : base_offset);
        sg_write_payload(&maker->writer, maker->payload, size);
        return;
    }
    maker->models = maker->models_before;
    segment.kind = SG_SEGMENT_LITERAL;
    segment.coder = SG_CODER_STORED;
    sg_write_fields(maker, segment, maker->base_position);
    sg_write_payload(&maker->writer, target, byte_count);
}

static void write_pieces(struct sg_patch_maker *maker, const struct sg_part *part) {
    for (uint64_t done = 0; done < part->byte_count; done += SG_PATCH_PIECE_MAX) {
        const uint64_t left = part->byte_count - done;
        write_piece(maker, part->kind, part->base_offset + done, maker->target.file + part->target_offset + done,
                    left < SG_PATCH_PIECE_MAX ? (size_t)left : SG_PATCH_PIECE_MAX);
    }
}

static void flush_pending(struct sg_patch_maker *maker) {
    const struct sg_part *pending = &maker->pending;
    if (pending->byte_count && pending->kind == SG_SEGMENT_COPY)
        sg_write_fields(maker,
                        (struct sg_patch_segment){.kind = SG_SEGMENT_COPY,
                                                  .coder = SG_CODER_STORED,
                                                  .byte_count = pending->byte_count},
                        pending->base_offset);
    else if (pending->byte_count)
        write_pieces(maker, pending);
    maker->pending.byte_count = 0;
}

static int is_equal(const struct sg_patch_maker *maker, const struct sg_part *part) {
    return part->has_base && memcmp(maker->base.file + part->base_offset, maker->target.file + part->target_offset,
                                    (size_t)part->byte_count) == 0;
}

/* Copies and literals grow over neighbouring parts; anything else is written at once. */
static void write_part(struct sg_patch_maker *maker, struct sg_part part) {
    const struct sg_part *pending = &maker->pending;
    if (is_equal(maker, &part))
        part.kind = SG_SEGMENT_COPY;
    else if (part.kind == SG_SEGMENT_CQ) {
        flush_pending(maker);
        if (sg_write_cq(maker, &part))
            return;
        part.kind = SG_SEGMENT_LITERAL;
    }
    if (part.kind == SG_SEGMENT_WORDS || part.kind == SG_SEGMENT_HALVES) {
        flush_pending(maker);
        write_pieces(maker, &part);
        return;
    }
    const int is_literal = part.kind == SG_SEGMENT_LITERAL;
    if (pending->byte_count && pending->kind == part.kind &&
        (is_literal || pending->base_offset + pending->byte_count == part.base_offset)) {
        maker->pending.byte_count += part.byte_count;
        return;
    }
    flush_pending(maker);
    maker->pending = part;
}

static void write_header(struct sg_patch_maker *maker, uint8_t *header) {
    struct sg_sha256 hash;
    uint8_t digest[32];
    memcpy(header, sg_patch_magic, sizeof sg_patch_magic);
    sg_store_u16(header + 8, SG_PATCH_VERSION);
    sg_store_u16(header + 10, 0);
    sg_store_u32(header + 12, maker->target.tag);
    sg_store_u64(header + 16, maker->base.file_bytes);
    sg_store_u64(header + 24, maker->target.file_bytes);
    sg_sha256_init(&hash);
    sg_sha256_update(&hash, maker->base.file, maker->base.file_bytes);
    sg_sha256_final(&hash, header + 32);
    sg_sha256_init(&hash);
    sg_sha256_update(&hash, maker->target.file, maker->target.file_bytes);
    sg_sha256_final(&hash, header + 64);
    sg_store_u32(header + 96, maker->writer.segment_count);
    sg_sha256_init(&hash);
    sg_sha256_update(&hash, header, SG_PATCH_HEADER_CHECKED_BYTES);
    sg_sha256_final(&hash, digest);
    memcpy(header + SG_PATCH_HEADER_CHECKED_BYTES, digest, SG_PATCH_HEADER_BYTES - SG_PATCH_HEADER_CHECKED_BYTES);
}

static void write_trailer(struct sg_patch_writer *writer) {
    struct sg_sha256 hash;
    uint8_t digest[32];
    sg_sha256_init(&hash);
    sg_sha256_update(&hash, writer->out, writer->byte_count);
    sg_sha256_final(&hash, digest);
    put(writer, digest, SG_PATCH_TRAILER_BYTES);
}

/* Everything stored: what a pair that has nothing in common comes down to. It fits sg_patch_bound. */
static void store_everything(struct sg_patch_maker *maker) {
    maker->writer.byte_count = SG_PATCH_HEADER_BYTES;
    maker->writer.segment_count = 0;
    maker->writer.is_full = 0;
    maker->base_position = 0;
    for (size_t done = 0; done < maker->target.file_bytes; done += SG_PATCH_PIECE_MAX) {
        const size_t left = maker->target.file_bytes - done;
        const size_t size = left < SG_PATCH_PIECE_MAX ? left : SG_PATCH_PIECE_MAX;
        sg_write_fields(maker,
                        (struct sg_patch_segment){.kind = SG_SEGMENT_LITERAL,
                                                  .coder = SG_CODER_STORED,
                                                  .byte_count = size},
                        0);
        sg_write_payload(&maker->writer, maker->target.file + done, size);
    }
}

static void count_all_codes(struct sg_patch_maker *maker) {
    struct sg_parts parts;
    struct sg_part part;
    sg_parts_begin(&parts, &maker->base, &maker->target, maker->match_and_scores);
    while (sg_parts_next(&parts, &part))
        if (part.kind == SG_SEGMENT_CQ && !is_equal(maker, &part))
            sg_count_codes(maker, &part);
}

static int check_arguments(size_t maker_bytes, const struct sg_patch_options *options, size_t base_bytes,
                           size_t target_bytes, size_t out_capacity, struct sg_error *error) {
    const size_t size = sg_patch_maker_size(base_bytes, target_bytes);
    const size_t bound = sg_patch_bound(base_bytes, target_bytes);
    if (options->effort > SG_PATCH_EFFORT_MAX)
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "options.effort", 0, options->effort, SG_PATCH_EFFORT_MAX);
    if (!sg_shifts_are_sound(options->shifts, options->shift_bytes))
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "options.shifts", 0, options->shift_bytes, 0);
    if (maker_bytes < size)
        return sg_fail(error, SG_STATUS_BUFFER_TOO_SMALL, "maker_bytes", 0, maker_bytes, size);
    if (out_capacity < bound)
        return sg_fail(error, SG_STATUS_BUFFER_TOO_SMALL, "out_capacity", 0, out_capacity, bound);
    return SG_STATUS_OK;
}

int sg_patch_begin(struct sg_patch_maker *maker, size_t maker_bytes, const struct sg_patch_options *options,
                   const uint8_t *base, size_t base_bytes, const uint8_t *target, size_t target_bytes, uint8_t *out,
                   size_t out_capacity, struct sg_error *error) {
    int status = check_arguments(maker_bytes, options, base_bytes, target_bytes, out_capacity, error);
    if (status != SG_STATUS_OK)
        return status;
    memset(maker, 0, offsetof(struct sg_patch_maker, models));
    maker->is_over = 1; /* a step after a failure is refused */
    status = sg_container_open(&maker->base, base, base_bytes, error);
    if (status == SG_STATUS_OK)
        status = sg_container_open(&maker->target, target, target_bytes, error);
    if (status != SG_STATUS_OK)
        return status;
    maker->writer = (struct sg_patch_writer){
        .out = out,
        .capacity = sg_patch_bound(base_bytes, target_bytes) - SG_PATCH_TRAILER_BYTES,
        .byte_count = SG_PATCH_HEADER_BYTES};
    maker->fit = &maker->fit_memory;
    sg_fit_begin(maker->fit);
    maker->effort = options->effort;
    maker->shifts = options->shifts;
    maker->shift_bytes = options->shift_bytes;
    maker->hint.seed = options->adapter_seed;
    sg_models_reset(&maker->models, sizeof maker->models);
    uint32_t *match = maker->match_and_scores;
    sg_match_records(&maker->base, &maker->target, match, maker->cells, match + maker->target.record_count);
    count_all_codes(maker);
    sg_fit_tables(maker);
    sg_parts_begin(&maker->parts, &maker->base, &maker->target, match);
    maker->is_over = 0;
    return SG_STATUS_OK;
}

static void finish(struct sg_patch_maker *maker) {
    flush_pending(maker);
    if (maker->writer.is_full)
        store_everything(maker);
    write_header(maker, maker->writer.out);
    maker->writer.capacity += SG_PATCH_TRAILER_BYTES;
    write_trailer(&maker->writer);
    maker->done_bytes = maker->target.file_bytes;
    maker->is_over = 1;
}

int sg_patch_step(struct sg_patch_maker *maker, struct sg_error *error) {
    struct sg_part part;
    if (maker->is_over)
        return sg_fail(error, SG_STATUS_BAD_STATE, "patch", 0, 0, 0);
    if (maker->writer.is_full || !sg_parts_next(&maker->parts, &part)) {
        finish(maker);
        return SG_STATUS_DONE;
    }
    write_part(maker, part);
    maker->done_bytes = maker->parts.target_end - maker->pending.byte_count;
    return SG_STATUS_OK;
}

uint64_t sg_patch_done(const struct sg_patch_maker *maker) { return maker->done_bytes; }

size_t sg_patch_bytes(const struct sg_patch_maker *maker) { return maker->writer.byte_count; }
