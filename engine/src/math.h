/* Elementary functions whose bits are the same on every machine (docs/numerics.md has the measured error bounds).
 *
 * Owns: exp, log, sine, cosine, sigmoid, SiLU, and the numbers of rounding. They use only additions, products, divisions and square roots, which
 * IEEE 754 fixes, in the order that is written here. Source: own polynomials; each says how it was found. */
#ifndef SG_MATH_H
#define SG_MATH_H

#include <stddef.h>

#include "cursor.h"

/* Numbers that stand in math.c so that loops load them: V8 makes a constant anew in each round of a loop, by three
 * instructions, and exp has twelve. */
extern const struct sg_exp_numbers {
    float highest, lowest, inverse_ln2, ln2_high, ln2_low, q[5], one;
    float rounder; /* adding it leaves the nearest integer in the low bits */
} sg_exp_numbers;

#define SG_MAX_16 32767.0f /* the largest numbers of 16 and of 8 bits */
#define SG_MAX_8 127.0f
extern const struct sg_round_numbers {
    float half, minus_half;
    float max_16, max_8;
} sg_round_numbers;

/* e^x in binary32. Below -87 the result is 0, above 88 that of 88: the callers want weights, not infinities.
 * Branch-free, so that loops over it become SIMD loops with the same bits.
 * x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is a weighted minimax fit of (e^r - 1 - r) / r^2, 3.1e-9. */
static inline float sg_expf(float x) {
    const struct sg_exp_numbers *k = &sg_exp_numbers;
    const float bounded = x > k->highest ? k->highest : x < k->lowest ? k->lowest : x;
    const float shifted = bounded * k->inverse_ln2 + k->rounder;
    const float n = shifted - k->rounder;
    const float r = (bounded - n * k->ln2_high) - n * k->ln2_low;
    const float q = k->q[0] + r * (k->q[1] + r * (k->q[2] + r * (k->q[3] + r * k->q[4])));
    const float scale = sg_float_of_bits((sg_bits_of_float(shifted) + 127u) << 23);
    const float power = (r * r * q + r + k->one) * scale;
    return x < k->lowest ? 0.0f : power;
}

static inline float sg_sigmoidf(float x) {
    return sg_exp_numbers.one / (sg_exp_numbers.one + sg_expf(-x));
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
