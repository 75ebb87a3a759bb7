/* Adaptive models over the binary range coder: whole numbers and bytes.
 *
 * Owns: how a number becomes bits. Knows nothing of: what the numbers are.
 * A number is its bit length (a tree of 64), its next three bits (modelled per length) and the rest as they are. */
#ifndef SG_DELTA_MODELS_H
#define SG_DELTA_MODELS_H

#include "delta_range.h"

#define SG_NUMBER_LENGTHS 33u
#define SG_NUMBER_MODELLED_BITS 3u

struct sg_number_model {
    struct sg_bit length[64];
    struct sg_bit head[SG_NUMBER_LENGTHS][8];
    struct sg_bit sign;
};

struct sg_byte_model {
    struct sg_bit node[256];
};

/* Every `struct sg_bit` in a block of models set to even odds. */
static inline void sg_models_reset(void *models, size_t byte_count) {
    struct sg_bit *bits = models;
    for (size_t i = 0; i < byte_count / sizeof *bits; i++)
        bits[i] = SG_BIT_EVEN;
}

static inline uint32_t sg_bit_length(uint32_t value) { return value ? 32u - (uint32_t)__builtin_clz(value) : 0; }

static inline uint32_t sg_decode_tree(struct sg_range_decoder *decoder, struct sg_bit *nodes, uint32_t depth) {
    uint32_t node = 1;
    for (uint32_t i = 0; i < depth; i++)
        node = node << 1 | sg_range_decode(decoder, &nodes[node]);
    return node - (1u << depth);
}

static inline void sg_encode_tree(struct sg_range_encoder *encoder, struct sg_bit *nodes, uint32_t depth,
                                  uint32_t value) {
    uint32_t node = 1;
    while (depth--) {
        const uint32_t bit = value >> depth & 1;
        sg_range_encode(encoder, &nodes[node], bit);
        node = node << 1 | bit;
    }
}

/* Any 32-bit number. A length above 32 cannot be a number: it reads as 0 and marks the stream as overrun. */
static inline uint32_t sg_decode_number(struct sg_range_decoder *decoder, struct sg_number_model *model) {
    const uint32_t length = sg_decode_tree(decoder, model->length, 6);
    if (length >= SG_NUMBER_LENGTHS) {
        decoder->past_end = UINT32_MAX / 2;
        return 0;
    }
    if (length < 2)
        return length;
    const uint32_t below = length - 1;
    const uint32_t modelled = below < SG_NUMBER_MODELLED_BITS ? below : SG_NUMBER_MODELLED_BITS;
    const uint32_t head = sg_decode_tree(decoder, model->head[length], modelled) | 1u << modelled;
    return head << (below - modelled) | sg_range_decode_even(decoder, below - modelled);
}

static inline void sg_encode_number(struct sg_range_encoder *encoder, struct sg_number_model *model, uint32_t value) {
    const uint32_t length = sg_bit_length(value);
    sg_encode_tree(encoder, model->length, 6, length);
    if (length < 2)
        return;
    const uint32_t below = length - 1;
    const uint32_t modelled = below < SG_NUMBER_MODELLED_BITS ? below : SG_NUMBER_MODELLED_BITS;
    sg_encode_tree(encoder, model->head[length], modelled, (value >> (below - modelled)) & ((1u << modelled) - 1));
    sg_range_encode_even(encoder, value & ((1u << (below - modelled)) - 1), below - modelled);
}

/* A number with a sign, as two's complement in 32 bits. */
static inline uint32_t sg_decode_signed(struct sg_range_decoder *decoder, struct sg_number_model *model) {
    const uint32_t size = sg_decode_number(decoder, model);
    return size && sg_range_decode(decoder, &model->sign) ? 0u - size : size;
}

static inline void sg_encode_signed(struct sg_range_encoder *encoder, struct sg_number_model *model, uint32_t value) {
    const uint32_t is_negative = value >> 31;
    const uint32_t size = is_negative ? 0u - value : value;
    sg_encode_number(encoder, model, size);
    if (size)
        sg_range_encode(encoder, &model->sign, is_negative);
}

/* Entries of P and Q: signed, of known spread. A class stands for a spread of 2^(class / 3) / 4. Signs are even. */
#define SG_SIDE_CLASSES 32u
#define SG_SIDE_CLASS_NONE 31u /* all entries are zero and none is coded */
#define SG_SIDE_LENGTHS 16u
struct sg_side_model {
    struct sg_bit length[SG_SIDE_LENGTHS];
    struct sg_bit head[SG_SIDE_LENGTHS][1u << SG_NUMBER_MODELLED_BITS];
};

static inline int32_t sg_decode_side(struct sg_range_decoder *decoder, struct sg_side_model *model) {
    const uint32_t length = sg_decode_tree(decoder, model->length, 4);
    uint32_t size = length;
    if (!length)
        return 0;
    if (length > 1) {
        const uint32_t below = length - 1;
        const uint32_t modelled = below < SG_NUMBER_MODELLED_BITS ? below : SG_NUMBER_MODELLED_BITS;
        const uint32_t head = sg_decode_tree(decoder, model->head[length], modelled) | 1u << modelled;
        size = head << (below - modelled) | sg_range_decode_even(decoder, below - modelled);
    }
    return sg_range_decode_even(decoder, 1) ? -(int32_t)size : (int32_t)size;
}

static inline void sg_encode_side(struct sg_range_encoder *encoder, struct sg_side_model *model, int32_t value) {
    const uint32_t size = (uint32_t)(value < 0 ? -value : value), length = sg_bit_length(size);
    sg_encode_tree(encoder, model->length, 4, length);
    if (!length)
        return;
    if (length > 1) {
        const uint32_t below = length - 1;
        const uint32_t modelled = below < SG_NUMBER_MODELLED_BITS ? below : SG_NUMBER_MODELLED_BITS;
        const uint32_t rest = below - modelled;
        sg_encode_tree(encoder, model->head[length], modelled, (size >> rest) & ((1u << modelled) - 1));
        sg_range_encode_even(encoder, size & ((1u << rest) - 1), rest);
    }
    sg_range_encode_even(encoder, value < 0, 1);
}

#endif
