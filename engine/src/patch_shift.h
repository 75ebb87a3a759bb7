/* A shift that was settled before the patch is made, as bytes: what the maker then takes instead of looking for one. */
#ifndef SG_PATCH_SHIFT_H
#define SG_PATCH_SHIFT_H

#include <stddef.h>

#include "patch_fit.h"

/* What stands beside P and Q. */
struct sg_shift_use {
    uint32_t boost;        /* above 0: the shift says all codes by itself */
    uint32_t noise, width; /* of the computed table, where it does not */
};

/* Largest entry for a tensor of this many rows and codes per row. */
size_t sg_shift_bound(uint32_t row_count, uint32_t row_codes);
/* Writes the result of a fit as one entry; returns its size. The target's offset is left 0. */
size_t sg_shift_store(const struct sg_fit *fit, uint32_t row_count, uint32_t row_codes, struct sg_shift_use use,
                      uint8_t *out);

/* Whether a list of entries is sound, each for some tensor. */
int sg_shifts_are_sound(const uint8_t *shifts, size_t byte_count);
/* The entry for the tensor at `target_offset`, if it has these dimensions; else NULL. The list must be sound. */
const uint8_t *sg_shifts_find(const uint8_t *shifts, size_t byte_count, uint64_t target_offset, uint32_t row_count,
                              uint32_t row_codes);
/* Reads an entry as if it came from sg_fit_run. */
struct sg_shift_use sg_shift_load(struct sg_fit *fit, const uint8_t *entry);

#endif
