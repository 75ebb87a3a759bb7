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
