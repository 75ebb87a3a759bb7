/* Computed tables of guided coding: how often each code follows a code of the base and a predicted shift.
 *
 * Owns: the model of a quantised weight that moves. Integers only: every machine computes the same table.
 * Source: docs/formats/patch.md, "Guided codes". */
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

static void cut_cell(struct cell *cell, int32_t low, int32_t high, int32_t level, int32_t width) {
    cell->total = 0;
    for (int32_t i = 0; i < SUBCELLS; i++) {
        const int32_t from = low + (high - low) * i / SUBCELLS, to = low + (high - low) * (i + 1) / SUBCELLS;
        const int32_t middle = (from + to) / 2;
        cell->place[i] = level + (middle - level) * width / (int32_t)SG_GUIDE_WIDTH_ONE;
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

int sg_guide_cells_fill(struct sg_guide_cells *cells, const struct sg_guide_shape *shape) {
    const uint32_t count = 1u << shape->code_bits;
    cells->count = count;
    for (uint32_t code = 0; code < count; code++) {
        uint32_t at = code;
        for (; at > 0 && shape->level[cells->code[at - 1]] > shape->level[code]; at--)
            cells->code[at] = cells->code[at - 1];
        cells->code[at] = code;
    }
    cells->edge[0] = -OUTER_EDGE;
    cells->edge[count] = OUTER_EDGE;
    for (uint32_t i = 0; i < count; i++) {
        const int32_t level = shape->level[cells->code[i]];
        if (level <= cells->edge[0] || level >= OUTER_EDGE)
            return 0;
        if (i) {
            const int32_t below = shape->level[cells->code[i - 1]];
            if (below == level)
                return 0;
            cells->edge[i] = (below + level) >> 1;
        }
    }
    return 1;
}

int sg_guide_table_build(struct sg_guide_table *table, const struct sg_guide_shape *shape) {
    struct sg_guide_cells cells;
    table->shape.code_bits = 0;
    if (!sg_guide_cells_fill(&cells, shape))
        return 0;
    const int32_t noise = noise_units[shape->noise];
    const uint32_t spread = SG_RANS_ONE - shape->floor * cells.count;
    for (uint32_t i = 0; i < cells.count; i++) {
        struct cell cell;
        cut_cell(&cell, cells.edge[i], cells.edge[i + 1], shape->level[cells.code[i]], (int32_t)shape->width);
        for (uint32_t bucket = 0; bucket < SG_GUIDE_BUCKETS; bucket++) {
            const int32_t width = 1 << shape->bucket_shift;
            const int32_t shift = ((int32_t)bucket - (int32_t)SG_GUIDE_BUCKETS / 2) * width + width / 2;
            uint32_t frequency[SG_RANS_SYMBOLS] = {0}, below = 0;
            for (uint32_t j = 0; j < cells.count; j++) {
                const uint32_t end =
                    j + 1 == cells.count
                        ? spread
                        : (share_below(&cell, cells.edge[j + 1] - shift, noise) * spread) >> 16;
                frequency[cells.code[j]] = end - below + shape->floor;
                below = end;
            }
            sg_rans_row_from_frequencies(&table->row[cells.code[i] * SG_GUIDE_BUCKETS + bucket], frequency);
        }
    }
    table->shape = *shape;
    return 1;
}
