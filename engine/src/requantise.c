/* Codes for a specialist whose patch shall be small, instead of the codes nearest to its weights.
 *
 * Owns: the choice of codes and norms under a settled shift, and of how far the shift is boosted or the codes are
 * pushed, so that the change that arrives has the wanted size (its gain is 1). Knows nothing of: budgets, files.
 * Method: zero residual takes the codes that the shift predicts. Otherwise each code is the one with the smallest
 * squared error plus lambda times its code length in the patch: rate-distortion optimised quantisation. */
#include <string.h>

#include "error.h"
#include "patch_shift.h"
#include "saguaro.h"

#include "delta_state.h"

#define CONTEXTS (SG_RANS_SYMBOLS * SG_GUIDE_BUCKETS)
/* Codes by which boost, push and table are chosen: enough to know the gain to a per cent; and to a few. */
#define SAMPLE_CODES (128u * 1024u)
#define ROUGH_SAMPLE_CODES (24u * 1024u)
/* The rough boost is found with a shift rounded this much finer. */
#define ROUGH_STEP_FACTOR 0.125f
#define BOOST_MIN (SG_GUIDE_BOOST_ONE / 4)
/* How the computed tables are tried: spreads of prediction errors (delta_guide.c), parts of a cell. */
static const uint8_t noises[] = {6, 9, 12}, widths[] = {16, 12, 8, 4, 1};
#define TABLE_COUNT (sizeof noises * sizeof widths)
#define TABLE_ROUNDS 3u
#define PUSH_ROUNDS 10u
#define PUSH_MIN -1.0f
#define PUSH_MAX 7.0f

struct sg_requantiser {
    struct sg_basis_hint hint;
    uint32_t cost_bits; /* code bits for which `cost` is filled; 0: none */
    struct sg_guide_shape shape;
    struct sg_guide_cells cells;
    struct sg_fit fit;
    int16_t q[SG_GUIDE_Q_MAX];
    int16_t shift[SG_PATCH_ROW_CODES_MAX];
    uint16_t old_row[SG_PATCH_ROW_CODES_MAX];
    uint16_t contexts[SG_PATCH_ROW_CODES_MAX];
    uint8_t new_row[SG_PATCH_ROW_CODES_MAX];
    uint16_t new_norms[SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES];
    float wanted[SG_PATCH_ROW_CODES_MAX];
    float cost[TABLE_COUNT][CONTEXTS * SG_RANS_SYMBOLS]; /* bits */
    uint32_t counts[CONTEXTS * SG_RANS_SYMBOLS];
};

/* One call. */
struct run {
    struct sg_requantiser *state;
    const struct sg_requantise_input *input;
    uint32_t row_codes, row_bytes, code_bits;
    uint32_t sample_codes;
    int is_optimised; /* by rate and distortion; else zero residual */
    uint32_t boost; /* zero residual */
    uint32_t table; /* else: index of `cost` */
    float push;
    const uint8_t *old_norms;
    double wanted_square, product, error_square;
};

size_t sg_requantise_size(void) { return sizeof(struct sg_requantiser); }

void sg_requantise_begin(struct sg_requantiser *state, uint32_t adapter_seed) {
    state->hint = (struct sg_basis_hint){.seed = adapter_seed};
    state->cost_bits = 0;
    sg_fit_begin(&state->fit);
}

static float half_value(uint32_t bits) {
    return bits >= 0x0400 && bits < 0x7c00 ? sg_float_of_half((uint16_t)bits) : 0.0f;
}

static struct sg_guide_shape table_shape(const struct run *run, uint32_t table) {
    struct sg_guide_shape shape = run->state->shape;
    shape.noise = noises[table % sizeof noises];
    shape.width = widths[table / sizeof noises];
    shape.floor = 1;
    return shape;
}

static void fill_costs(struct run *run) {
    struct sg_requantiser *state = run->state;
    struct sg_guide_table *table = &state->fit.table;
    if (state->cost_bits == run->code_bits)
        return;
    state->cost_bits = run->code_bits;
    for (uint32_t t = 0; t < TABLE_COUNT; t++) {
        const struct sg_guide_shape shape = table_shape(run, t);
        sg_guide_table_build(table, &shape);
        for (uint32_t context = 0; context < SG_GUIDE_BUCKETS << run->code_bits; context++)
            for (uint32_t code = 0; code < 1u << run->code_bits; code++) {
                const struct sg_rans_row *row = &table->row[context];
                const uint32_t frequency = (uint32_t)row->end[code + 1] - row->end[code];
                const uint32_t bits = (SG_RANS_BITS << 16) - state->fit.log2_of[frequency];
                state->cost[t][context * SG_RANS_SYMBOLS + code] = (float)bits * 0x1p-16f;
            }
    }
}

