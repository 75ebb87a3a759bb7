/* Integer mathematics of guided coding. See delta_guide.h. */
#include "delta_guide.h"

/* Normal distribution function at i / 32, in 1/65536. */
static const uint32_t normal_cdf[161] = {
    32768, 33585, 34401, 35216, 36028, 36837, 37642, 38442, 39237, 40026, 40807, 41581,
    42347, 43104, 43852, 44589, 45316, 46031, 46735, 47426, 48104, 48770, 49422, 50060,
    50684, 51293, 51888, 52468, 53033, 53582, 54116, 54635, 55138, 55626, 56099, 56555,
    56997, 57423, 57835, 58231, 58612, 58979, 59331, 59670, 59994, 60305, 60602, 60886,
    61158, 61417, 61664, 61899, 62123, 62336, 62537, 62729, 62911, 63083, 63245, 63399,
    63544, 63681, 63810, 63931, 64045, 64152, 64253, 64347, 64435, 64518, 64595, 64668,
    64735, 64798, 64856, 64910, 64961, 65008, 65051, 65092, 65129, 65164, 65195, 65225,
    65252, 65277, 65300, 65321, 65341, 65359, 65375, 65390, 65404, 65416, 65428, 65438,
    65448, 65456, 65464, 65471, 65478, 65484, 65489, 65494, 65498, 65502, 65506, 65509,
    65512, 65514, 65517, 65519, 65521, 65522, 65524, 65525, 65527, 65528, 65529, 65529,
    65530, 65531, 65531, 65532, 65533, 65533, 65533, 65534, 65534, 65534, 65534, 65535,
    65535, 65535, 65535, 65535, 65535, 65535, 65535, 65536, 65536, 65536, 65536, 65536,
    65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536,
    65536, 65536, 65536, 65536, 65536,
};
#define CDF_ONE 65536
#define CDF_LAST 160

/* 16 * 2^(i / 3), rounded: standard deviations of prediction errors, in 1/65536 of a norm. */
static const int32_t noise_units[SG_GUIDE_NOISE_COUNT] = {16,  20,  25,  32,  40,  51,  64,  81,  102, 128, 161,
                                                          203, 256, 323, 406, 512, 645, 813, 1024, 1290, 1625};

#define SUBCELLS 16
/* Five standard deviations of a rotated weight, whose variance is 1/128: where the outermost cells are cut off. */
#define OUTER_EDGE 28963

/* `z` in 1/8192. */
static uint32_t cdf(int64_t z) {
    const int64_t size = z < 0 ? -z : z, step = size >> 8;
    uint32_t value = CDF_ONE;
    if (step < CDF_LAST)
        value = normal_cdf[step] +
                (((normal_cdf[step + 1] - normal_cdf[step]) * (uint32_t)(size & 255)) >> 8);
    return z < 0 ? CDF_ONE - value : value;
}

/* One cell of the base's quantiser, cut into pieces: where a float weight with this code may have been. */
struct cell {
    int32_t place[SUBCELLS];
    uint32_t weight[SUBCELLS];
    uint32_t total;
};

/* sqrt(128) * 8192 / 65536 in 1/4096. */
static uint32_t weight_cdf(int32_t place) { return cdf(((int64_t)place * 5793) >> 12); }

static void cut_cell(struct cell *cell, int32_t low, int32_t high) {
    cell->total = 0;
    for (int32_t i = 0; i < SUBCELLS; i++) {
        const int32_t from = low + (high - low) * i / SUBCELLS, to = low + (high - low) * (i + 1) / SUBCELLS;
        cell->place[i] = (from + to) / 2;
        cell->weight[i] = weight_cdf(to) - weight_cdf(from) + 1; /* never 0: the far tails are tiny */
        cell->total += cell->weight[i];
    }
}

/* Share of the cell that lies below `edge` after errors of the given spread, in 1/65536. */
static uint32_t share_below(const struct cell *cell, int32_t edge, int32_t noise) {
    const int32_t reach = 5 * noise, per_noise = (8192 << 8) / noise;
    uint64_t sum = 0;
    if (edge >= cell->place[SUBCELLS - 1] + reach)
        return CDF_ONE;
    if (edge <= cell->place[0] - reach)
        return 0;
    for (int32_t i = 0; i < SUBCELLS; i++)
        sum += (uint64_t)cell->weight[i] * cdf((int64_t)(edge - cell->place[i]) * per_noise >> 8);
    return (uint32_t)(sum / cell->total);
}

struct quantiser {
    uint32_t count;
    uint32_t code[SG_RANS_SYMBOLS];        /* codes by rising level */
    int32_t edge[SG_RANS_SYMBOLS + 1];     /* cell i lies between edge[i] and edge[i + 1] */
};

