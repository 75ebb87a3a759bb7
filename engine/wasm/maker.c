/* What `maker.wasm` exports: the patch maker, which only the packing machine needs. Visitors do not download it. */
#include "export.h"

SG_WRAP(size_t, patch_maker_size, (size_t base_bytes, size_t target_bytes), (base_bytes, target_bytes))
SG_WRAP(size_t, patch_bound, (size_t base_bytes, size_t target_bytes), (base_bytes, target_bytes))
SG_WRAP(int, patch_begin,
        (struct sg_patch_maker *maker, size_t maker_bytes, const struct sg_patch_options *options, const uint8_t *base,
         size_t base_bytes, const uint8_t *target, size_t target_bytes, uint8_t *out, size_t out_capacity,
         struct sg_error *error),
        (maker, maker_bytes, options, base, base_bytes, target, target_bytes, out, out_capacity, error))
SG_WRAP(int, patch_step, (struct sg_patch_maker *maker, struct sg_error *error), (maker, error))
SG_WRAP(uint64_t, patch_done, (const struct sg_patch_maker *maker), (maker))
SG_WRAP(size_t, patch_bytes, (const struct sg_patch_maker *maker), (maker))
SG_WRAP(size_t, requantise_size, (void), ())
SG_WRAP_VOID(requantise_begin, (struct sg_requantiser *state, uint32_t adapter_seed), (state, adapter_seed))
SG_WRAP(size_t, requantise_shift_bound, (uint32_t row_count, uint32_t group_count), (row_count, group_count))
SG_WRAP(int, requantise,
        (struct sg_requantiser *state, const struct sg_requantise_input *input, uint8_t *target, uint8_t *shift,
         struct sg_requantised *result, struct sg_error *error),
        (state, input, target, shift, result, error))