/* The shift over the row's first norm, where that is a positive normal number; such rows stay as they are. */
static void shift_over_norms(const struct run *run) {
    const struct sg_requantise_input *input = run->input;
    struct sg_fit *fit = &run->state->fit;
    for (uint32_t row = 0; row < input->row_count; row++) {
        const float norm = half_value(sg_load_u16(run->old_norms + (size_t)2 * input->group_count * row));
        for (uint32_t k = 0; k < input->rank; k++)
            fit->p_real[(size_t)row * input->rank + k] = norm > 0 ? input->p[(size_t)row * input->rank + k] / norm : 0;
    }
    memcpy(fit->q_real, input->q, (size_t)input->rank * run->row_codes * sizeof *input->q);
}

/* Returns 0 if nothing of the shift is left. */
static int settle(struct run *run, float step) {
    const struct sg_requantise_input *input = run->input;
    struct sg_requantiser *state = run->state;
    struct sg_fit *fit = &state->fit;
    const struct sg_fit_input settled = {.row_count = input->row_count,
                                         .group_count = input->group_count,
                                         .code_bits = run->code_bits,
                                         .width = input->width,
                                         .shape = &state->shape,
                                         .hint = &state->hint};
    shift_over_norms(run);
    sg_fit_settle(fit, &settled, input->rank, step);
    for (uint32_t k = 0; k < fit->rank; k++)
        for (uint32_t i = 0; i < run->row_codes; i++)
            if (!sg_guide_q_entry(fit->q[k * run->row_codes + i], fit->gain[k], fit->mix[k], fit->basis_rows + i,
                                  fit->basis.rank, run->row_codes, &state->q[k * run->row_codes + i]))
                return 0;
    return fit->rank != 0;
}

/* ---- one row ---- */

static void predict_group(struct run *run, uint32_t g, struct sg_guide_group *group, uint32_t row_norm,
                          uint32_t old_norm) {
    struct sg_requantiser *state = run->state;
    const uint32_t at = g * SG_PATCH_GROUP_CODES;
    sg_guide_group_open(group, &state->shape, state->shift + at, row_norm, old_norm, state->old_row + at);
    sg_guide_group_codes(group, &state->shape, &state->cells, run->boost, state->old_row + at, state->new_row + at);
}

/* The code with the least squared error, in variances of a unit weight, plus lambda times its length. */
static void optimise_group(struct run *run, uint32_t g, struct sg_guide_group *group, uint32_t row_norm,
                           uint32_t old_norm, const float *weights) {
    struct sg_requantiser *state = run->state;
    const uint32_t at = g * SG_PATCH_GROUP_CODES, alphabet = 1u << run->code_bits;
    const float norm = half_value(old_norm), lambda = run->input->lambda;
    float level[SG_RANS_SYMBOLS];
    sg_guide_group_contexts(group, &state->shape, state->shift + at, row_norm, old_norm, state->old_row + at,
                            state->contexts + at);
    const float per_norm = norm > 0 ? 65536.0f / ((float)group->rho * norm) : 0, per_unit = 1.0f / (float)group->rho;
    for (uint32_t code = 0; code < alphabet; code++)
        level[code] = (float)state->shape.level[code] / 65536.0f;
    for (uint32_t i = 0; i < SG_PATCH_GROUP_CODES; i++) {
        const float place = weights[at + i] * per_norm + run->push * (float)group->d[i] * per_unit;
        const float *cost = state->cost[run->table] + (size_t)state->contexts[at + i] * SG_RANS_SYMBOLS;
        float least = 0;
        uint32_t best = state->old_row[at + i];
        for (uint32_t code = 0; norm > 0 && code < alphabet; code++) {
            const float miss = place - level[code], total = miss * miss * 128.0f + lambda * cost[code];
            if (!code || total < least)
                least = total, best = code;
        }
        state->new_row[at + i] = (uint8_t)best;
    }
}

static void choose_row(struct run *run, uint32_t row) {
    struct sg_requantiser *state = run->state;
    const struct sg_requantise_input *input = run->input;
    const uint8_t *norms = run->old_norms + (size_t)2 * input->group_count * row;
    sg_unpack_codes(input->base + (size_t)run->row_bytes * row, run->code_bits, run->row_codes, state->old_row);
    sg_guide_row(state->fit.p + (size_t)row * state->fit.rank, state->q, state->fit.rank, run->row_codes,
                 state->fit.pre_shift, state->shift);
    for (uint32_t g = 0; g < input->group_count; g++) {
        const uint32_t row_norm = sg_load_u16(norms), old_norm = sg_load_u16(norms + 2 * g);
        struct sg_guide_group group;
        if (run->is_optimised)
            optimise_group(run, g, &group, row_norm, old_norm, input->weights + (size_t)run->row_codes * row);
        else
            predict_group(run, g, &group, row_norm, old_norm);
        state->new_norms[g] =
            (uint16_t)sg_guide_norm(&group, &state->shape, state->new_row + g * SG_PATCH_GROUP_CODES);
    }
}