static int sort_levels(struct quantiser *quantiser, const struct sg_guide_shape *shape) {
    const uint32_t count = 1u << shape->code_bits;
    quantiser->count = count;
    for (uint32_t code = 0; code < count; code++) {
        uint32_t at = code;
        for (; at > 0 && shape->level[quantiser->code[at - 1]] > shape->level[code]; at--)
            quantiser->code[at] = quantiser->code[at - 1];
        quantiser->code[at] = code;
    }
    quantiser->edge[0] = -OUTER_EDGE;
    quantiser->edge[count] = OUTER_EDGE;
    for (uint32_t i = 0; i < count; i++) {
        const int32_t level = shape->level[quantiser->code[i]];
        if (level <= quantiser->edge[0] || level >= OUTER_EDGE)
            return 0;
        if (i) {
            const int32_t below = shape->level[quantiser->code[i - 1]];
            if (below == level)
                return 0;
            quantiser->edge[i] = (below + level) >> 1;
        }
    }
    return 1;
}

int sg_guide_table_build(struct sg_guide_table *table, const struct sg_guide_shape *shape) {
    struct quantiser quantiser;
    table->shape.code_bits = 0;
    if (!sort_levels(&quantiser, shape))
        return 0;
    const int32_t noise = noise_units[shape->noise];
    const uint32_t spread = SG_RANS_ONE - shape->floor * quantiser.count;
    for (uint32_t i = 0; i < quantiser.count; i++) {
        struct cell cell;
        cut_cell(&cell, quantiser.edge[i], quantiser.edge[i + 1]);
        for (uint32_t bucket = 0; bucket < SG_GUIDE_BUCKETS; bucket++) {
            const int32_t width = 1 << shape->bucket_shift;
            const int32_t shift = ((int32_t)bucket - (int32_t)SG_GUIDE_BUCKETS / 2) * width + width / 2;
            uint32_t frequency[SG_RANS_SYMBOLS] = {0}, below = 0;
            for (uint32_t j = 0; j < quantiser.count; j++) {
                const uint32_t end =
                    j + 1 == quantiser.count
                        ? spread
                        : (share_below(&cell, quantiser.edge[j + 1] - shift, noise) * spread) >> 16;
                frequency[quantiser.code[j]] = end - below + shape->floor;
                below = end;
            }
            sg_rans_row_from_frequencies(&table->row[quantiser.code[i] * SG_GUIDE_BUCKETS + bucket], frequency);
        }
    }
    table->shape = *shape;
    return 1;
}

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

void sg_guide_group_contexts(struct sg_guide_group *group, const struct sg_guide_shape *shape, const int16_t *shift,
                             uint32_t row_norm, uint32_t old_norm, const uint16_t *old_codes, uint16_t *contexts) {
    const int32_t ratio = is_plain(row_norm) && is_plain(old_norm) ? norm_ratio(row_norm, old_norm) : 0;
    int32_t projection = 0, square = 0;
    int32_t levels[SG_PATCH_GROUP_CODES];
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++) {
        const int32_t d = within_16_bits((shift[i] * ratio) >> 12);
        levels[i] = shape->level[old_codes[i]];
        group->d[i] = (int16_t)d;
        projection += (levels[i] * d) >> 6;
        square += (d * d) >> 8;
    }
    group->old_norm = old_norm;
    group->old_projection = projection;
    group->rho = ratio_from_square(((int64_t)1 << 26) + 2 * (int64_t)projection + 4 * (int64_t)square);
    const int32_t inverse = (int32_t)(((uint32_t)1 << 31) / (uint32_t)group->rho);
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++) {
        const int32_t moved = (within_16_bits(levels[i] + group->d[i]) * inverse) >> 15;
        int32_t bucket = ((moved - levels[i]) >> shape->bucket_shift) + (int32_t)SG_GUIDE_BUCKETS / 2;
        bucket = bucket < 0 ? 0 : bucket > 255 ? 255 : bucket;
        contexts[i] = (uint16_t)(old_codes[i] * SG_GUIDE_BUCKETS + (uint32_t)bucket);
    }
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
    int32_t projection = 0;
    if (!is_plain(group->old_norm))
        return group->old_norm;
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++)
        projection += (shape->level[new_codes[i]] * group->d[i]) >> 6;
    const int64_t moved = ((int64_t)projection * group->rho) >> 16;
    return scaled_norm(group->old_norm, ratio_from_square(((int64_t)1 << 26) + group->old_projection + moved));
}
