/* Fixed point in plain C: the definition of what fixed_simd.c must give, bit for bit. */
#include "fixed.h"

#include <stdbool.h>
#include <string.h>

#include "kernels.h"

static double squared_error(const float value[16], double largest, int numerator) {
    double error = 0.0;
    for (size_t i = 0; i < 16; i++) {
        const double scaled = (double)value[i] * numerator / largest;
        const double difference = (scaled - (double)(int)(scaled + (scaled < 0 ? -0.5 : 0.5))) / numerator;
        error += difference * difference;
    }
    return error;
}

/* Of all scales that use more than half of the range, the one at which the 16 levels are nearest to whole numbers. */
static int best_numerator(const float value[16], double largest) {
    int best = SG_EXACT_LEVEL_MAX;
    double least = squared_error(value, largest, best);
    for (int numerator = SG_EXACT_LEVEL_MAX - 1; numerator > SG_EXACT_LEVEL_MAX / 2; numerator--) {
        const double error = squared_error(value, largest, numerator);
        if (error < least) {
            least = error;
            best = numerator;
        }
    }
    return best;
}

static void set_numbers(struct sg_fixed_levels *levels, const int number[16]) {
    for (size_t i = 0; i < 16; i++) {
        levels->number[i] = (int16_t)number[i];
        levels->low[i] = (uint8_t)number[i];
        levels->high[i] = (uint8_t)((uint16_t)number[i] >> 8);
    }
}

static void set_even_levels(struct sg_fixed_levels *levels, const float value[16]) {
    double largest = 0.0;
    for (size_t i = 0; i < 16; i++) {
        const double magnitude = value[i] < 0.0f ? -(double)value[i] : (double)value[i];
        if (magnitude > largest) largest = magnitude;
    }
    if (largest == 0.0) return;
    const int numerator = best_numerator(value, largest);
    int number[16];
    for (size_t i = 0; i < 16; i++) {
        const double scaled = (double)value[i] * numerator / largest;
        number[i] = (int)(scaled + (scaled < 0 ? -0.5 : 0.5));
    }
    set_numbers(levels, number);
    levels->unit = (float)(largest / numerator);
}

/* The line value = unit * number + shift that is nearest to the 16 points. Returns the sum of squared errors. */
static double fit_line(const float value[16], const int number[16], double *unit, double *shift) {
    double sum_n = 0.0, sum_v = 0.0, sum_nn = 0.0, sum_nv = 0.0, error = 0.0;
    for (size_t i = 0; i < 16; i++) {
        sum_n += number[i];
        sum_v += (double)value[i];
        sum_nn += (double)number[i] * number[i];
        sum_nv += number[i] * (double)value[i];
    }
    *unit = (16.0 * sum_nv - sum_n * sum_v) / (16.0 * sum_nn - sum_n * sum_n);
    *shift = (sum_v - *unit * sum_n) / 16.0;
    for (size_t i = 0; i < 16; i++) {
        const double difference = *unit * number[i] + *shift - (double)value[i];
        error += difference * difference;
    }
    return error;
}

/* Whole numbers from 0 to 127 and a fractional offset: of all spans of the numbers and eight phases of rounding, the one
 * with the least squared error. */
static void set_offset_levels(struct sg_fixed_levels *levels, const float value[16]) {
    double lowest = (double)value[0], highest = lowest, least = -1.0;
    for (size_t i = 1; i < 16; i++) {
        if ((double)value[i] < lowest) lowest = (double)value[i];
        if ((double)value[i] > highest) highest = (double)value[i];
    }
    if (highest == lowest) return;
    for (int span = 127; span > 63; span--) {
        for (int phase = 0; phase < 8; phase++) {
            int number[16], most = 0;
            for (size_t i = 0; i < 16; i++) {
                number[i] = (int)(((double)value[i] - lowest) / (highest - lowest) * span + phase * 0.125 + 0.5);
                if (number[i] > most) most = number[i];
            }
            double unit, shift;
            const double error = fit_line(value, number, &unit, &shift);
            if (most > 127 || (least >= 0.0 && error >= least)) continue;
            least = error;
            set_numbers(levels, number);
            levels->unit = (float)unit;
            levels->offset = (float)(shift / unit);
        }
    }
}

