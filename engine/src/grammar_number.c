/* Numbers within bounds, digit by digit.
 *
 * A bounded number is a whole number of 10^-decimals. What its digits so far can still become are whole intervals of
 * them: one for each count of digits that may follow. A digit fits if one of the intervals holds a value within the bounds
 * that is a multiple of the step; so no digit is taken that cannot lead to an end. */
#include "grammar.h"

enum phase { START, MINUS, ZERO, WHOLE, POINT, FRACTION, EXPONENT, SIGN, POWER };

#define EXPONENT_DIGITS_MAX 2u /* so that no number is beyond binary64 */

int64_t sg_power_of_ten(uint32_t exponent) {
    int64_t power = 1;
    while (exponent-- > 0) power *= 10;
    return power;
}

bool sg_decimal_read(const uint8_t *text, uint32_t byte_count, struct sg_decimal *decimal) {
    const bool negative = text[0] == '-';
    int64_t digits = 0, exponent = 0;
    uint32_t count = 0, at = negative;
    bool in_fraction = false;
    int64_t shift = 0;
    for (; at < byte_count && (text[at] | 0x20) != 'e'; at++) {
        if (text[at] == '.') {
            in_fraction = true;
            continue;
        }
        if (digits > 0 && ++count >= SG_DIGITS_MAX) return false;
        digits = digits * 10 + (text[at] - '0');
        shift -= in_fraction;
    }
    const bool down = at + 1 < byte_count && text[at + 1] == '-';
    for (at++; at < byte_count; at++) {
        if (text[at] >= '0' && text[at] <= '9' && exponent < 1000) exponent = exponent * 10 + (text[at] - '0');
    }
    shift += down ? -exponent : exponent;
    for (; digits % 10 == 0 && shift < 0 && digits != 0; shift++) digits /= 10;
    if (digits == 0) shift = 0;
    for (; shift > 0; shift--) {
        if (digits >= 100000000000000000) return false;
        digits *= 10;
    }
    if (shift < -(int64_t)SG_DIGITS_MAX) return false;
    *decimal = (struct sg_decimal){negative ? -digits : digits, (uint32_t)-shift};
    return true;
}

static int64_t floor_division(int64_t value, int64_t divisor) {
    return value / divisor - (value % divisor < 0);
}

/* Whether one of the magnitudes from `low` to `high` is a value of the node. */
static bool holds(const struct sg_node *node, bool negative, int64_t low, int64_t high) {
    const int64_t from = negative ? -high : low, to = negative ? -low : high;
    const int64_t bottom = from > node->low ? from : node->low, top = to < node->high ? to : node->high;
    return bottom <= top && floor_division(top, node->step) * node->step >= bottom;
}

static bool is_viable(const struct sg_node *node, const struct sg_frame *frame) {
    const int64_t unit = sg_power_of_ten(node->decimals), value = (int64_t)frame->set[0];
    const bool negative = frame->at;
    if (frame->phase == START || frame->phase == MINUS) {
        return holds(node, negative, 0, sg_power_of_ten(node->digits) * unit - 1);
    }
    if (frame->phase == POINT || frame->phase == FRACTION) {
        const int64_t rest = sg_power_of_ten(node->decimals - frame->high);
        return holds(node, negative, value * rest, (value + 1) * rest - 1);
    }
    const uint32_t more_max = frame->phase == ZERO ? 0 : node->digits - frame->low;
    for (uint32_t more = 0; more <= more_max; more++) {
        const int64_t rest = sg_power_of_ten(more) * unit;
        if (holds(node, negative, value * rest, (value + 1) * rest - 1)) return true;
    }
    return false;
}

bool sg_number_may_end(const struct sg_node *node, const struct sg_frame *frame) {
    const uint32_t phase = frame->phase;
    if (phase == POWER) return true;
    if (phase != ZERO && phase != WHOLE && phase != FRACTION) return false;
    if (!node->is_bounded) return true;
    const int64_t value = (int64_t)frame->set[0] * sg_power_of_ten(node->decimals - frame->high);
    return holds(node, frame->at, value, value);
}

/* Where the number's grammar leads, bounds aside; false if nowhere. */
static bool move(const struct sg_node *node, struct sg_frame *frame, uint8_t byte) {
    const uint32_t phase = frame->phase;
    if (byte >= '0' && byte <= '9') {
        const uint32_t digit = byte - '0';
        if (phase == ZERO) return false;
        if (phase >= EXPONENT) {
            frame->phase = POWER;
            return ++frame->lead <= EXPONENT_DIGITS_MAX;
        }
        const bool in_fraction = phase == POINT || phase == FRACTION;
        frame->phase = in_fraction ? FRACTION : phase != WHOLE && digit == 0 ? ZERO : WHOLE;
        if (in_fraction ? ++frame->high > node->decimals : ++frame->low > node->digits) return false;
        if (node->is_bounded) frame->set[0] = frame->set[0] * 10 + digit;
        return true;
    }
    const bool has_digits = phase == ZERO || phase == WHOLE;
    if (byte == '-' && phase == START) {
        frame->phase = MINUS;
        frame->at = 1;
        return true;
    }
    if (byte == '.' && has_digits && node->decimals > 0) {
        frame->phase = POINT;
        return true;
    }
    if ((byte | 0x20) == 'e' && !node->is_bounded && (has_digits || phase == FRACTION)) {
        frame->phase = EXPONENT;
        return true;
    }
    if ((byte == '+' || byte == '-') && phase == EXPONENT) {
        frame->phase = SIGN;
        return true;
    }
    return false;
}

bool sg_number_step(const struct sg_node *node, struct sg_frame *frame, uint8_t byte) {
    struct sg_frame next = *frame;
    if (!move(node, &next, byte) || (node->is_bounded && !is_viable(node, &next))) return false;
    *frame = next;
    return true;
}
