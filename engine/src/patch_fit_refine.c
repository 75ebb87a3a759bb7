/* Refinement of a quantised shift: every entry is tried one up and one down, judged by the true code length.
 *
 * Owns: the tensor laid out by columns, and the search. The likelihood is not smooth where a shift moves codes over a
 * cell's border, so this finds what steps along the slope cannot. Norms count too: a shift that predicts them well
 * saves their bits. */
#include "patch_fit_run.h"

#include "delta_state.h"

/* Spread of prediction errors for which the code lengths are taken (delta_guide.c). */
#define REFINE_NOISE 8u

static void fill_costs(struct sg_fit_run *run) {
    struct sg_fit *fit = run->fit;
    struct sg_guide_shape shape = run->table_shape;
    shape.noise = REFINE_NOISE;
    shape.floor = 1;
    sg_guide_table_build(&fit->table, &shape);
    for (uint32_t context = 0; context < SG_GUIDE_BUCKETS << shape.code_bits; context++)
        for (uint32_t code = 0; code < 1u << shape.code_bits; code++) {
            const struct sg_rans_row *row = &fit->table.row[context];
            const uint32_t frequency = (uint32_t)row->end[code + 1] - row->end[code];
            const uint32_t bits = (SG_RANS_BITS << 16) - fit->log2_of[frequency];
            fit->cost[context * SG_RANS_SYMBOLS + code] = (float)bits * 0x1p-16f * 0.69314718f;
        }
}

/* Lays the tensor down column after column, with the present shift. */
static void open_columns(struct sg_fit_run *run) {
    struct sg_fit *fit = run->fit;
    const uint32_t rows = run->input->row_count;
    const float per_bucket = 65536.0f / (float)(1u << run->table_shape.bucket_shift);
    for (uint32_t row = 0; row < rows; row++) {
        sg_fit_open_row(run, row);
        sg_fit_row_shift(run, fit->p_real + (size_t)row * run->rank);
        for (uint32_t g = 0; g < run->input->group_count; g++) {
            const int is_open = sg_fit_is_open(run, g);
            const float ratio = is_open ? run->old_norm[g] / run->new_norm[g] : 1;
            const float weight = is_open ? run->old_norm[0] / run->new_norm[g] * per_bucket : 0;
            const float scale = is_open ? run->old_norm[0] / run->old_norm[g] : 0;
            float miss = is_open ? 1 / (ratio * ratio) - 1 : 0;
            fit->weight[(size_t)g * rows + row] = weight;
            for (uint32_t i = g * SG_PATCH_GROUP_CODES; i < (g + 1) * SG_PATCH_GROUP_CODES; i++) {
                const float level = run->level[fit->old_row[i]];
                const size_t at = (size_t)i * rows + row;
                fit->place[at] = level * (ratio - 1) * per_bucket + fit->shift[i] * weight + 128.0f;
                fit->pair[at] = (uint16_t)(fit->old_row[i] * SG_GUIDE_BUCKETS * SG_RANS_SYMBOLS + fit->new_row[i]);
                fit->direction[at] = (level + run->level[fit->new_row[i]] / ratio) * scale;
                miss -= fit->direction[at] * fit->shift[i];
            }
            fit->miss[(size_t)g * rows + row] = is_open ? miss : 0;
        }
    }
}

static double miss_variance(const struct sg_fit_run *run) {
    const size_t count = (size_t)run->input->row_count * run->input->group_count;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)run->fit->miss[i] * (double)run->fit->miss[i];
    return sum / (double)count + 1e-8;
}

static float cost_at(const struct sg_fit *fit, float place, uint16_t pair) {
    const uint32_t bucket = !(place >= 0) ? 0 : place > 255 ? 255 : (uint32_t)place; /* NaN is 0 */
    return fit->cost[pair + bucket * SG_RANS_SYMBOLS];
}

/* What column `i` costs as it is, in nats by row, into `shift`, which is not otherwise in use here. */
static void open_column_costs(struct sg_fit_run *run, uint32_t i) {
    struct sg_fit *fit = run->fit;
    const size_t at = (size_t)i * run->input->row_count;
    for (uint32_t row = 0; row < run->input->row_count; row++)
        fit->shift[row] = cost_at(fit, fit->place[at + row], fit->pair[at + row]);
}

/* Nats that column `i` costs more when component k's entry moves its shifts by `step` times P. */
static double column_gain(const struct sg_fit_run *run, uint32_t i, uint32_t k, float step, float per_miss) {
    const struct sg_fit *fit = run->fit;
    const uint32_t rows = run->input->row_count, g = i / SG_PATCH_GROUP_CODES;
    const float *place = fit->place + (size_t)i * rows, *direction = fit->direction + (size_t)i * rows;
    const float *weight = fit->weight + (size_t)g * rows, *miss = fit->miss + (size_t)g * rows;
    const uint16_t *pair = fit->pair + (size_t)i * rows;
    double gain = 0;
    for (uint32_t row = 0; row < rows; row++) {
        const float moved = fit->p_real[(size_t)row * run->rank + k] * step;
        const float less = direction[row] * moved;
        gain += (double)(cost_at(fit, place[row] + moved * weight[row], pair[row]) - fit->shift[row] +
                         per_miss * less * (less - 2 * miss[row]));
    }
    return gain;
}

