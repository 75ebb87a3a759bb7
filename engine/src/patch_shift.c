/* Settled shifts as bytes (patch_shift.h): a list of entries, each for one tensor of the target.
 *
 * entry: 14 words (`enum word`), a gain for each component (u32), then 16-bit numbers: mix (rank, basis rank),
 * Q (rank, row codes), P (rows, rank); zeros up to a multiple of 4 bytes. Little-endian. */
#include "patch_shift.h"

#include <string.h>

#include "delta_state.h"

enum word {
    BYTE_COUNT,
    TARGET_OFFSET,
    ROW_COUNT,
    ROW_CODES,
    RANK,
    PRE_SHIFT,
    BOOST,
    NOISE,
    WIDTH,
    BASIS_SEED,
    BASIS_GROUP,
    BASIS_LAYER,
    BASIS_WIDTH,
    BASIS_RANK,
    WORD_COUNT,
};

static uint32_t word_of(const uint8_t *entry, uint32_t index) { return sg_load_u32(entry + 4 * index); }

static size_t entry_bytes(uint64_t rank, uint64_t basis_rank, uint64_t row_count, uint64_t row_codes) {
    const uint64_t numbers = rank * (basis_rank + row_codes + row_count);
    return (size_t)(4 * (WORD_COUNT + rank) + (2 * numbers + 3) / 4 * 4);
}

size_t sg_shift_bound(uint32_t row_count, uint32_t row_codes) {
    return entry_bytes(SG_GUIDE_RANK_MAX, SG_GUIDE_RANK_MAX, row_count, row_codes);
}

static uint8_t *store_numbers(uint8_t *next, const int16_t *numbers, size_t count) {
    for (size_t i = 0; i < count; i++, next += 2)
        sg_store_u16(next, (uint32_t)(int32_t)numbers[i] & 0xffff);
    return next;
}

static const uint8_t *load_numbers(const uint8_t *next, int16_t *numbers, size_t count) {
    for (size_t i = 0; i < count; i++, next += 2)
        numbers[i] = (int16_t)sg_load_u16(next);
    return next;
}

size_t sg_shift_store(const struct sg_fit *fit, uint32_t row_count, uint32_t row_codes, struct sg_shift_use use,
                      uint8_t *out) {
    const size_t byte_count = entry_bytes(fit->rank, fit->basis.rank, row_count, row_codes);
    const uint32_t words[WORD_COUNT] = {
        [BYTE_COUNT] = (uint32_t)byte_count, [ROW_COUNT] = row_count,
        [ROW_CODES] = row_codes,             [RANK] = fit->rank,
        [PRE_SHIFT] = fit->pre_shift,        [BOOST] = use.boost,
        [NOISE] = use.noise,                 [WIDTH] = use.width,
        [BASIS_SEED] = fit->basis.seed,      [BASIS_GROUP] = fit->basis.group,
        [BASIS_LAYER] = fit->basis.layer,    [BASIS_WIDTH] = fit->basis.width,
        [BASIS_RANK] = fit->basis.rank,
    };
    uint8_t *next = out + 4 * WORD_COUNT;
    memset(out, 0, byte_count);
    for (uint32_t i = 0; i < WORD_COUNT; i++)
        sg_store_u32(out + 4 * i, words[i]);
    for (uint32_t k = 0; k < fit->rank; k++, next += 4)
        sg_store_u32(next, fit->gain[k]);
    for (uint32_t k = 0; k < fit->rank; k++)
        next = store_numbers(next, fit->mix[k], fit->basis.rank);
    next = store_numbers(next, fit->q, (size_t)fit->rank * row_codes);
    store_numbers(next, fit->p, (size_t)fit->rank * row_count);
    return byte_count;
}

/* A gain is (8 + three bits) << exponent (docs/formats/patch.md). */
static int is_gain(uint32_t gain) {
    if (gain < 8 || gain > SG_GUIDE_GAIN_MAX)
        return 0;
    return (gain & ((1u << (sg_bit_length(gain) - 4)) - 1)) == 0;
}

