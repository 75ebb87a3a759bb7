/* What every module exports for its host: the version of the interface, and memory. */
#include "export.h"

#define SG_PAGE_BYTES 65536u

SG_EXPORT(sg_abi_version) uint32_t sg_wasm_abi_version(void);
uint32_t sg_wasm_abi_version(void) { return SG_ABI_VERSION; }

/* Takes fresh zeroed pages for `byte_count` bytes at the end of memory; 0 if the host has no more. They are never given
 * back: a host frees a model by dropping its instance. */
SG_EXPORT(sg_reserve) void *sg_wasm_reserve(size_t byte_count);
void *sg_wasm_reserve(size_t byte_count) {
    const size_t page_count = byte_count / SG_PAGE_BYTES + (byte_count % SG_PAGE_BYTES != 0);
    const size_t first_page = __builtin_wasm_memory_grow(0, page_count);
    return first_page == SIZE_MAX ? NULL : (void *)(first_page * SG_PAGE_BYTES);
}
