/* The rANS encoder and the fit of its tables. See rans.h. */
#include <string.h>

#include "rans.h"

static inline void store_u16(uint8_t *bytes, uint32_t value) {
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

/* The words come out last first, so they are laid down from the buffer's end and moved to its start at last. */
size_t sg_rans_encode(const struct sg_rans_row *rows, const uint16_t *context, const uint8_t *symbols,
                      size_t symbol_count, uint8_t *out, size_t capacity) {
    uint32_t state[SG_RANS_LANES];
    uint8_t *next = out + capacity;
    if (capacity < SG_RANS_STATE_BYTES)
        return 0;
    for (uint32_t lane = 0; lane < SG_RANS_LANES; lane++)
        state[lane] = SG_RANS_LOW;
    for (size_t i = symbol_count; i-- > 0;) {
        const struct sg_rans_row *row = &rows[context[i]];
        const uint32_t start = row->end[symbols[i]], frequency = row->end[symbols[i] + 1] - start;
        uint32_t x = state[i % SG_RANS_LANES];
        if (x >= (uint64_t)frequency << (32 - SG_RANS_BITS)) {
            if ((size_t)(next - out) < SG_RANS_STATE_BYTES + 2)
                return 0;
            store_u16(next -= 2, x & 0xffff);
            x >>= 16;
        }
        state[i % SG_RANS_LANES] = (x / frequency << SG_RANS_BITS) + x % frequency + start;
    }
    const size_t word_bytes = (size_t)(out + capacity - next);
    memmove(out + SG_RANS_STATE_BYTES, next, word_bytes);
    for (uint32_t lane = 0; lane < SG_RANS_LANES; lane++) {
        store_u16(out + 4 * lane, state[lane] & 0xffff);
        store_u16(out + 4 * lane + 2, state[lane] >> 16);
    }
    return SG_RANS_STATE_BYTES + word_bytes;
}

/* Rounds down, but never below 1 for a symbol that occurs; the largest frequency takes the difference. */
void sg_rans_row_from_counts(struct sg_rans_row *row, const uint32_t counts[SG_RANS_SYMBOLS], uint32_t alphabet) {
    uint32_t frequency[SG_RANS_SYMBOLS] = {0};
    uint64_t total = 0;
    uint32_t sum = 0, largest = 0;
    for (uint32_t s = 0; s < SG_RANS_SYMBOLS; s++)
        total += counts[s];
    for (uint32_t s = 0; s < alphabet; s++) {
        frequency[s] = total ? (uint32_t)((uint64_t)counts[s] * SG_RANS_ONE / total) : SG_RANS_ONE / alphabet;
        frequency[s] += counts[s] && !frequency[s];
        sum += frequency[s];
        largest = frequency[s] > frequency[largest] ? s : largest;
    }
    /* At most 16 ones were added and at most 16 lost by rounding; the largest frequency is 1024 at least. */
    frequency[largest] = frequency[largest] + SG_RANS_ONE - sum;
    sg_rans_row_from_frequencies(row, frequency);
}