static int is_sound(const uint8_t *entry, size_t bytes_left) {
    if (bytes_left < 4 * WORD_COUNT)
        return 0;
    const uint64_t rank = word_of(entry, RANK), basis_rank = word_of(entry, BASIS_RANK);
    const uint64_t row_count = word_of(entry, ROW_COUNT), row_codes = word_of(entry, ROW_CODES);
    if (!rank || rank > SG_GUIDE_RANK_MAX || basis_rank > SG_GUIDE_RANK_MAX || !row_codes ||
        row_codes > SG_PATCH_ROW_CODES_MAX || row_codes % SG_PATCH_GROUP_CODES || rank * row_codes > SG_GUIDE_Q_MAX ||
        basis_rank * row_codes > SG_GUIDE_Q_MAX || !row_count || row_count > SG_FIT_P_MAX / rank)
        return 0;
    const size_t byte_count = word_of(entry, BYTE_COUNT);
    if (byte_count > bytes_left || byte_count != entry_bytes(rank, basis_rank, row_count, row_codes))
        return 0;
    for (uint32_t k = 0; k < rank; k++)
        if (!is_gain(word_of(entry, WORD_COUNT + k)))
            return 0;
    for (size_t i = 0; i < rank * basis_rank; i++) {
        const int16_t mix = (int16_t)sg_load_u16(entry + 4 * (WORD_COUNT + rank) + 2 * i);
        if (mix > SG_GUIDE_MIX_MAX || mix < -SG_GUIDE_MIX_MAX)
            return 0;
    }
    return word_of(entry, PRE_SHIFT) <= SG_GUIDE_PRE_SHIFT_MAX && word_of(entry, BOOST) <= SG_GUIDE_BOOST_MAX &&
           word_of(entry, NOISE) < SG_GUIDE_NOISE_COUNT && word_of(entry, WIDTH) <= SG_GUIDE_WIDTH_ONE &&
           (!basis_rank || (word_of(entry, BASIS_GROUP) < SG_BASIS_GROUPS && word_of(entry, BASIS_LAYER) <= UINT8_MAX &&
                            word_of(entry, BASIS_WIDTH) && word_of(entry, BASIS_WIDTH) <= row_codes));
}

int sg_shifts_are_sound(const uint8_t *shifts, size_t byte_count) {
    for (size_t at = 0; at < byte_count; at += word_of(shifts + at, BYTE_COUNT))
        if (!is_sound(shifts + at, byte_count - at))
            return 0;
    return 1;
}

const uint8_t *sg_shifts_find(const uint8_t *shifts, size_t byte_count, uint64_t target_offset, uint32_t row_count,
                              uint32_t row_codes) {
    for (size_t at = 0; at < byte_count; at += word_of(shifts + at, BYTE_COUNT)) {
        const uint8_t *entry = shifts + at;
        if (word_of(entry, TARGET_OFFSET) == target_offset && word_of(entry, ROW_COUNT) == row_count &&
            word_of(entry, ROW_CODES) == row_codes)
            return entry;
    }
    return NULL;
}

struct sg_shift_use sg_shift_load(struct sg_fit *fit, const uint8_t *entry) {
    const uint32_t row_codes = word_of(entry, ROW_CODES);
    const uint8_t *next = entry + 4 * WORD_COUNT;
    fit->rank = word_of(entry, RANK);
    fit->pre_shift = word_of(entry, PRE_SHIFT);
    fit->basis = (struct sg_basis){word_of(entry, BASIS_SEED), word_of(entry, BASIS_GROUP), word_of(entry, BASIS_LAYER),
                                   word_of(entry, BASIS_WIDTH), word_of(entry, BASIS_RANK)};
    for (uint32_t k = 0; k < fit->rank; k++, next += 4)
        fit->gain[k] = sg_load_u32(next);
    for (uint32_t k = 0; k < fit->rank; k++)
        next = load_numbers(next, fit->mix[k], fit->basis.rank);
    next = load_numbers(next, fit->q, (size_t)fit->rank * row_codes);
    load_numbers(next, fit->p, (size_t)fit->rank * word_of(entry, ROW_COUNT));
    if (fit->basis.rank)
        sg_basis_fill(&fit->basis, row_codes, fit->basis_rows);
    return (struct sg_shift_use){word_of(entry, BOOST), word_of(entry, NOISE), word_of(entry, WIDTH)};
}
