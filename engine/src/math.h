/* Elementary functions whose bits are the same on every machine (docs/numerics.md has the measured error bounds).
 *
 * Owns: exp, log, sine, cosine, sigmoid, SiLU. They use only additions, products, divisions and square roots, which
 * IEEE 754 fixes, in the order that is written here. Source: own polynomials; each says how it was found. */
#ifndef SG_MATH_H
#define SG_MATH_H

#include <stddef.h>

#include "cursor.h"

/* e^x in binary32. Below -87 the result is 0, above 88 that of 88: the callers want weights, not infinities.
 * Branch-free, so that loops over it become SIMD loops with the same bits.
 * x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is a weighted minimax fit of (e^r - 1 - r) / r^2, 3.1e-9. */
static inline float sg_expf(float x) {
    const float bounded = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
    const float rounder = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    const float shifted = bounded * 0x1.715476p+0f + rounder;
    const float n = shifted - rounder;
    const float r = (bounded - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    const float q = 0x1.fffffcp-2f +
                    r * (0x1.555492p-3f + r * (0x1.5558f2p-5f + r * (0x1.123a2p-7f + r * 0x1.6a23dp-10f)));
    const float scale = sg_float_of_bits((sg_bits_of_float(shifted) + 127u) << 23);
    const float power = (r * r * q + r + 1.0f) * scale;
    return x < -87.0f ? 0.0f : power;
}

static inline float sg_sigmoidf(float x) {
    return 1.0f / (1.0f + sg_expf(-x));
}

static inline float sg_siluf(float x) {
    return x * sg_sigmoidf(x);
}

/* A NaN has many bit patterns, and WebAssembly leaves it to the machine which one comes out of a sum. */
static inline float sg_settle_nan(float x) {
    return x == x ? x : sg_float_of_bits(0x7fc00000u);
}

/* e^x in binary64, for x <= 709; 0 below -700. */
double sg_exp(double x);
/* Natural logarithm in binary64, for normal x > 0. */
double sg_log(double x);
/* Sine and cosine of an angle in radians, 0 <= angle <= 2^20. */
void sg_sincos(double angle, double *sine, double *cosine);

#endif
