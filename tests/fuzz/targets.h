/* The fuzzed surfaces. Each takes any bytes, and aborts where a promise is broken; sanitizers see the rest.
 * docs/fuzzing.md has the commands. */
#ifndef FUZZ_TARGETS_H
#define FUZZ_TARGETS_H

#include <stddef.h>
#include <stdint.h>

/* The rebuilder: a sealed patch whose segments are the input's, on a base of numbers, in pieces of any size. */
void fuzz_rebuild(const uint8_t *data, size_t byte_count);
/* The maker: two files, as they are or as containers that the input describes. What it makes must rebuild. */
void fuzz_make(const uint8_t *data, size_t byte_count);

#endif