/* Adds the row's wanted and realised change to the sums. */
static void measure_row(struct run *run, uint32_t row) {
    struct sg_requantiser *state = run->state;
    const struct sg_requantise_input *input = run->input;
    memset(state->wanted, 0, run->row_codes * sizeof *state->wanted);
    for (uint32_t k = 0; k < input->rank; k++)
        for (uint32_t i = 0; i < run->row_codes; i++)
            state->wanted[i] +=
                input->p[(size_t)row * input->rank + k] * input->q[(size_t)k * run->row_codes + i];
    for (uint32_t g = 0; g < input->group_count; g++) {
        const uint32_t at = g * SG_PATCH_GROUP_CODES;
        const float old_scale =
            half_value(sg_load_u16(run->old_norms + 2 * ((size_t)input->group_count * row + g))) / 65536.0f;
        const float new_scale = half_value(state->new_norms[g]) / 65536.0f;
        float wanted_square = 0, product = 0, error_square = 0;
        for (uint32_t i = at; i < at + SG_PATCH_GROUP_CODES; i++) {
            const float change = (float)state->shape.level[state->new_row[i]] * new_scale -
                                 (float)state->shape.level[state->old_row[i]] * old_scale;
            wanted_square += state->wanted[i] * state->wanted[i];
            product += change * state->wanted[i];
            error_square += (change - state->wanted[i]) * (change - state->wanted[i]);
        }
        run->wanted_square += (double)wanted_square;
        run->product += (double)product;
        run->error_square += (double)error_square;
    }
}

/* ---- over rows ---- */

static uint32_t sample_stride(const struct run *run) {
    const uint64_t codes = (uint64_t)run->row_codes * run->input->row_count;
    return codes <= run->sample_codes ? 1 : (uint32_t)(codes / run->sample_codes);
}

static double sampled_gain(struct run *run) {
    run->wanted_square = run->product = run->error_square = 0;
    for (uint32_t row = 0; row < run->input->row_count; row += sample_stride(run)) {
        choose_row(run, row);
        measure_row(run, row);
    }
    return run->wanted_square > 0 ? run->product / run->wanted_square : 1;
}

/* The smallest boost with which the shift arrives in full. */
static void find_boost(struct run *run) {
    uint32_t low = BOOST_MIN, high = SG_GUIDE_BOOST_MAX;
    while (low < high) {
        run->boost = low + (high - low) / 2;
        if (sampled_gain(run) < 1)
            low = run->boost + 1;
        else
            high = run->boost;
    }
    run->boost = low;
}

/* A weak change is boosted, and the rounding of its factors with it: so these are rounded the finer. A boost below 1
 * makes up for large jumps over borders and says nothing of precision. */
static int settle_for_boost(struct run *run) {
    run->sample_codes = ROUGH_SAMPLE_CODES;
    if (!settle(run, run->input->step * ROUGH_STEP_FACTOR))
        return 0;
    find_boost(run);
    run->sample_codes = SAMPLE_CODES;
    const float boost = run->boost > SG_GUIDE_BOOST_ONE ? (float)run->boost / SG_GUIDE_BOOST_ONE : 1;
    return settle(run, run->input->step / boost);
}

static void count_codes(struct run *run) {
    struct sg_requantiser *state = run->state;
    memset(state->counts, 0, sizeof state->counts);
    for (uint32_t row = 0; row < run->input->row_count; row += sample_stride(run)) {
        choose_row(run, row);
        for (uint32_t i = 0; i < run->row_codes; i++)
            state->counts[(size_t)state->contexts[i] * SG_RANS_SYMBOLS + state->new_row[i]]++;
    }
}

static double table_bits(const struct run *run, uint32_t table) {
    double bits = 0;
    for (size_t i = 0; i < (size_t)(SG_GUIDE_BUCKETS << run->code_bits) * SG_RANS_SYMBOLS; i++)
        if (run->state->counts[i])
            bits += (double)run->state->counts[i] * (double)run->state->cost[table][i];
    return bits;
}

/* Codes for the table, the table for the codes, and again: either lowers the sum of error and length. */
static void find_table(struct run *run) {
    run->table = 0;
    for (uint32_t round = 0; round < TABLE_ROUNDS; round++) {
        count_codes(run);
        double least = table_bits(run, run->table);
        for (uint32_t t = 0; t < TABLE_COUNT; t++) {
            const double bits = table_bits(run, t);
            if (bits < least)
                least = bits, run->table = t;
        }
    }
}

