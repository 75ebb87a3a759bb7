/* Which computed table suits a guided tensor: how wide its buckets are, how far from its level a weight may lie, how
 * well the shift predicts.
 *
 * Owns: the search, by true code length of the counted codes. Knows nothing of: how a table is computed
 * (delta_guide_table.c). */
#include <string.h>

#include "patch_guide.h"

#define CONTEXT_COUNT (SG_RANS_SYMBOLS * SG_GUIDE_BUCKETS)
/* What a table's segment takes in the patch, in 1/65536 bit. */
#define TABLE_COST ((uint64_t)44 << 19)
/* Where the search for the noise starts. */
#define NOISE_FIRST 9u

static void count_contexts(struct sg_patch_maker *maker, const struct sg_guide_rows *rows,
                           const struct sg_guide_shape *shape) {
    memset(maker->guide_counts, 0, sizeof maker->guide_counts);
    for (uint32_t row = 0; row < rows->row_count; row++) {
        sg_guide_walk_row(maker, rows, shape, row, maker->contexts, maker->symbols, NULL);
        for (uint32_t i = 0; i < rows->row_codes; i++)
            maker->guide_counts[maker->contexts[i]][maker->symbols[i]]++;
    }
}

/* Code length of the counted codes, in 1/65536 bit; UINT64_MAX if a code that occurs has no frequency. */
static uint64_t counted_cost(const struct sg_patch_maker *maker, const struct sg_guide_table *table) {
    uint64_t cost = 0;
    for (uint32_t context = 0; context < CONTEXT_COUNT; context++)
        for (uint32_t code = 0; code < 1u << table->shape.code_bits; code++) {
            const uint32_t count = maker->guide_counts[context][code];
            const struct sg_rans_row *row = &table->row[context];
            const uint32_t frequency = (uint32_t)row->end[code + 1] - row->end[code];
            if (count && !frequency)
                return UINT64_MAX;
            if (count)
                cost += (uint64_t)count * ((SG_RANS_BITS << 16) - maker->fit->log2_of[frequency]);
        }
    return cost;
}

struct search {
    struct sg_patch_maker *maker;
    const struct sg_guide_rows *rows;
    struct sg_guide_shape best;
    uint64_t cost;
};

/* Steps outside of a number's bounds wrap around and are no better. */
static int try_table(struct search *search, struct sg_guide_shape shape) {
    if (shape.noise >= SG_GUIDE_NOISE_COUNT || !shape.width || shape.width > SG_GUIDE_WIDTH_ONE ||
        !sg_guide_table_build(&search->maker->guide_trial, &shape))
        return 0;
    const uint64_t cost = counted_cost(search->maker, &search->maker->guide_trial);
    if (cost >= search->cost)
        return 0;
    search->cost = cost;
    search->best = shape;
    return 1;
}

static void climb_noise(struct search *search) {
    int has_moved = 0;
    for (int32_t step = 1; step >= -1 && !has_moved; step -= 2) {
        struct sg_guide_shape next = search->best;
        for (next.noise += (uint32_t)step; try_table(search, next); next.noise += (uint32_t)step)
            has_moved = 1;
    }
}

/* What the place in a cell leaves open and what the prediction leaves open trade against each other. */
static int step_width(struct search *search, int32_t step) {
    for (int32_t noise_step = 1; noise_step <= 3; noise_step++) {
        struct sg_guide_shape next = search->best;
        next.width += (uint32_t)step;
        next.noise += (uint32_t)(step < 0 ? noise_step : -noise_step);
        if (try_table(search, next)) {
            climb_noise(search);
            return 1;
        }
    }
    return 0;
}

static void climb_width(struct search *search) {
    int has_moved = 0;
    for (int32_t step = -2; step <= 2 && !has_moved; step += 4)
        while (step_width(search, step))
            has_moved = 1;
}

/* Starts anew with other buckets: costs of different counts compare, as the codes are the same. */
static void recount(struct search *search, uint32_t bucket_shift) {
    search->best.bucket_shift = bucket_shift;
    search->cost = UINT64_MAX;
    count_contexts(search->maker, search->rows, &search->best);
    try_table(search, search->best);
}

static void climb_buckets(struct search *search) {
    int has_moved = 0;
    for (int32_t step = 1; step >= -1 && !has_moved; step -= 2)
        for (;;) {
            struct search next = *search;
            const uint32_t shift = search->best.bucket_shift + (uint32_t)step;
            if (shift < SG_GUIDE_BUCKET_SHIFT_MIN || shift > SG_GUIDE_BUCKET_SHIFT_MAX)
                break;
            recount(&next, shift);
            if (next.cost >= search->cost)
                break;
            *search = next;
            has_moved = 1;
        }
    count_contexts(search->maker, search->rows, &search->best);
}

/* A table that the rebuilder already has saves its segment. */
static void prefer_live(struct search *search) {
    const struct sg_patch_maker *maker = search->maker;
    uint64_t least = search->cost == UINT64_MAX ? search->cost : search->cost + TABLE_COST;
    for (uint32_t i = 0; i < SG_GUIDE_TABLE_COUNT; i++) {
        const struct sg_guide_shape *live = &maker->guide_shapes[i];
        if (live->code_bits != search->best.code_bits || live->bucket_shift != search->best.bucket_shift ||
            memcmp(live->level, search->best.level, sizeof live->level) != 0)
            continue;
        const uint64_t cost = counted_cost(maker, &maker->guide_tables[i]);
        if (cost >= least)
            continue;
        least = search->cost = cost;
        search->best = *live;
    }
}

int sg_guide_table_choose(struct sg_patch_maker *maker, const struct sg_guide_rows *rows,
                          struct sg_guide_shape *shape) {
    struct search search = {.maker = maker, .rows = rows, .best = *shape};
    search.best.noise = NOISE_FIRST;
    search.best.floor = 1;
    recount(&search, shape->bucket_shift);
    climb_noise(&search);
    if (maker->effort > 1) {
        climb_width(&search);
        climb_buckets(&search);
        climb_noise(&search);
    }
    struct sg_guide_shape bare = search.best;
    bare.floor = 0;
    try_table(&search, bare);
    prefer_live(&search);
    *shape = search.best;
    return search.cost != UINT64_MAX;
}

int sg_guide_table_settle(struct sg_patch_maker *maker, const struct sg_guide_rows *rows, struct sg_shift_use use,
                          struct sg_guide_shape *shape) {
    count_contexts(maker, rows, shape);
    shape->noise = use.noise;
    shape->width = use.width;
    for (shape->floor = 0; shape->floor < 2; shape->floor++)
        if (sg_guide_table_build(&maker->guide_trial, shape) && counted_cost(maker, &maker->guide_trial) != UINT64_MAX)
            return 1;
    return 0;
}
