/* Little-endian numbers out of bytes, with a cursor that cannot leave its range.
 *
 * Owns: every read of a number from file bytes. No struct is ever cast onto a file. */
#ifndef SG_CURSOR_H
#define SG_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Loads from a place that the caller has already checked; no alignment is needed. */
static inline uint16_t sg_load_u16(const uint8_t *at) {
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t sg_load_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t sg_load_u64(const uint8_t *at) {
    return (uint64_t)sg_load_u32(at) | (uint64_t)sg_load_u32(at + 4) << 32;
}

static inline float sg_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sg_bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Binary16 to binary32, exact, subnormals included. Infinity and NaN are not treated: files that hold them are
 * refused when they are opened. The product with 2^112 moves the exponent's bias, and renormalises subnormals. */
static inline float sg_float_of_half(uint16_t half) {
    const float magnitude = sg_float_of_bits((uint32_t)(half & 0x7fff) << 13) * 0x1p112f;
    return sg_float_of_bits(sg_bits_of_float(magnitude) | (uint32_t)(half & 0x8000) << 16);
}

/* Reads forward. A read past the end gives 0 and sets `overrun` for good, so that a caller may check once. */
struct sg_cursor {
    const uint8_t *bytes;
    size_t byte_count;
    size_t offset;
    bool overrun;
};

static inline struct sg_cursor sg_cursor_at(const uint8_t *bytes, size_t byte_count) {
    return (struct sg_cursor){.bytes = bytes, .byte_count = byte_count, .offset = 0, .overrun = false};
}

/* The next `count` bytes, or NULL. */
static inline const uint8_t *sg_take(struct sg_cursor *cursor, size_t count) {
    if (cursor->overrun || count > cursor->byte_count - cursor->offset) {
        cursor->overrun = true;
        return NULL;
    }
    const uint8_t *at = cursor->bytes + cursor->offset;
    cursor->offset += count;
    return at;
}

static inline uint8_t sg_take_u8(struct sg_cursor *cursor) {
    const uint8_t *at = sg_take(cursor, 1);
    return at ? at[0] : 0;
}

static inline uint16_t sg_take_u16(struct sg_cursor *cursor) {
    const uint8_t *at = sg_take(cursor, 2);
    return at ? sg_load_u16(at) : 0;
}

static inline uint32_t sg_take_u32(struct sg_cursor *cursor) {
    const uint8_t *at = sg_take(cursor, 4);
    return at ? sg_load_u32(at) : 0;
}

static inline uint64_t sg_take_u64(struct sg_cursor *cursor) {
    const uint8_t *at = sg_take(cursor, 8);
    return at ? sg_load_u64(at) : 0;
}

#endif
