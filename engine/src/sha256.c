/* SHA-256 (FIPS 180-4).
 *
 * Owns: the hash that proves every rebuilt file.
 * Knows nothing of: what is hashed. Source: FIPS 180-4, sections 4.1.2, 5.1.1, 5.3.3 and 6.2.2. */
#include <string.h>

#include "saguaro.h"

#if defined(__wasm_simd128__) && !defined(SG_SCALAR)
#include <wasm_simd128.h>
#endif

static const uint32_t round_constants[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u};

#define ROTATE(x, count) (((x) >> (count)) | ((x) << (32 - (count))))

/* One round; the caller rotates the names of the eight words instead of moving their values. The majority is
 * b ^ ((a ^ b) & (b ^ c)), whose last factor is the first one of the round before: `was` carries it. `w` holds message
 * words with their constants added. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                       \
    do {                                                                                                       \
        const uint32_t sum_1 = ROTATE(e, 6) ^ ROTATE(e, 11) ^ ROTATE(e, 25);                                   \
        const uint32_t sum_0 = ROTATE(a, 2) ^ ROTATE(a, 13) ^ ROTATE(a, 22);                                   \
        const uint32_t mixed = h + sum_1 + (g ^ (e & (f ^ g))) + w[i];                          \
        const uint32_t now = a ^ b;                                                                            \
        d += mixed;                                                                                            \
        h = mixed + sum_0 + (b ^ (now & was));                                                                 \
        was = now;                                                                                             \
    } while (0)

#define EIGHT_ROUNDS(i)                                                                                        \
    do {                                                                                                       \
        ROUND(a, b, c, d, e, f, g, h, i);                                                                      \
        ROUND(h, a, b, c, d, e, f, g, i + 1);                                                                  \
        ROUND(g, h, a, b, c, d, e, f, i + 2);                                                                  \
        ROUND(f, g, h, a, b, c, d, e, i + 3);                                                                  \
        ROUND(e, f, g, h, a, b, c, d, i + 4);                                                                  \
        ROUND(d, e, f, g, h, a, b, c, i + 5);                                                                  \
        ROUND(c, d, e, f, g, h, a, b, i + 6);                                                                  \
        ROUND(b, c, d, e, f, g, h, a, i + 7);                                                                  \
    } while (0)

/* The last 16 words of the message schedule; each call adds constants and makes the next 16. */
#if defined(__wasm_simd128__) && !defined(SG_SCALAR)

struct schedule {
    v128_t word[4];
};

#define ROTATE_4(x, count) wasm_v128_or(wasm_u32x4_shr(x, count), wasm_i32x4_shl(x, 32 - (count)))

static inline v128_t small_sigma_0(v128_t x) {
    return wasm_v128_xor(wasm_v128_xor(ROTATE_4(x, 7), ROTATE_4(x, 18)), wasm_u32x4_shr(x, 3));
}

static inline v128_t small_sigma_1(v128_t x) {
    return wasm_v128_xor(wasm_v128_xor(ROTATE_4(x, 17), ROTATE_4(x, 19)), wasm_u32x4_shr(x, 10));
}

/* Four words after the sixteen in a, b, c, d. The last two need the first two, so the second sigma comes in halves. */
static inline v128_t next_four(v128_t a, v128_t b, v128_t c, v128_t d) {
    const v128_t zero = wasm_i32x4_const_splat(0);
    const v128_t before = wasm_i32x4_add(small_sigma_0(wasm_i32x4_shuffle(a, b, 1, 2, 3, 4)),
                                         wasm_i32x4_shuffle(c, d, 1, 2, 3, 4));
    const v128_t first = wasm_i32x4_add(wasm_i32x4_add(a, before),
                                        small_sigma_1(wasm_i32x4_shuffle(d, zero, 2, 3, 4, 4)));
    return wasm_i32x4_add(first, small_sigma_1(wasm_i32x4_shuffle(zero, first, 0, 0, 4, 5)));
}

