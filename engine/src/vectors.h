/* Constants that SIMD loops load from memory: V8 makes a constant anew in each round of a loop, by three instructions.
 *
 * They must stand in another file than the loops, or clang would make constants of them again. */
#ifndef SG_VECTORS_H
#define SG_VECTORS_H

#ifdef __wasm_simd128__
#include <wasm_simd128.h>

extern const struct sg_vectors {
    v128_t ones;                      /* 16 bits each */
    v128_t nibbles, crumbs;           /* the low 4 and 2 bits of each byte */
    v128_t half_magnitude, half_sign; /* the bits of binary16, in lanes of 32 */
    v128_t half_scale;                /* 2^112: exponents of binary16 are biased by 15, those of binary32 by 127 */
    v128_t float_sign, float_half;    /* -0.0 and 0.5 */
    v128_t inverse_sqrt_128;
} sg_vectors;
#endif

#endif