void sg_fixed_levels_set(struct sg_fixed_levels *levels, const float value[16], enum sg_rounding rounding) {
    *levels = (struct sg_fixed_levels){0};
    if (rounding == SG_ROUNDING_7) {
        set_offset_levels(levels, value);
    } else {
        set_even_levels(levels, value);
    }
}

/* Largest magnitude, and largest sum of magnitudes in one 32-bit sum: lane l of each 32 elements takes 4l .. 4l+3 and
 * 16+4l .. 16+4l+3. */
static void measure_group(const float x[SG_GROUP], float *largest, float *largest_run) {
    float most = 0.0f, most_run = 0.0f;
    for (size_t start = 0; start < SG_GROUP; start += 32) {
        for (size_t lane = 0; lane < 4; lane++) {
            float a[SG_RUN];
            for (size_t k = 0; k < SG_RUN; k++) {
                const float v = x[start + 16 * (k / 4) + 4 * lane + k % 4];
                a[k] = v < 0.0f ? -v : v;
                if (a[k] > most) most = a[k];
            }
            const float run = ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
            if (run > most_run) most_run = run;
        }
    }
    *largest = most;
    *largest_run = most_run;
}

/* Twice the largest sum of the positive, or of the negative, of four neighbours. */
static float largest_quad(const float x[SG_GROUP]) {
    float most = 0.0f;
    for (size_t i = 0; i < SG_GROUP; i += 4) {
        float a[4];
        for (size_t k = 0; k < 4; k++) a[k] = x[i + k] < 0.0f ? -x[i + k] : x[i + k];
        const float all = (a[0] + a[1]) + (a[2] + a[3]);
        const float net = (x[i] + x[i + 1]) + (x[i + 2] + x[i + 3]);
        const float twice = all + (net < 0.0f ? -net : net);
        if (twice > most) most = twice;
    }
    return most;
}

static float unit_of_group(const float x[SG_GROUP], enum sg_rounding rounding) {
    float largest, largest_run;
    measure_group(x, &largest, &largest_run);
    const bool exact = rounding == SG_ROUNDING_16;
    const float by_value = largest * (exact ? 1.0f / SG_EXACT_VALUE_MAX : 1.0f / SG_FAST_MAX);
    const float by_sum = exact ? largest_run * (1.0f / SG_EXACT_RUN_SUM_MAX) : largest_quad(x) * (0.5f / SG_QUAD_MAX);
    return by_value > by_sum ? by_value : by_sum;
}

void sg_fixed_put_scalar(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count) {
    for (size_t g = 0; g < fixed->group_count; g++) {
        const size_t left = column_count - g * SG_GROUP, taken = left < SG_GROUP ? left : SG_GROUP;
        float group[SG_GROUP] = {0};
        memcpy(group, x + g * SG_GROUP, taken * sizeof *group);
        sg_rotate_scalar(group, 1);
        float unit = unit_of_group(group, fixed->rounding);
        if (!(unit >= SG_UNIT_MIN)) unit = 0.0f;
        const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
        const size_t place = g * fixed->token_count + token;
        fixed->unit[place] = unit;
        int16_t *number = fixed->number + place * SG_GROUP;
        int32_t sum = 0;
        for (size_t i = 0; i < SG_GROUP; i++) {
            number[sg_fixed_place(i)] = (int16_t)sg_round_half_away(group[i] * inverse);
            sum += number[sg_fixed_place(i)];
        }
        fixed->sum[place] = (float)sum;
    }
}

#if !defined(__wasm_simd128__) || defined(SG_SCALAR)
void sg_fixed_put(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count) {
    sg_fixed_put_scalar(fixed, token, x, column_count);
}
#endif