static inline void load_block(struct schedule *schedule, const uint8_t *data) {
    for (int i = 0; i < 4; i++) {
        const v128_t bytes = wasm_v128_load(data + 16 * i);
        schedule->word[i] =
            wasm_i8x16_shuffle(bytes, bytes, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
    }
}

static inline void add_constants(const struct schedule *schedule, const uint32_t *constants, uint32_t w[16]) {
    for (int i = 0; i < 4; i++)
        wasm_v128_store(w + 4 * i, wasm_i32x4_add(schedule->word[i], wasm_v128_load(constants + 4 * i)));
}

static inline void extend(struct schedule *schedule) {
    v128_t *word = schedule->word;
    word[0] = next_four(word[0], word[1], word[2], word[3]);
    word[1] = next_four(word[1], word[2], word[3], word[0]);
    word[2] = next_four(word[2], word[3], word[0], word[1]);
    word[3] = next_four(word[3], word[0], word[1], word[2]);
}

#else

struct schedule {
    uint32_t word[16];
};

static inline void load_block(struct schedule *schedule, const uint8_t *data) {
    for (int i = 0; i < 16; i++)
        schedule->word[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 |
                            (uint32_t)data[4 * i + 2] << 8 | data[4 * i + 3];
}

static inline void add_constants(const struct schedule *schedule, const uint32_t *constants, uint32_t w[16]) {
    for (int i = 0; i < 16; i++)
        w[i] = schedule->word[i] + constants[i];
}

static inline void extend(struct schedule *schedule) {
    uint32_t *word = schedule->word;
    for (int i = 0; i < 16; i++) {
        const uint32_t w_15 = word[(i + 1) & 15], w_2 = word[(i + 14) & 15];
        word[i] += (ROTATE(w_15, 7) ^ ROTATE(w_15, 18) ^ (w_15 >> 3)) + word[(i + 9) & 15] +
                   (ROTATE(w_2, 17) ^ ROTATE(w_2, 19) ^ (w_2 >> 10));
    }
}

#endif

static void compress(uint32_t state[8], const uint8_t *data, size_t block_count) {
    for (; block_count; block_count--, data += 64) {
        struct schedule schedule;
        uint32_t w[16];
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7], was = b ^ c;
        load_block(&schedule, data);
        for (const uint32_t *constants = round_constants;; constants += 16) {
            add_constants(&schedule, constants, w);
            EIGHT_ROUNDS(0);
            EIGHT_ROUNDS(8);
            if (constants == round_constants + 48)
                break;
            extend(&schedule);
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

void sg_sha256_init(struct sg_sha256 *hash) {
    static const uint32_t initial[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    memcpy(hash->state, initial, sizeof initial);
    hash->byte_count = 0;
}

void sg_sha256_update(struct sg_sha256 *hash, const uint8_t *data, size_t byte_count) {
    const size_t held = (size_t)(hash->byte_count & 63);
    if (!byte_count)
        return;
    hash->byte_count += byte_count;
    if (held) {
        const size_t room = 64 - held, taken = byte_count < room ? byte_count : room;
        memcpy(hash->block + held, data, taken);
        if (taken < room)
            return;
        compress(hash->state, hash->block, 1);
        data += taken, byte_count -= taken;
    }
    compress(hash->state, data, byte_count / 64);
    memcpy(hash->block, data + (byte_count & ~(size_t)63), byte_count & 63);
}

void sg_sha256_final(struct sg_sha256 *hash, uint8_t digest[32]) {
    static const uint8_t padding[64] = {0x80};
    const uint64_t bit_count = hash->byte_count * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bit_count >> (56 - 8 * i));
    sg_sha256_update(hash, padding, 1 + (size_t)((119 - (hash->byte_count & 63)) & 63));
    sg_sha256_update(hash, length, sizeof length);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i & 3)));
}
