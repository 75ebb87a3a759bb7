/* What a shift means for a row: norms and contexts, in integers. See delta_guide.h; the tables are in
 * delta_guide_table.c. */
#include "delta_guide.h"

#if defined(__wasm_simd128__) && !defined(SG_SCALAR)
#include <wasm_simd128.h>
#endif

static int32_t within_16_bits(int32_t value) {
    return value > INT16_MAX ? INT16_MAX : value < INT16_MIN ? INT16_MIN : value;
}

int sg_guide_q_entry(int32_t entry, uint32_t gain, const int16_t *mix, const int16_t *z, uint32_t basis_rank,
                     uint32_t stride, int16_t *result) {
    int64_t mixed = 0;
    for (uint32_t j = 0; j < basis_rank; j++)
        mixed += (int64_t)mix[j] * z[(uint64_t)j * stride];
    const int64_t value = (int64_t)entry * gain + ((mixed * gain) >> SG_GUIDE_MIX_SHIFT);
    *result = (int16_t)value;
    return value <= INT16_MAX && value >= -INT16_MAX;
}

/* Sums wrap around: only a hostile stream gets there, and it must not be undefined. */
#if defined(__wasm_simd128__) && !defined(SG_SCALAR)
/* Sums of 8 columns: the products of two components at a time, which wrap as in plain C. */
static inline void add_two_components(v128_t sum[2], const int16_t *first, v128_t second, v128_t factors) {
    const v128_t q = wasm_v128_load(first);
    const v128_t low = wasm_i16x8_shuffle(q, second, 0, 8, 1, 9, 2, 10, 3, 11);
    const v128_t high = wasm_i16x8_shuffle(q, second, 4, 12, 5, 13, 6, 14, 7, 15);
    sum[0] = wasm_i32x4_add(sum[0], wasm_i32x4_dot_i16x8(low, factors));
    sum[1] = wasm_i32x4_add(sum[1], wasm_i32x4_dot_i16x8(high, factors));
}

void sg_guide_row(const int16_t *p, const int16_t *q, uint32_t rank, uint32_t row_codes, uint32_t pre_shift,
                  int16_t *shift) {
    const v128_t zero = wasm_i32x4_const_splat(0);
    for (uint32_t i = 0; i < row_codes; i += 8) {
        v128_t sum[2] = {zero, zero};
        const int16_t *column = q + i;
        uint32_t k = 0;
        for (; k + 1 < rank; k += 2, column += 2 * (size_t)row_codes) {
            add_two_components(sum, column, wasm_v128_load(column + row_codes), wasm_v128_load32_splat(p + k));
        }
        if (k < rank) add_two_components(sum, column, zero, wasm_i16x8_splat(p[k]));
        wasm_v128_store(shift + i, wasm_i16x8_narrow_i32x4(wasm_i32x4_shr(sum[0], pre_shift),
                                                           wasm_i32x4_shr(sum[1], pre_shift)));
    }
}
#else
void sg_guide_row(const int16_t *p, const int16_t *q, uint32_t rank, uint32_t row_codes, uint32_t pre_shift,
                  int16_t *shift) {
    for (uint32_t start = 0; start < row_codes; start += SG_PATCH_GROUP_CODES) {
        uint32_t sum[SG_PATCH_GROUP_CODES] = {0};
        for (uint32_t k = 0; k < rank; k++) {
            const int16_t *column = q + (size_t)k * row_codes + start;
            const int32_t factor = p[k];
            for (uint32_t i = 0; factor && i < SG_PATCH_GROUP_CODES; i++)
                sum[i] += (uint32_t)(factor * column[i]);
        }
        for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++)
            shift[start + i] = (int16_t)within_16_bits((int32_t)sum[i] >> pre_shift);
    }
}
#endif

/* A positive normal fp16 number? */
static int is_plain(uint32_t norm) { return norm >= 0x0400 && norm < 0x7c00; }

static uint32_t mantissa_of(uint32_t norm) { return 1024 + (norm & 1023); }

/* a / b in 1/4096, at most 8. */
static int32_t norm_ratio(uint32_t a, uint32_t b) {
    const int32_t exponent = (int32_t)(a >> 10) - (int32_t)(b >> 10);
    const uint32_t ratio = (mantissa_of(a) << 12) / mantissa_of(b);
    if (exponent > 2)
        return INT16_MAX;
    if (exponent < -14)
        return 0;
    const uint32_t scaled = exponent >= 0 ? ratio << exponent : ratio >> -exponent;
    return scaled > INT16_MAX ? INT16_MAX : (int32_t)scaled;
}

/* Square root, rounded down. */
static uint32_t square_root(uint64_t value) {
    uint64_t root = 0;
    for (uint64_t bit = (uint64_t)1 << 38; bit; bit >>= 2) {
        if (value >= root + bit) {
            value -= root + bit;
            root = (root >> 1) + bit;
        } else {
            root >>= 1;
        }
    }
    return (uint32_t)root;
}

