/* The rANS decoder: the inner loop of a rebuild. See rans.h. */
#include "rans.h"

#include <string.h>

#include "cursor.h"

#if defined(__wasm_simd128__) && !defined(SG_SCALAR)
#include <wasm_simd128.h>
#endif

int sg_rans_decoder_init(struct sg_rans_decoder *decoder, const uint8_t *stream, size_t byte_count) {
    if (byte_count < SG_RANS_STATE_BYTES || byte_count % 2)
        return 0;
    for (uint32_t lane = 0; lane < SG_RANS_LANES; lane++) {
        decoder->state[lane] = sg_load_u32(stream + 4 * lane);
        if (decoder->state[lane] < SG_RANS_LOW)
            return 0;
    }
    decoder->next = stream + SG_RANS_STATE_BYTES;
    decoder->end = stream + byte_count;
    return 1;
}

/* How many symbols end at or before `slot`: the symbol that owns it. */
static inline uint32_t find_symbol(const struct sg_rans_row *row, uint32_t slot) {
#if defined(__wasm_simd128__) && !defined(SG_SCALAR)
    const v128_t wanted = wasm_i16x8_splat((int16_t)slot);
    const v128_t low = wasm_i16x8_le(wasm_v128_load(row->end + 1), wanted);
    const v128_t high = wasm_i16x8_le(wasm_v128_load(row->end + 9), wanted);
    return (uint32_t)__builtin_popcount(wasm_i8x16_bitmask(wasm_i8x16_narrow_i16x8(low, high)));
#else
    uint32_t symbol = 0;
    for (uint32_t i = 1; i <= SG_RANS_SYMBOLS; i++)
        symbol += row->end[i] <= slot;
    return symbol;
#endif
}

int sg_rans_decode(struct sg_rans_decoder *decoder, const struct sg_rans_row *rows, const uint16_t *context,
                   size_t symbol_count, uint8_t *symbols) {
    uint32_t state[SG_RANS_LANES];
    memcpy(state, decoder->state, sizeof state);
    const uint8_t *next = decoder->next;
    for (size_t i = 0; i < symbol_count; i += SG_RANS_LANES) {
        if (next > decoder->end)
            return 0;
        for (uint32_t lane = 0; lane < SG_RANS_LANES; lane++) {
            const struct sg_rans_row *row = &rows[context[i + lane]];
            const uint32_t slot = state[lane] & (SG_RANS_ONE - 1);
            const uint32_t symbol = find_symbol(row, slot);
            const uint32_t start = row->end[symbol];
            const uint32_t x = (row->end[symbol + 1] - start) * (state[lane] >> SG_RANS_BITS) + slot - start;
            /* Without a branch: which lanes refill is as good as random. */
            const uint32_t is_low = x < SG_RANS_LOW;
            state[lane] = is_low ? x << 16 | sg_load_u16(next) : x;
            next += 2 * is_low;
            symbols[i + lane] = (uint8_t)symbol;
        }
    }
    memcpy(decoder->state, state, sizeof state);
    decoder->next = next;
    return next <= decoder->end;
}

int sg_rans_decoder_is_spent(const struct sg_rans_decoder *decoder) {
    uint32_t difference = 0;
    for (uint32_t lane = 0; lane < SG_RANS_LANES; lane++)
        difference |= decoder->state[lane] ^ SG_RANS_LOW;
    return !difference && decoder->next == decoder->end;
}

int sg_rans_row_from_frequencies(struct sg_rans_row *row, const uint32_t frequencies[SG_RANS_SYMBOLS]) {
    uint32_t end = 0;
    row->end[0] = 0;
    for (uint32_t s = 0; s < SG_RANS_SYMBOLS; s++) {
        if (frequencies[s] > SG_RANS_ONE - end)
            return 0;
        end += frequencies[s];
        row->end[s + 1] = (uint16_t)end;
    }
    return end == SG_RANS_ONE;
}
