/* An adaptive binary range coder, decoder and encoder, for all that is not a code: norms, literals, tables.
 *
 * Owns: the arithmetic. Knows nothing of: what a bit means (delta_models.h).
 * Source: the carry-propagating range coder of LZMA (Igor Pavlov, public domain), with two adaptation rates per bit
 * and without its first byte, which is always zero. Integers only: every machine decodes the same. */
#ifndef SG_DELTA_RANGE_H
#define SG_DELTA_RANGE_H

#include <stddef.h>
#include <stdint.h>

/* Probability that the next bit is 0, as two running means in 1/65536; they never reach 0 or 1. */
struct sg_bit {
    uint16_t fast, slow;
};

#define SG_BIT_FAST_SHIFT 4
#define SG_BIT_SLOW_SHIFT 7
#define SG_BIT_EVEN ((struct sg_bit){32768, 32768})

static inline uint32_t sg_bit_bound(struct sg_bit bit, uint32_t range) {
    return (range >> 12) * (((uint32_t)bit.fast + bit.slow) >> 5);
}

static inline void sg_bit_learn(struct sg_bit *bit, uint32_t value) {
    const uint32_t goal = value ? 0 : 65535;
    if (goal) {
        bit->fast = (uint16_t)(bit->fast + ((goal - bit->fast) >> SG_BIT_FAST_SHIFT));
        bit->slow = (uint16_t)(bit->slow + ((goal - bit->slow) >> SG_BIT_SLOW_SHIFT));
    } else {
        bit->fast = (uint16_t)(bit->fast - (bit->fast >> SG_BIT_FAST_SHIFT));
        bit->slow = (uint16_t)(bit->slow - (bit->slow >> SG_BIT_SLOW_SHIFT));
    }
}

/* ---- decoder ---- */
struct sg_range_decoder {
    const uint8_t *next, *end;
    uint32_t range, code;
    uint32_t past_end; /* bytes asked for after the end; they read as zero */
};

static inline uint32_t sg_range_next_byte(struct sg_range_decoder *decoder) {
    if (decoder->next < decoder->end)
        return *decoder->next++;
    decoder->past_end++;
    return 0;
}

static inline void sg_range_decoder_init(struct sg_range_decoder *decoder, const uint8_t *data, size_t byte_count) {
    *decoder = (struct sg_range_decoder){data, data + byte_count, UINT32_MAX, 0, 0};
    for (int i = 0; i < 4; i++)
        decoder->code = decoder->code << 8 | sg_range_next_byte(decoder);
}

static inline void sg_range_refill(struct sg_range_decoder *decoder) {
    while (decoder->range < 1u << 24) {
        decoder->range <<= 8;
        decoder->code = decoder->code << 8 | sg_range_next_byte(decoder);
    }
}

static inline uint32_t sg_range_decode(struct sg_range_decoder *decoder, struct sg_bit *bit) {
    const uint32_t bound = sg_bit_bound(*bit, decoder->range);
    const uint32_t value = decoder->code >= bound;
    if (value) {
        decoder->code -= bound;
        decoder->range -= bound;
    } else {
        decoder->range = bound;
    }
    sg_bit_learn(bit, value);
    sg_range_refill(decoder);
    return value;
}

/* `count` bits without a model, at most 32. */
static inline uint32_t sg_range_decode_even(struct sg_range_decoder *decoder, uint32_t count) {
    uint32_t value = 0;
    for (; count; count--) {
        decoder->range >>= 1;
        const uint32_t bit = decoder->code >= decoder->range;
        decoder->code -= bit ? decoder->range : 0;
        value = value << 1 | bit;
        sg_range_refill(decoder);
    }
    return value;
}

/* Whether exactly the stream's bytes were needed: trailing zeros are left out by the encoder, four at the most. */
static inline int sg_range_decoder_is_spent(const struct sg_range_decoder *decoder) {
    return decoder->next == decoder->end && decoder->past_end <= 4;
}

/* ---- encoder: bytes beyond `capacity` are counted, not written ---- */
struct sg_range_encoder {
    uint8_t *out;
    size_t capacity, byte_count;
    uint64_t low;
    uint32_t range;
    uint32_t pending_count; /* bytes that wait for a carry: `pending`, then 0xff each */
    uint8_t pending;
    uint8_t is_started;
};

static inline void sg_range_encoder_init(struct sg_range_encoder *encoder, uint8_t *out, size_t capacity) {
    *encoder = (struct sg_range_encoder){.out = out, .capacity = capacity, .range = UINT32_MAX};
}

static inline void sg_range_put_byte(struct sg_range_encoder *encoder, uint8_t byte) {
    if (encoder->byte_count < encoder->capacity)
        encoder->out[encoder->byte_count] = byte;
    encoder->byte_count++;
}

static inline void sg_range_shift(struct sg_range_encoder *encoder) {
    if (encoder->low < 0xff000000u || encoder->low > UINT32_MAX) {
        const uint8_t carry = (uint8_t)(encoder->low >> 32);
        if (encoder->is_started)
            sg_range_put_byte(encoder, (uint8_t)(encoder->pending + carry));
        for (; encoder->pending_count; encoder->pending_count--)
            sg_range_put_byte(encoder, (uint8_t)(0xff + carry));
        encoder->pending = (uint8_t)(encoder->low >> 24);
        encoder->is_started = 1;
    } else {
        encoder->pending_count++;
    }
    encoder->low = (encoder->low & 0x00ffffffu) << 8;
}

static inline void sg_range_encode(struct sg_range_encoder *encoder, struct sg_bit *bit, uint32_t value) {
    const uint32_t bound = sg_bit_bound(*bit, encoder->range);
    if (value) {
        encoder->low += bound;
        encoder->range -= bound;
    } else {
        encoder->range = bound;
    }
    sg_bit_learn(bit, value);
    for (; encoder->range < 1u << 24; encoder->range <<= 8)
        sg_range_shift(encoder);
}

static inline void sg_range_encode_even(struct sg_range_encoder *encoder, uint32_t value, uint32_t count) {
    while (count--) {
        encoder->range >>= 1;
        encoder->low += (value >> count & 1) ? encoder->range : 0;
        for (; encoder->range < 1u << 24; encoder->range <<= 8)
            sg_range_shift(encoder);
    }
}

/* Ends the stream with the fewest bytes: the value in [low, low + range) with the most trailing zeros, and those cut
 * off. Returns the stream's size; it was written whole only if that is within the capacity. */
static inline size_t sg_range_encoder_finish(struct sg_range_encoder *encoder) {
    const uint64_t last = encoder->low + encoder->range - 1;
    uint32_t free_bits = 0;
    while (free_bits < 32 && (last >> (free_bits + 1) << (free_bits + 1)) >= encoder->low)
        free_bits++;
    encoder->low = last >> free_bits << free_bits;
    for (int i = 0; i < 5; i++)
        sg_range_shift(encoder);
    for (int i = 0; i < 4 && encoder->byte_count && encoder->byte_count <= encoder->capacity &&
                    encoder->out[encoder->byte_count - 1] == 0;
         i++)
        encoder->byte_count--;
    return encoder->byte_count;
}

#endif
