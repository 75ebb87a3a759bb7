/* Sixteen interleaved range variants of asymmetric numeral systems (rANS) over static tables: the coder for codes.
 *
 * Owns: tables, decoder, encoder. Knows nothing of: what a context or a symbol means.
 * States are 32 bits in [2^16, 2^32) and refill by 16-bit words; probabilities have 14 bits. Symbol i belongs to lane
 * i mod 16. A stream is the 16 start states (u32), then the words in the order in which the decoder wants them. At the
 * end every lane must be back at 2^16, which is where the encoder began. Source: J. Duda, arXiv:1311.2540. */
#ifndef SG_RANS_H
#define SG_RANS_H

#include <stddef.h>
#include <stdint.h>

#define SG_RANS_LANES 16u
#define SG_RANS_BITS 14u
#define SG_RANS_ONE (1u << SG_RANS_BITS)
#define SG_RANS_LOW (1u << 16)
#define SG_RANS_SYMBOLS 16u
#define SG_RANS_STATE_BYTES (4u * SG_RANS_LANES)
/* Readable bytes that must follow a stream: the decoder looks ahead by up to one word per lane. */
#define SG_RANS_SLACK_BYTES (2u * SG_RANS_LANES)

/* Cumulative frequencies of one context: symbol s owns [end[s], end[s + 1]) of 2^14; end[0] = 0, end[16] = 2^14.
 * Symbols outside of the alphabet own nothing. */
struct sg_rans_row {
    uint16_t end[SG_RANS_SYMBOLS + 1];
};

struct sg_rans_decoder {
    uint32_t state[SG_RANS_LANES];
    const uint8_t *next, *end;
};

/* Takes the start states. Returns 0 if the stream is too short, of odd length, or a state is out of range. */
int sg_rans_decoder_init(struct sg_rans_decoder *decoder, const uint8_t *stream, size_t byte_count);
/* `symbol_count` symbols, a multiple of 16; symbol i under rows[context[i]]. Returns 0 if the words ran out. */
int sg_rans_decode(struct sg_rans_decoder *decoder, const struct sg_rans_row *rows, const uint16_t *context,
                   size_t symbol_count, uint8_t *symbols);
/* Whether the stream ended exactly: no word left, every lane at its first state. */
int sg_rans_decoder_is_spent(const struct sg_rans_decoder *decoder);

/* Encodes all `symbol_count` symbols (a multiple of 16) at once. Returns the stream's size, 0 if it exceeds the
 * capacity. Every symbol must have a frequency above 0 in its row. */
size_t sg_rans_encode(const struct sg_rans_row *rows, const uint16_t *context, const uint8_t *symbols,
                      size_t symbol_count, uint8_t *out, size_t capacity);

/* Frequencies that sum to 2^14 from counts; a symbol that occurs gets at least 1. All-zero counts give a flat row over
 * the alphabet. */
void sg_rans_row_from_counts(struct sg_rans_row *row, const uint32_t counts[SG_RANS_SYMBOLS], uint32_t alphabet);
/* Row from frequencies; returns 0 unless they sum to 2^14. */
int sg_rans_row_from_frequencies(struct sg_rans_row *row, const uint32_t frequencies[SG_RANS_SYMBOLS]);

#endif
