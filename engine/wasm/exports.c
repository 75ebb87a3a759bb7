/* What a WebAssembly host can call: the functions of saguaro.h under their own names, and memory.
 *
 * Owns: the module's export list; this is the only file with `export_name`.
 * Knows nothing of: how anything works. docs/engine.md has the table for hosts. */
#include "saguaro.h"

#define SG_EXPORT(name) __attribute__((export_name(#name)))

#define SG_PAGE_BYTES 65536u

uint32_t sg_wasm_abi_version(void);
SG_EXPORT(sg_abi_version) uint32_t sg_wasm_abi_version(void) { return SG_ABI_VERSION; }

/* Takes fresh zeroed pages for `byte_count` bytes at the end of memory; 0 if the host has no more. They are never given
 * back: a host frees a model by dropping its instance. */
void *sg_wasm_reserve(size_t byte_count);
SG_EXPORT(sg_reserve) void *sg_wasm_reserve(size_t byte_count) {
    const size_t page_count = byte_count / SG_PAGE_BYTES + (byte_count % SG_PAGE_BYTES != 0);
    const size_t first_page = __builtin_wasm_memory_grow(0, page_count);
    return first_page == SIZE_MAX ? NULL : (void *)(first_page * SG_PAGE_BYTES);
}

/* ---- SHA-256, rebuild, patch maker ---- */

SG_EXPORT(sg_sha256_init) void sg_wasm_sha256_init(struct sg_sha256 *hash);
void sg_wasm_sha256_init(struct sg_sha256 *hash) { sg_sha256_init(hash); }

SG_EXPORT(sg_sha256_update) void sg_wasm_sha256_update(struct sg_sha256 *hash, const uint8_t *data, size_t byte_count);
void sg_wasm_sha256_update(struct sg_sha256 *hash, const uint8_t *data, size_t byte_count) {
    sg_sha256_update(hash, data, byte_count);
}

SG_EXPORT(sg_sha256_final) void sg_wasm_sha256_final(struct sg_sha256 *hash, uint8_t digest[32]);
void sg_wasm_sha256_final(struct sg_sha256 *hash, uint8_t digest[32]) { sg_sha256_final(hash, digest); }

SG_EXPORT(sg_rebuild_size) size_t sg_wasm_rebuild_size(void);
size_t sg_wasm_rebuild_size(void) { return sg_rebuild_size(); }

SG_EXPORT(sg_rebuild_begin)
int sg_wasm_rebuild_begin(struct sg_rebuild *rebuild, const struct sg_rebuild_expect *expect, uint8_t *target,
                          struct sg_error *error);
int sg_wasm_rebuild_begin(struct sg_rebuild *rebuild, const struct sg_rebuild_expect *expect, uint8_t *target,
                          struct sg_error *error) {
    return sg_rebuild_begin(rebuild, expect, target, error);
}

SG_EXPORT(sg_rebuild_step)
int sg_wasm_rebuild_step(struct sg_rebuild *rebuild, struct sg_rebuild_io *io, struct sg_error *error);
int sg_wasm_rebuild_step(struct sg_rebuild *rebuild, struct sg_rebuild_io *io, struct sg_error *error) {
    return sg_rebuild_step(rebuild, io, error);
}

SG_EXPORT(sg_rebuild_finish)
int sg_wasm_rebuild_finish(const struct sg_rebuild *rebuild, struct sg_error *error);
int sg_wasm_rebuild_finish(const struct sg_rebuild *rebuild, struct sg_error *error) {
    return sg_rebuild_finish(rebuild, error);
}

SG_EXPORT(sg_rebuild_written) uint64_t sg_wasm_rebuild_written(const struct sg_rebuild *rebuild);
uint64_t sg_wasm_rebuild_written(const struct sg_rebuild *rebuild) { return sg_rebuild_written(rebuild); }

SG_EXPORT(sg_patch_scratch_size) size_t sg_wasm_patch_scratch_size(size_t base_bytes, size_t target_bytes);
size_t sg_wasm_patch_scratch_size(size_t base_bytes, size_t target_bytes) {
    return sg_patch_scratch_size(base_bytes, target_bytes);
}

SG_EXPORT(sg_patch_bound) size_t sg_wasm_patch_bound(size_t base_bytes, size_t target_bytes);
size_t sg_wasm_patch_bound(size_t base_bytes, size_t target_bytes) { return sg_patch_bound(base_bytes, target_bytes); }

SG_EXPORT(sg_patch_make)
int sg_wasm_patch_make(const uint8_t *base, size_t base_bytes, const uint8_t *target, size_t target_bytes,
                       uint8_t *out, size_t out_capacity, size_t *out_bytes, void *scratch, size_t scratch_bytes,
                       struct sg_error *error);
int sg_wasm_patch_make(const uint8_t *base, size_t base_bytes, const uint8_t *target, size_t target_bytes,
                       uint8_t *out, size_t out_capacity, size_t *out_bytes, void *scratch, size_t scratch_bytes,
                       struct sg_error *error) {
    return sg_patch_make(base, base_bytes, target, target_bytes, out, out_capacity, out_bytes, scratch, scratch_bytes,
                         error);
}
