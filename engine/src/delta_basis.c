/* Regenerates the start of an upstream LoRA adapter, in integers. See delta_basis.h. */
#include "delta_basis.h"

#include "delta_models.h"

/* Normal quantile at tail shares (1 + j / 16) * 2^(i - 24), sixteen for each i from 1 to 22, in 1/4096. */
static const uint16_t normal_quantile[22 * 16 + 1] = {
    20850, 20818, 20787, 20758, 20730, 20702, 20676, 20650, 20625, 20601, 20577, 20555, 20532, 20511,
    20490, 20469, 20449, 20411, 20374, 20338, 20305, 20272, 20241, 20211, 20182, 20153, 20126, 20100,
    20074, 20050, 20026, 20002, 19979, 19936, 19894, 19854, 19817, 19780, 19746, 19712, 19680, 19649,
    19619, 19590, 19563, 19535, 19509, 19484, 19459, 19412, 19367, 19324, 19283, 19244, 19207, 19172,
    19137, 19104, 19072, 19042, 19012, 18983, 18956, 18929, 18902, 18852, 18805, 18760, 18717, 18676,
    18637, 18599, 18563, 18529, 18495, 18463, 18432, 18402, 18373, 18345, 18317, 18265, 18215, 18168,
    18124, 18081, 18040, 18001, 17964, 17928, 17893, 17859, 17827, 17796, 17766, 17736, 17708, 17653,
    17602, 17553, 17507, 17462, 17420, 17379, 17340, 17303, 17267, 17232, 17199, 17166, 17135, 17104,
    17075, 17018, 16965, 16914, 16866, 16820, 16776, 16734, 16694, 16655, 16617, 16581, 16547, 16513,
    16480, 16449, 16418, 16359, 16304, 16251, 16201, 16153, 16108, 16064, 16022, 15982, 15943, 15905,
    15869, 15834, 15800, 15767, 15736, 15675, 15617, 15562, 15510, 15460, 15413, 15367, 15324, 15281,
    15241, 15202, 15164, 15128, 15092, 15058, 15025, 14961, 14901, 14844, 14790, 14738, 14688, 14641,
    14595, 14551, 14509, 14468, 14428, 14390, 14353, 14318, 14283, 14216, 14153, 14094, 14037, 13982,
    13930, 13880, 13833, 13787, 13742, 13699, 13658, 13618, 13579, 13542, 13505, 13435, 13369, 13306,
    13246, 13189, 13134, 13082, 13032, 12983, 12936, 12891, 12848, 12805, 12764, 12725, 12686, 12613,
    12543, 12476, 12413, 12352, 12295, 12239, 12186, 12134, 12085, 12037, 11991, 11946, 11902, 11860,
    11820, 11741, 11667, 11596, 11529, 11464, 11403, 11344, 11287, 11232, 11179, 11128, 11079, 11031,
    10984, 10939, 10896, 10812, 10732, 10656, 10584, 10515, 10449, 10385, 10324, 10265, 10208, 10153,
    10100, 10048, 9998, 9950, 9902, 9812, 9725, 9643, 9565, 9490, 9418, 9349, 9282, 9218,
    9156, 9096, 9038, 8982, 8927, 8874, 8822, 8723, 8628, 8538, 8452, 8370, 8290, 8214,
    8141, 8069, 8001, 7934, 7870, 7807, 7746, 7687, 7630, 7519, 7413, 7312, 7216, 7123,
    7034, 6948, 6865, 6784, 6706, 6631, 6558, 6486, 6417, 6350, 6284, 6157, 6035, 5919,
    5807, 5700, 5596, 5496, 5399, 5304, 5213, 5124, 5038, 4953, 4871, 4790, 4712, 4560,
    4414, 4273, 4137, 4005, 3878, 3754, 3634, 3516, 3402, 3290, 3180, 3073, 2968, 2864,
    2763, 2565, 2372, 2185, 2002, 1823, 1648, 1475, 1305, 1137, 972, 807, 644, 482,
    321, 160, 0,
};

struct pair {
    uint32_t a, b;
};

static uint32_t rotate(uint32_t value, uint32_t count) { return value << count | value >> (32 - count); }

static struct pair threefry(struct pair key, struct pair counter) {
    static const uint8_t turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t keys[3] = {key.a, key.b, key.a ^ key.b ^ 0x1bd11bdau};
    uint32_t a = counter.a + key.a, b = counter.b + key.b;
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            a += b;
            b = rotate(b, turns[round & 1][i]) ^ a;
        }
        a += keys[(round + 1) % 3];
        b += keys[(round + 2) % 3] + round + 1;
    }
    return (struct pair){a, b};
}

/* The key of a group: upstream splits its key once per group and draws from the second half. */
static struct pair key_of(uint32_t seed, uint32_t group) {
    struct pair key = {0, seed};
    for (uint32_t i = 0; i < group; i++)
        key = threefry(key, (struct pair){0, 0});
    return threefry(key, (struct pair){0, 1});
}

/* The normal number that 23 random bits stand for. */
static int32_t normal(uint32_t bits) {
    const uint32_t half = 1u << 22, is_upper = bits >= half;
    const uint32_t tail = is_upper ? 2 * half - 1 - bits : bits;
    if (!tail)
        return is_upper ? normal_quantile[0] : -(int32_t)normal_quantile[0];
    const uint32_t octave = sg_bit_length(tail) - 1;
    const uint32_t place = octave >= 12 ? tail >> (octave - 12) : tail << (12 - octave); /* 1.x with 12 bits */
    const uint32_t index = octave * 16 + ((place >> 8) & 15), rest = place & 255;
    const int32_t from = normal_quantile[index], to = normal_quantile[index + 1];
    const int32_t size = from + (((to - from) * (int32_t)rest) >> 8);
    return is_upper ? size : -size;
}

static void hadamard_128(int32_t values[128]) {
    for (uint32_t half = 1; half < 128; half *= 2)
        for (uint32_t start = 0; start < 128; start += 2 * half)
            for (uint32_t i = start; i < start + half; i++) {
                const int32_t a = values[i], b = values[i + half];
                values[i] = a + b;
                values[i + half] = a - b;
            }
}

void sg_basis_fill(const struct sg_basis *basis, uint32_t columns, int16_t *rows) {
    const struct pair key = key_of(basis->seed, basis->group);
    for (uint32_t k = 0; k < basis->rank; k++)
        for (uint32_t start = 0; start < columns; start += 128) {
            int32_t values[128];
            for (uint32_t i = 0; i < 128; i++) {
                const uint64_t count = ((uint64_t)basis->layer * basis->width + start + i) * basis->rank + k;
                const struct pair drawn = threefry(key, (struct pair){(uint32_t)(count >> 32), (uint32_t)count});
                values[i] = start + i < basis->width ? normal((drawn.a ^ drawn.b) >> 9) : 0;
            }
            hadamard_128(values);
            for (uint32_t i = 0; i < 128; i++) {
                /* 1 / sqrt(128) in 1/65536 */
                const int64_t value = ((int64_t)values[i] * 5793) >> 16;
                rows[(uint64_t)k * columns + start + i] =
                    (int16_t)(value > INT16_MAX ? INT16_MAX : value < -INT16_MAX ? -INT16_MAX : value);
            }
        }
}