/* Cheap codes are those that stay: the push along the shift makes up for it. */
static void find_push(struct run *run) {
    float low = PUSH_MIN, high = PUSH_MAX;
    for (uint32_t round = 0; round < PUSH_ROUNDS; round++) {
        run->push = (low + high) / 2;
        if (sampled_gain(run) < 1)
            low = run->push;
        else
            high = run->push;
    }
    run->push = high;
}

static void write_rows(struct run *run, uint8_t *target) {
    const struct sg_requantise_input *input = run->input;
    uint8_t *norms = target + (size_t)run->row_bytes * input->row_count;
    run->wanted_square = run->product = run->error_square = 0;
    for (uint32_t row = 0; row < input->row_count; row++) {
        choose_row(run, row);
        measure_row(run, row);
        sg_pack_codes(run->state->new_row, run->code_bits, run->row_codes, target + (size_t)run->row_bytes * row);
        for (uint32_t g = 0; g < input->group_count; g++, norms += 2)
            sg_store_u16(norms, run->state->new_norms[g]);
    }
}

static int check(const struct sg_requantise_input *input, struct sg_error *error) {
    const uint64_t row_codes = (uint64_t)input->group_count * SG_PATCH_GROUP_CODES;
    if (!sg_cq_code_bits(input->bits))
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "input.bits", 0, input->bits, 5);
    if (!row_codes || row_codes > SG_PATCH_ROW_CODES_MAX)
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "input.group_count", 0, input->group_count,
                       SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES);
    if (!input->rank || input->rank > SG_GUIDE_RANK_MAX || input->rank * row_codes > SG_GUIDE_Q_MAX)
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "input.rank", 0, input->rank, SG_GUIDE_RANK_MAX);
    if (!input->row_count || input->row_count > SG_FIT_P_MAX / input->rank)
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "input.row_count", 0, input->row_count,
                       SG_FIT_P_MAX / input->rank);
    if (!input->width || input->width > row_codes)
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "input.width", 0, input->width, row_codes);
    if (!(input->step > 0) || !(input->lambda >= 0))
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "input.step", 0, 0, 0);
    return SG_STATUS_OK;
}

size_t sg_requantise_shift_bound(uint32_t row_count, uint32_t group_count) {
    return sg_shift_bound(row_count, group_count * SG_PATCH_GROUP_CODES);
}

int sg_requantise(struct sg_requantiser *state, const struct sg_requantise_input *input, uint8_t *target, uint8_t *shift,
                  struct sg_requantised *result, struct sg_error *error) {
    const int status = check(input, error);
    if (status != SG_STATUS_OK)
        return status;
    struct run run = {.state = state,
                      .input = input,
                      .code_bits = sg_cq_code_bits(input->bits),
                      .row_codes = input->group_count * SG_PATCH_GROUP_CODES};
    run.row_bytes = run.row_codes / 8 * run.code_bits;
    run.old_norms = input->base + (size_t)run.row_bytes * input->row_count;
    *result = (struct sg_requantised){0};
    state->shape = (struct sg_guide_shape){.bucket_shift = 7, .width = SG_GUIDE_WIDTH_ONE};
    sg_guide_levels(&state->shape, input->codebooks + 4 * SG_CODEBOOK_LEVELS, input->bits);
    if (!sg_guide_cells_fill(&state->cells, &state->shape))
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "input.codebooks", 0, 0, 0);
    if (!settle_for_boost(&run)) {
        memcpy(target, input->base, (run.row_bytes + (size_t)2 * input->group_count) * input->row_count);
        return SG_STATUS_OK;
    }
    if (input->weights) {
        run.is_optimised = 1;
        fill_costs(&run);
        find_table(&run);
        find_push(&run);
    } else if (!input->is_trial) {
        find_boost(&run);
    }
    write_rows(&run, target);
    const struct sg_guide_shape table = table_shape(&run, run.table);
    const struct sg_shift_use use = input->weights ? (struct sg_shift_use){0, table.noise, table.width}
                                                   : (struct sg_shift_use){.boost = run.boost};
    *result = (struct sg_requantised){.wanted_square = run.wanted_square,
                                      .product = run.product,
                                      .error_square = run.error_square,
                                      .rank = state->fit.rank,
                                      .boost = run.boost,
                                      .push = run.push,
                                      .noise = use.noise,
                                      .table_width = use.width};
    result->shift_bytes = (uint32_t)sg_shift_store(&state->fit, input->row_count, run.row_codes, use, shift);
    return SG_STATUS_OK;
}
