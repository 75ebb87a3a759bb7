/* What `maker.wasm` exports: the patch maker, which only the packing machine needs. Visitors do not download it. */
#include "export.h"

SG_WRAP(size_t, patch_scratch_size, (size_t base_bytes, size_t target_bytes), (base_bytes, target_bytes))
SG_WRAP(size_t, patch_bound, (size_t base_bytes, size_t target_bytes), (base_bytes, target_bytes))
SG_WRAP(int, patch_make,
        (const struct sg_patch_options *options, const uint8_t *base, size_t base_bytes, const uint8_t *target,
         size_t target_bytes, uint8_t *out, size_t out_capacity, size_t *out_bytes, void *scratch,
         size_t scratch_bytes, struct sg_error *error),
        (options, base, base_bytes, target, target_bytes, out, out_capacity, out_bytes, scratch, scratch_bytes, error))
