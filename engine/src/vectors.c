/* The values of vectors.h, in lanes of 32 bits. */
#include "vectors.h"

#ifdef __wasm_simd128__
#include <stdint.h>

#define FOUR(bits) {bits, bits, bits, bits}

const struct sg_vectors sg_vectors = {
    .ones = FOUR(0x00010001),
    .nibbles = FOUR(0x0f0f0f0f),
    .crumbs = FOUR(0x03030303),
    .half_magnitude = FOUR(0x7fff),
    .half_sign = FOUR(0x8000),
    .half_scale = FOUR(0x77800000),       /* 0x1p112f */
    .float_sign = FOUR(INT32_MIN),
    .float_half = FOUR(0x3f000000),
    .inverse_sqrt_128 = FOUR(0x3db504f3), /* 0x1.6a09e6p-4f */
};
#else
typedef int sg_vectors_is_empty; /* ISO C wants a declaration in every file */
#endif
