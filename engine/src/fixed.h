/* Fixed point: levels and activations as whole numbers with a unit, so that sums of products are exact.
 *
 * Owns: the rounding of levels and activations, which is part of the contract (docs/numerics.md, "Fixed point").
 * `exact` is rounding to 16 bits (levels to 15); `fast` has activations of 8 bits and levels of 7, as one relaxed dot
 * product takes them.
 * Knows nothing of: matrices, models, layers.
 *
 * `sg_fixed_put` exists twice, plain C and WebAssembly SIMD, with the same bits; `-DSG_SCALAR` takes the plain one. */
#ifndef SG_FIXED_H
#define SG_FIXED_H

#include <stddef.h>
#include <stdint.h>

#define SG_GROUP 128u /* weights per norm, and the size of the Hadamard rotation */

/* `exact` sums SG_RUN products of a level and an activation in 32 bits, so LEVEL_MAX times the sum of SG_RUN magnitudes
 * must stay below 2^31: activations are scaled so that the sum is at most RUN_SUM_MAX before rounding adds up to 4. */
#define SG_RUN 8u
#define SG_EXACT_LEVEL_MAX 16383
#define SG_EXACT_VALUE_MAX 32767
#define SG_EXACT_RUN_SUM_MAX 131064
/* `fast` may sum four products in 16 bits (product_relaxed.c): levels are 0 to SG_FAST_MAX, so that the positive and the
 * negative activations of four neighbours must each sum to at most 258; rounding adds up to 2. */
#define SG_FAST_MAX 127
#define SG_QUAD_MAX 256

enum sg_rounding { SG_ROUNDING_16, SG_ROUNDING_7, SG_ROUNDING_COUNT };
#define SG_UNIT_MIN 0x1p-100f /* a group whose unit is below counts as zero: 1 / unit must stay finite */

/* level[code] = (number[code] + offset) * unit, nearly; `offset` is 0 for 16 bits. `low` and `high` are the bytes of
 * `number`, for look-up by swizzle. */
struct sg_fixed_levels {
    int16_t number[16];
    uint8_t low[16], high[16];
    float unit, offset;
};

/* Where element i of a group stands: in each run of 16 the even elements come first, as codes come out of a byte. */
static inline size_t sg_fixed_place(size_t i) { return i / 16 * 16 + i % 2 * 8 + i % 16 / 2; }

/* Rotated activations of up to SG_TOKEN_BLOCK tokens. number: (group_count, token_count, 128) int16, 16-byte aligned,
 * elements at sg_fixed_place; unit: (group_count, token_count) f32; sum, of the same shape: the sum of the numbers, for 7
 * bits. Built with relaxed SIMD, those stand as bytes (product_relaxed.c). */
struct sg_fixed {
    int16_t *number;
    float *unit;
    float *sum;
    uint32_t group_count;
    uint32_t token_count;
    enum sg_rounding rounding;
};

/* The nearest int16, halves away from zero; beyond the range the nearest end, and 0 for NaN: as SIMD saturates. */
static inline int32_t sg_round_half_away(float x) {
    const float shifted = x + (x < 0.0f ? -0.5f : 0.5f);
    if (shifted >= 32767.0f) return 32767;
    if (shifted <= -32768.0f) return -32768;
    return shifted == shifted ? (int32_t)shifted : 0;
}

void sg_fixed_levels_set(struct sg_fixed_levels *levels, const float value[16], enum sg_rounding rounding);

/* Makes room for `token_count` tokens of `column_count` columns; each is then put, in any order. */
static inline void sg_fixed_begin(struct sg_fixed *fixed, size_t column_count, uint32_t token_count) {
    fixed->group_count = (uint32_t)((column_count + SG_GROUP - 1) / SG_GROUP);
    fixed->token_count = token_count;
}

/* Rotates each group of x (column_count,), zeros following, and rounds it. */
void sg_fixed_put(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count);

void sg_fixed_put_scalar(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count);
#ifdef __wasm_simd128__
void sg_fixed_put_simd(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count);
#endif

#endif