/* sqrt(square) in 1/65536 from `square` in 2^-26, kept between 1/2 and 4. */
static int32_t ratio_from_square(int64_t square) {
    const int64_t low = (int64_t)1 << 24, high = (int64_t)1 << 30;
    const int64_t kept = square < low ? low : square > high ? high : square;
    return (int32_t)square_root((uint64_t)kept << 6);
}

#if defined(__wasm_simd128__) && !defined(SG_SCALAR)

/* Levels of eight codes: low and high bytes are looked up apart. */
static inline v128_t levels_of(const struct sg_guide_shape *shape, v128_t codes) {
    const v128_t first = wasm_v128_load(shape->level), second = wasm_v128_load(shape->level + 8);
    const v128_t low = wasm_i8x16_shuffle(first, second, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const v128_t high = wasm_i8x16_shuffle(first, second, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const v128_t index = wasm_u8x16_narrow_i16x8(codes, codes);
    return wasm_i8x16_shuffle(wasm_i8x16_swizzle(low, index), wasm_i8x16_swizzle(high, index), 0, 16, 1, 17, 2, 18, 3,
                              19, 4, 20, 5, 21, 6, 22, 7, 23);
}

static inline int32_t sum_of(v128_t four) {
    return wasm_i32x4_extract_lane(four, 0) + wasm_i32x4_extract_lane(four, 1) + wasm_i32x4_extract_lane(four, 2) +
           wasm_i32x4_extract_lane(four, 3);
}

static inline v128_t add_products(v128_t sum, v128_t a, v128_t b, uint32_t shift) {
    sum = wasm_i32x4_add(sum, wasm_i32x4_shr(wasm_i32x4_extmul_low_i16x8(a, b), shift));
    return wasm_i32x4_add(sum, wasm_i32x4_shr(wasm_i32x4_extmul_high_i16x8(a, b), shift));
}

static void project(struct sg_guide_group *group, const struct sg_guide_shape *shape, const int16_t *shift,
                    int32_t ratio, const uint16_t *old_codes, int32_t *square) {
    const v128_t factor = wasm_i16x8_splat((int16_t)ratio);
    v128_t projection = wasm_i32x4_const_splat(0), squares = projection;
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i += 8) {
        const v128_t from = wasm_v128_load(shift + i);
        const v128_t d = wasm_i16x8_narrow_i32x4(wasm_i32x4_shr(wasm_i32x4_extmul_low_i16x8(from, factor), 12),
                                                 wasm_i32x4_shr(wasm_i32x4_extmul_high_i16x8(from, factor), 12));
        wasm_v128_store(group->d + i, d);
        projection = add_products(projection, levels_of(shape, wasm_v128_load(old_codes + i)), d, 6);
        squares = add_products(squares, d, d, 8);
    }
    group->old_projection = sum_of(projection);
    *square = sum_of(squares);
}

static inline v128_t buckets_of(v128_t moved, v128_t level, v128_t inverse, uint32_t bucket_shift) {
    const v128_t far = wasm_i32x4_sub(wasm_i32x4_shr(wasm_i32x4_mul(moved, inverse), 15), level);
    const v128_t bucket = wasm_i32x4_add(wasm_i32x4_shr(far, bucket_shift), wasm_i32x4_const_splat(128));
    return wasm_i32x4_min(wasm_i32x4_max(bucket, wasm_i32x4_const_splat(0)), wasm_i32x4_const_splat(255));
}

static void place(const struct sg_guide_group *group, const struct sg_guide_shape *shape, int32_t inverse_rho,
                  const uint16_t *old_codes, uint16_t *contexts) {
    const v128_t inverse = wasm_i32x4_splat(inverse_rho);
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i += 8) {
        const v128_t codes = wasm_v128_load(old_codes + i), level = levels_of(shape, codes);
        const v128_t moved = wasm_i16x8_add_sat(level, wasm_v128_load(group->d + i));
        const v128_t low = buckets_of(wasm_i32x4_extend_low_i16x8(moved), wasm_i32x4_extend_low_i16x8(level), inverse,
                                      shape->bucket_shift);
        const v128_t high = buckets_of(wasm_i32x4_extend_high_i16x8(moved), wasm_i32x4_extend_high_i16x8(level),
                                       inverse, shape->bucket_shift);
        wasm_v128_store(contexts + i, wasm_v128_or(wasm_i16x8_shl(codes, 8), wasm_i16x8_narrow_i32x4(low, high)));
    }
}

static int32_t project_new(const struct sg_guide_group *group, const struct sg_guide_shape *shape,
                           const uint8_t *new_codes) {
    v128_t projection = wasm_i32x4_const_splat(0);
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i += 8)
        projection = add_products(projection, levels_of(shape, wasm_u16x8_load8x8(new_codes + i)),
                                  wasm_v128_load(group->d + i), 6);
    return sum_of(projection);
}

#else

