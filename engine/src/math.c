/* The double-precision functions of math.h, and the constants that its loops load.
 *
 * The functions serve what is computed once per token: rotary angles, Sinkhorn, log-softmax, sampling. */
#include "math.h"

const struct sg_round_numbers sg_round_numbers = {
    .half = 0.5f,
    .minus_half = -0.5f,
    .max_16 = SG_MAX_16,
    .max_8 = SG_MAX_8,
};

const struct sg_exp_numbers sg_exp_numbers = {
    .highest = 88.0f,
    .lowest = -87.0f,
    .inverse_ln2 = 0x1.715476p+0f,
    .ln2_high = 0x1.62e4p-1f,
    .ln2_low = 0x1.7f7d1cp-20f,
    .q = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123a2p-7f, 0x1.6a23dp-10f},
    .one = 1.0f,
    .rounder = 0x1.8p23f,
};

#define LOG2_E 0x1.71547652b82fep+0
#define LN2_HIGH 0x1.62e42fee00000p-1 /* ln 2 to 32 bits: n * LN2_HIGH is exact for |n| < 2^20 */
#define LN2_LOW 0x1.a39ef35793c76p-33

static double double_of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of_double(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The nearest integer, ties to even, for |x| < 2^51. */
static double round_to_integer(double x) {
    const double rounder = 0x1.8p52;
    return (x + rounder) - rounder;
}

double sg_exp(double x) {
    if (x < -700.0) return 0.0;
    const double n = round_to_integer(x * LOG2_E);
    const double r = (x - n * LN2_HIGH) - n * LN2_LOW;
    /* Taylor series of e^r, |r| <= ln 2 / 2: the first term left out is 4e-18. */
    static const double inverse_factorial[] = {
        1.0,           1.0,           1.0 / 2,         1.0 / 6,          1.0 / 24,
        1.0 / 120,     1.0 / 720,     1.0 / 5040,      1.0 / 40320,      1.0 / 362880,
        1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0,
    };
    double sum = inverse_factorial[13];
    for (int i = 12; i >= 0; i--) sum = sum * r + inverse_factorial[i];
    return sum * double_of_bits((uint64_t)((int64_t)n + 1023) << 52);
}

double sg_log(double x) {
    /* x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172. */
    const uint64_t bits = bits_of_double(x);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    double m = double_of_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        exponent += 1;
    }
    const double s = (m - 1.0) / (m + 1.0);
    const double s2 = s * s;
    double sum = 0.0; /* s^2 / 3 + s^4 / 5 + ... + s^22 / 23: the first term left out is 6e-21 */
    for (int k = 23; k >= 3; k -= 2) sum = (sum + 1.0 / k) * s2;
    const double n = (double)exponent;
    return n * LN2_HIGH + (2.0 * s + (2.0 * s * sum + n * LN2_LOW));
}

void sg_sincos(double angle, double *sine, double *cosine) {
    /* Cody-Waite reduction: pi/2 in three parts of 33, 33 and 53 bits, so that n times the first two is exact. */
    const double n = round_to_integer(angle * 0x1.45f306dc9c883p-1);
    const double r = ((angle - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    /* Taylor series, nested from the inside, |r| <= pi/4: the first terms left out are below 1e-19. */
    const double r2 = r * r;
    double s = 1.0;
    for (int k = 18; k >= 2; k -= 2) s = 1.0 - r2 / (double)(k * (k + 1)) * s;
    s *= r;
    double c = 1.0;
    for (int k = 17; k >= 1; k -= 2) c = 1.0 - r2 / (double)(k * (k + 1)) * c;
    const int64_t quadrant = (int64_t)n & 3;
    const double sine_part = quadrant & 1 ? c : s;
    const double cosine_part = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -sine_part : sine_part;
    *cosine = quadrant == 1 || quadrant == 2 ? -cosine_part : cosine_part;
}
