/* UTF-8, one byte at a time: which bytes may follow which (Unicode 15, table 3-7). */
#ifndef SG_UTF8_H
#define SG_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of the character that a lead byte starts; 0 for a byte that starts none. */
static inline uint32_t sg_utf8_need(uint8_t lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0;
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) return 3;
    return lead < 0xf5 ? 4 : 0;
}

/* Whether `byte` may stand at `place` (1, 2 or 3) of a character that starts with `lead`. The second byte excludes
 * overlong forms, surrogates and what lies above U+10FFFF. */
static inline bool sg_utf8_continues(uint8_t lead, uint32_t place, uint8_t byte) {
    uint8_t low = 0x80, high = 0xbf;
    if (place == 1) {
        if (lead == 0xe0) low = 0xa0;
        if (lead == 0xed) high = 0x9f;
        if (lead == 0xf0) low = 0x90;
        if (lead == 0xf4) high = 0x8f;
    }
    return byte >= low && byte <= high;
}

/* The bits of a character that its lead byte holds. */
static inline uint32_t sg_utf8_lead_bits(uint8_t lead) {
    const uint32_t need = sg_utf8_need(lead);
    return need > 1 ? lead & 0x7fu >> need : lead;
}

/* Writes a character of up to 4 bytes; returns how many. */
static inline uint32_t sg_utf8_put(uint32_t character, uint8_t *out) {
    if (character < 0x80) {
        out[0] = (uint8_t)character;
        return 1;
    }
    const uint32_t length = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (uint32_t i = length - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (character & 0x3f));
        character >>= 6;
    }
    out[0] = (uint8_t)((0xf00u >> length) | character);
    return length;
}

#endif