/* d of a group, and its products with the old levels and with itself. */
static void project(struct sg_guide_group *group, const struct sg_guide_shape *shape, const int16_t *shift,
                    int32_t ratio, const uint16_t *old_codes, int32_t *square) {
    group->old_projection = *square = 0;
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++) {
        const int32_t d = within_16_bits((shift[i] * ratio) >> 12);
        group->d[i] = (int16_t)d;
        group->old_projection += (shape->level[old_codes[i]] * d) >> 6;
        *square += (d * d) >> 8;
    }
}

static void place(const struct sg_guide_group *group, const struct sg_guide_shape *shape, int32_t inverse_rho,
                  const uint16_t *old_codes, uint16_t *contexts) {
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++) {
        const int32_t level = shape->level[old_codes[i]];
        const int32_t moved = (within_16_bits(level + group->d[i]) * inverse_rho) >> 15;
        const int32_t bucket = ((moved - level) >> shape->bucket_shift) + (int32_t)SG_GUIDE_BUCKETS / 2;
        contexts[i] = (uint16_t)(old_codes[i] * SG_GUIDE_BUCKETS +
                                 (uint32_t)(bucket < 0     ? 0
                                            : bucket > 255 ? 255
                                                           : bucket));
    }
}

static int32_t project_new(const struct sg_guide_group *group, const struct sg_guide_shape *shape,
                           const uint8_t *new_codes) {
    int32_t projection = 0;
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++)
        projection += (shape->level[new_codes[i]] * group->d[i]) >> 6;
    return projection;
}

#endif

static int32_t inverse_of(const struct sg_guide_group *group) {
    return (int32_t)(((uint32_t)1 << 31) / (uint32_t)group->rho);
}

void sg_guide_group_open(struct sg_guide_group *group, const struct sg_guide_shape *shape, const int16_t *shift,
                         uint32_t row_norm, uint32_t old_norm, const uint16_t *old_codes) {
    const int32_t ratio = is_plain(row_norm) && is_plain(old_norm) ? norm_ratio(row_norm, old_norm) : 0;
    int32_t square = 0;
    project(group, shape, shift, ratio, old_codes, &square);
    group->old_norm = old_norm;
    group->rho = ratio_from_square(((int64_t)1 << 26) + 2 * (int64_t)group->old_projection + 4 * (int64_t)square);
}

void sg_guide_group_contexts(struct sg_guide_group *group, const struct sg_guide_shape *shape, const int16_t *shift,
                             uint32_t row_norm, uint32_t old_norm, const uint16_t *old_codes, uint16_t *contexts) {
    sg_guide_group_open(group, shape, shift, row_norm, old_norm, old_codes);
    place(group, shape, inverse_of(group), old_codes, contexts);
}

/* Counting borders instead of looking for the level: without a branch, the compiler makes vectors of it. */
void sg_guide_group_codes(const struct sg_guide_group *group, const struct sg_guide_shape *shape,
                          const struct sg_guide_cells *cells, uint32_t boost, const uint16_t *old_codes,
                          uint8_t *new_codes) {
    const int32_t inverse = inverse_of(group);
    int32_t moved[SG_PATCH_GROUP_CODES], place_of[SG_PATCH_GROUP_CODES] = {0};
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++) {
        const int32_t step = (group->d[i] * (int32_t)boost) >> 8;
        moved[i] = (within_16_bits(shape->level[old_codes[i]] + step) * inverse) >> 15;
    }
    for (uint32_t k = 1; k < cells->count; k++)
        for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++)
            place_of[i] += moved[i] > cells->edge[k];
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++)
        new_codes[i] = (uint8_t)cells->code[place_of[i]];
}

/* norm * rho / 65536 as fp16 bits, to the nearest; kept among the positive normal numbers. */
static uint32_t scaled_norm(uint32_t norm, int32_t rho) {
    uint32_t product = mantissa_of(norm) * (uint32_t)rho; /* 1024 * 65536 = 2^26 stands for the same exponent */
    int32_t exponent = (int32_t)(norm >> 10);
    for (; product >= (uint32_t)1 << 27; product >>= 1)
        exponent++;
    for (; product < (uint32_t)1 << 26; product <<= 1)
        exponent--;
    const int32_t bits = (exponent << 10) + (int32_t)((product - ((uint32_t)1 << 26) + (1u << 15)) >> 16);
    return bits < 0x0400 ? 0x0400 : bits > 0x7bff ? 0x7bff : (uint32_t)bits;
}

/* |x0 + d|^2 = |x0|^2 + x0 d + (x0 + d) d, where |x0| = 1 and x0 + d = rho x1: with the level of the old code for x0
 * and that of the new code for x1, the errors within both cells halve each other. */
uint32_t sg_guide_norm(const struct sg_guide_group *group, const struct sg_guide_shape *shape,
                       const uint8_t *new_codes) {
    if (!is_plain(group->old_norm))
        return group->old_norm;
    const int64_t moved = ((int64_t)project_new(group, shape, new_codes) * group->rho) >> 16;
    return scaled_norm(group->old_norm, ratio_from_square(((int64_t)1 << 26) + group->old_projection + moved));
}
