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
/* The loader: a golden container with edits, or any bytes. What opens must run. */
void fuzz_container(const uint8_t *data, size_t byte_count);
/* The tokenizer: a vocabulary and a text. What is encoded decodes to the text. */
void fuzz_tokenizer(const uint8_t *data, size_t byte_count);
/* The grammar: tools, then ids. What room a call had, it keeps. */
void fuzz_grammar(const uint8_t *data, size_t byte_count);
/* A session: a list of calls. It must say what a fresh session says of the same tokens. */
void fuzz_calls(const uint8_t *data, size_t byte_count);

#endif
