/* Fixed point in plain C: the definition of what fixed_simd.c must give, bit for bit. */
#include "fixed.h"

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

void sg_fixed_levels_set(struct sg_fixed_levels *levels, const float value[16], enum sg_numerics numerics) {
    double largest = 0.0;
    for (size_t i = 0; i < 16; i++) {
        const double magnitude = value[i] < 0.0f ? -(double)value[i] : (double)value[i];
        if (magnitude > largest) largest = magnitude;
    }
    *levels = (struct sg_fixed_levels){0};
    if (largest == 0.0) return;
    const int numerator = numerics == SG_NUMERICS_FAST ? SG_FAST_MAX : best_numerator(value, largest);
    levels->unit = (float)(largest / numerator);
    for (size_t i = 0; i < 16; i++) {
        const double scaled = (double)value[i] * numerator / largest;
        levels->number[i] = (int16_t)(scaled + (scaled < 0 ? -0.5 : 0.5));
        levels->low[i] = (uint8_t)levels->number[i];
        levels->high[i] = (uint8_t)((uint16_t)levels->number[i] >> 8);
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

static float unit_of_group(const float x[SG_GROUP], enum sg_numerics numerics) {
    float largest, largest_run;
    measure_group(x, &largest, &largest_run);
    if (numerics == SG_NUMERICS_FAST) return largest * (1.0f / SG_FAST_MAX);
    const float by_value = largest * (1.0f / SG_EXACT_VALUE_MAX);
    const float by_run = largest_run * (1.0f / SG_EXACT_RUN_SUM_MAX);
    return by_value > by_run ? by_value : by_run;
}

void sg_fixed_put_scalar(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count) {
    for (size_t g = 0; g < fixed->group_count; g++) {
        const size_t left = column_count - g * SG_GROUP, taken = left < SG_GROUP ? left : SG_GROUP;
        float group[SG_GROUP] = {0};
        memcpy(group, x + g * SG_GROUP, taken * sizeof *group);
        sg_rotate_scalar(group, 1);
        float unit = unit_of_group(group, fixed->numerics);
        if (!(unit >= SG_UNIT_MIN)) unit = 0.0f;
        const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
        const size_t place = g * fixed->token_count + token;
        fixed->unit[place] = unit;
        int16_t *number = fixed->number + place * SG_GROUP;
        for (size_t i = 0; i < SG_GROUP; i++) {
            number[sg_fixed_place(i)] = (int16_t)sg_round_half_away(group[i] * inverse);
        }
    }
}

#if !defined(__wasm_simd128__) || defined(SG_SCALAR)
void sg_fixed_put(struct sg_fixed *fixed, uint32_t token, const float *x, size_t column_count) {
    sg_fixed_put_scalar(fixed, token, x, column_count);
}
#endif