static void move_column(struct sg_fit_run *run, uint32_t i, uint32_t k, float step) {
    struct sg_fit *fit = run->fit;
    const uint32_t rows = run->input->row_count, g = i / SG_PATCH_GROUP_CODES;
    for (uint32_t row = 0; row < rows; row++) {
        const float moved = fit->p_real[(size_t)row * run->rank + k] * step;
        fit->place[(size_t)i * rows + row] += moved * fit->weight[(size_t)g * rows + row];
        fit->miss[(size_t)g * rows + row] -= fit->direction[(size_t)i * rows + row] * moved;
    }
    fit->q_real[(size_t)k * run->columns + i] += step;
    open_column_costs(run, i);
}

static void refine_q(struct sg_fit_run *run) {
    const float per_miss = (float)(0.5 / miss_variance(run));
    for (uint32_t i = 0; i < run->columns; i++) {
        open_column_costs(run, i);
        for (uint32_t k = 0; k < run->rank; k++) {
            const double entry = (double)sg_fit_q_entry(run, k, i);
            const double rate = 0.5 / (run->q_spread[k] * run->q_spread[k]);
            for (int sign = -1; sign <= 1; sign += 2) {
                const double dearer = rate * (1 + 2 * sign * entry);
                if (column_gain(run, i, k, (float)sign * run->unit[k], per_miss) + dearer < 0) {
                    move_column(run, i, k, (float)sign * run->unit[k]);
                    break;
                }
            }
        }
    }
}

/* As open_column_costs, of a row. */
static void open_row_costs(struct sg_fit_run *run, uint32_t row) {
    struct sg_fit *fit = run->fit;
    for (uint32_t i = 0; i < run->columns; i++) {
        const size_t at = (size_t)i * run->input->row_count + row;
        fit->shift[i] = cost_at(fit, fit->place[at], fit->pair[at]);
    }
}

static double row_gain(const struct sg_fit_run *run, uint32_t row, uint32_t k, float step, float per_miss) {
    const struct sg_fit *fit = run->fit;
    const uint32_t rows = run->input->row_count;
    const float *q = fit->q_real + (size_t)k * run->columns;
    double gain = 0;
    for (uint32_t g = 0; g < run->input->group_count; g++) {
        const float weight = fit->weight[(size_t)g * rows + row] * step, miss = fit->miss[(size_t)g * rows + row];
        float group_gain = 0, less = 0;
        for (uint32_t i = g * SG_PATCH_GROUP_CODES; i < (g + 1) * SG_PATCH_GROUP_CODES; i++) {
            const size_t at = (size_t)i * rows + row;
            group_gain += cost_at(fit, fit->place[at] + q[i] * weight, fit->pair[at]) - fit->shift[i];
            less += fit->direction[at] * q[i] * step;
        }
        gain += (double)(group_gain + per_miss * less * (less - 2 * miss));
    }
    return gain;
}

static void move_row(struct sg_fit_run *run, uint32_t row, uint32_t k, float step) {
    struct sg_fit *fit = run->fit;
    const uint32_t rows = run->input->row_count;
    for (uint32_t i = 0; i < run->columns; i++) {
        const size_t at = (size_t)i * rows + row, norm = (size_t)(i / SG_PATCH_GROUP_CODES) * rows + row;
        const float moved = fit->q_real[(size_t)k * run->columns + i] * step;
        fit->place[at] += moved * fit->weight[norm];
        fit->miss[norm] -= fit->direction[at] * moved;
    }
    fit->p_real[(size_t)row * run->rank + k] += step;
    open_row_costs(run, row);
}

static void refine_p(struct sg_fit_run *run) {
    const float per_miss = (float)(0.5 / miss_variance(run));
    for (uint32_t row = 0; row < run->input->row_count; row++) {
        open_row_costs(run, row);
        for (uint32_t k = 0; k < run->rank; k++) {
            const double entry = (double)run->fit->p_real[(size_t)row * run->rank + k];
            const double rate = 0.5 / (run->p_spread[k] * run->p_spread[k]);
            for (int sign = -1; sign <= 1; sign += 2) {
                const double dearer = rate * (1 + 2 * sign * entry);
                if (row_gain(run, row, k, (float)sign, per_miss) + dearer < 0) {
                    move_row(run, row, k, (float)sign);
                    break;
                }
            }
        }
    }
}

void sg_fit_refine(struct sg_fit_run *run, uint32_t pass_count) {
    if (!pass_count || (size_t)run->columns * run->input->row_count > SG_FIT_CODES_MAX)
        return;
    fill_costs(run);
    open_columns(run);
    for (uint32_t pass = 0; pass < pass_count; pass++) {
        refine_q(run);
        refine_p(run);
    }
}
