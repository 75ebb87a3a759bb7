/* What maker and rebuilder keep in step through a whole patch: the adaptive models and the live tables.
 *
 * Owns: the models' contexts. Knows nothing of: segments, streams. */
#ifndef SG_DELTA_STATE_H
#define SG_DELTA_STATE_H

#include "cursor.h"
#include "delta_models.h"
#include "patch_format.h"
#include "rans.h"

#define SG_NORM_CONTEXTS 10u
#define SG_TABLE_CONTEXTS 8u
#define SG_WORDS_PERIOD 11u /* words in a directory record */

/* Nothing but `struct sg_bit`, so that one loop resets all. They learn from the first segment to the last. */
struct sg_delta_models {
    struct sg_number_model norm[SG_NORM_CONTEXTS];  /* by the bit length of the norm difference before */
    struct sg_number_model half[SG_NORM_CONTEXTS];  /* the same, for 16-bit floats outside of CQ tensors */
    struct sg_number_model guided_norm[SG_NORM_CONTEXTS]; /* as norm, for differences to a prediction */
    struct sg_number_model level;                   /* differences of neighbouring levels */
    struct sg_number_model mix;                     /* of a component in a basis */
    struct sg_bit gain_exponent[16], gain_mantissa[8]; /* of a component */
    struct sg_bit side_class[2 * SG_SIDE_CLASSES];
    struct sg_side_model q[SG_SIDE_CLASSES];
    struct sg_side_model p[SG_SIDE_CLASSES][3];     /* by how large the row is so far */
    struct sg_number_model word;
    struct sg_bit word_is_repeat[2];                /* by whether the word before was */
    struct sg_number_model frequency[SG_TABLE_CONTEXTS]; /* by the distance of new code and old code */
    struct sg_bit row_is_used;
    struct sg_byte_model byte[256];                 /* by the byte before */
};

/* One table: a row of frequencies for each code of the base. */
struct sg_code_table {
    struct sg_rans_row row[SG_RANS_SYMBOLS];
    uint32_t alphabet; /* 2, 4, 8 or 16; 0 while the table is not set */
};

/* Distance of two 16-bit patterns and back, modulo 2^16, as a 32-bit two's complement in [-32768, 32767]. */
static inline uint32_t sg_half_difference(uint32_t from, uint32_t to) {
    const uint32_t difference = (to - from) & 0xffff;
    return difference < 0x8000 ? difference : difference - 0x10000u;
}

static inline uint32_t sg_size_context(uint32_t difference, uint32_t context_count) {
    const uint32_t length = sg_bit_length(difference >> 31 ? 0u - difference : difference);
    return length < context_count ? length : context_count - 1;
}

/* Mean size of an entry of a class, in 1/16: 0.8 of its spread. */
static const uint16_t sg_side_typical[SG_SIDE_CLASSES] = {3,  4,  5,  6,  8,  10,  13,  16,  20,  26,  32,
                                                          41, 51, 64, 81, 102, 128, 161, 203, 256, 323, 406,
                                                          512, 645, 813, 1024, 1290, 1625, 2048, 2580, 3251, 4096};

/* 0, 1 or 2: the row's entries so far are smaller than, about or larger than their classes say. */
static inline uint32_t sg_side_row_context(uint32_t size_sum, uint32_t typical_sum) {
    return size_sum * 24 < typical_sum ? 0 : size_sum * 12 > typical_sum ? 2 : 1;
}

static inline uint32_t sg_table_context(uint32_t old_code, uint32_t new_code) {
    const uint32_t distance = old_code < new_code ? new_code - old_code : old_code - new_code;
    return distance < SG_TABLE_CONTEXTS ? distance : SG_TABLE_CONTEXTS - 1;
}

static inline void sg_store_u16(uint8_t *bytes, uint32_t value) {
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}
static inline void sg_store_u32(uint8_t *bytes, uint32_t value) {
    sg_store_u16(bytes, value & 0xffff);
    sg_store_u16(bytes + 2, value >> 16);
}
static inline void sg_store_u64(uint8_t *bytes, uint64_t value) {
    sg_store_u32(bytes, (uint32_t)value);
    sg_store_u32(bytes + 4, (uint32_t)(value >> 32));
}

/* log2 in 1/65536, rounded down; 0 for 0. */
static inline uint32_t sg_log2_fixed(uint32_t value) {
    if (!value)
        return 0;
    const uint32_t whole = sg_bit_length(value) - 1;
    uint64_t mantissa = (uint64_t)value << (31 - whole); /* in [2^31, 2^32): 1.x with 31 bits */
    uint32_t result = whole;
    for (int i = 0; i < 16; i++) {
        mantissa = mantissa * mantissa >> 31;
        const uint32_t bit = (uint32_t)(mantissa >> 32);
        mantissa >>= bit;
        result = result << 1 | bit;
    }
    return result;
}

/* `code_count` (a multiple of 8) codes of `code_bits` (1 to 4) each from a row's bit stream, lowest bits first. */
static inline void sg_unpack_codes(const uint8_t *packed, uint32_t code_bits, size_t code_count, uint16_t *codes) {
    if (code_bits == 4) {
        for (size_t i = 0; i < code_count / 2; i++) {
            codes[2 * i] = packed[i] & 15;
            codes[2 * i + 1] = packed[i] >> 4;
        }
        return;
    }
    const uint32_t mask = (1u << code_bits) - 1;
    for (size_t i = 0; i < code_count; i += 8, packed += code_bits) {
        uint32_t eight = 0;
        for (uint32_t byte = 0; byte < code_bits; byte++)
            eight |= (uint32_t)packed[byte] << 8 * byte;
        for (uint32_t k = 0; k < 8; k++, eight >>= code_bits)
            codes[i + k] = (uint16_t)(eight & mask);
    }
}

static inline void sg_pack_codes(const uint8_t *codes, uint32_t code_bits, size_t code_count, uint8_t *packed) {
    if (code_bits == 4) {
        for (size_t i = 0; i < code_count / 2; i++)
            packed[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
        return;
    }
    for (size_t i = 0; i < code_count; i += 8, packed += code_bits) {
        uint32_t eight = 0;
        for (uint32_t k = 8; k-- > 0;)
            eight = eight << code_bits | codes[i + k];
        for (uint32_t byte = 0; byte < code_bits; byte++)
            packed[byte] = (uint8_t)(eight >> 8 * byte);
    }
}

#endif
