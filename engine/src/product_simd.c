/* The fixed-point products in WebAssembly SIMD. Same whole numbers and same float operations as product.c.
 *
 * One token: a 16-byte load holds 32 codes of a row; two table look-ups (`swizzle`) per 16 codes give the bytes of
 * their levels, `dot_i16x8` multiplies and adds pairs. Four rows share the float work at the end of a group.
 * More tokens: the levels of up to 8 rows of one group are written out once, transposed so that each 32-bit lane is
 * one row; then two or three tokens at a time meet them, each activation pair broadcast. */
#include "product.h"

#ifdef __wasm_simd128__
#include "product_rows.h"

#define STEPS 64u     /* vectors of levels per group and four rows, at most */
#define TILE_EXACT 2u /* tokens at a time: what 16 registers hold */
#define TILE_FAST 3u

struct tables {
    v128_t low, high;
};

ALWAYS_INLINE struct tables tables_of(const struct job *job) {
    return (struct tables){wasm_v128_load(job->levels->low), wasm_v128_load(job->levels->high)};
}

/* The levels of 16 codes as int16. */
struct level_pair {
    v128_t low, high;
};

ALWAYS_INLINE struct level_pair levels_of(v128_t codes, struct tables tables, bool fast) {
    const v128_t low = wasm_i8x16_swizzle(tables.low, codes);
    if (fast) {
        return (struct level_pair){wasm_i16x8_extend_low_i8x16(low), wasm_i16x8_extend_high_i8x16(low)};
    }
    const v128_t high = wasm_i8x16_swizzle(tables.high, codes);
    return (struct level_pair){LOW_BYTES(low, high), HIGH_BYTES(low, high)};
}

ALWAYS_INLINE v128_t dot(v128_t a, v128_t b) {
    return wasm_i32x4_dot_i16x8(a, b);
}

/* Lane l: the sum over the group's elements that lane l of the fixed order takes (product.c); int32 if `fast`. */
ALWAYS_INLINE v128_t lane_sums(uint32_t code_bits, bool fast, const uint8_t *packed, const int16_t *number,
                               struct tables tables) {
    const v128_t *x = (const v128_t *)(const void *)number;
    v128_t sum = wasm_i32x4_splat(0);
#pragma clang loop unroll(full)
    for (size_t i = 0; i < 4; i++) {
        const struct codes codes = unpack(code_bits, packed, i);
        const struct level_pair even = levels_of(codes.even, tables, fast);
        const struct level_pair odd = levels_of(codes.odd, tables, fast);
        const v128_t first = wasm_i32x4_add(dot(even.low, x[4 * i]), dot(odd.low, x[4 * i + 1]));
        const v128_t rest = wasm_i32x4_add(dot(even.high, x[4 * i + 2]), dot(odd.high, x[4 * i + 3]));
        const v128_t run = wasm_i32x4_add(first, rest);
        if (fast) sum = wasm_i32x4_add(sum, run);
        else sum = i == 0 ? wasm_f32x4_convert_i32x4(run) : wasm_f32x4_add(sum, wasm_f32x4_convert_i32x4(run));
    }
    return sum;
}

/* The sums of four rows' lanes, in the order of product.c. */
ALWAYS_INLINE v128_t add_lanes_exact(const v128_t lanes[4]) {
    v128_t lane[4];
    transpose(lanes, lane);
    return wasm_f32x4_add(wasm_f32x4_add(wasm_f32x4_add(lane[0], lane[1]), lane[2]), lane[3]);
}

ALWAYS_INLINE v128_t add_exact(v128_t total, v128_t sum, const struct token_group *x, v128_t norm) {
    return wasm_f32x4_add(total, wasm_f32x4_mul(sum, wasm_f32x4_mul(norm, wasm_v128_load32_splat(x->unit))));
}

ALWAYS_INLINE void one_token(const struct job *job, uint32_t code_bits, bool fast) {
    const struct tables tables = tables_of(job);
    const v128_t offset = wasm_f32x4_splat(job->levels->offset);
    const size_t group_bytes = SG_GROUP / 8 * code_bits;
    for (size_t row = job->first_row; row < job->row_end; row += ROWS) {
        const struct four_rows rows = rows_at(job->matrix, row, job->row_end);
        v128_t total = wasm_f32x4_splat(0.0f);
        for (size_t first = 0; first < job->matrix->group_count; first += RUN_GROUPS) {
            const size_t left = job->matrix->group_count - first, count = left < RUN_GROUPS ? left : RUN_GROUPS;
            v128_t lanes[RUN_GROUPS][ROWS];
#pragma clang loop unroll(disable)
            for (size_t k = 0; k < ROWS; k++) {
                const uint8_t *codes = rows.codes[k] + first * group_bytes;
#pragma clang loop unroll(disable)
                for (size_t g = 0; g < count; g++, codes += group_bytes) {
                    const struct token_group x = token_group_at(job, first + g, 0);
                    lanes[g][k] = lane_sums(code_bits, fast, codes, x.number, tables);
                }
            }
            for (size_t g = 0; g < count; g++) {
                const struct token_group x = token_group_at(job, first + g, 0);
                const v128_t norm = norms_of(&rows, first + g);
                total = fast ? add_whole(total, add_lanes(lanes[g]), &x, offset, norm)
                             : add_exact(total, add_lanes_exact(lanes[g]), &x, norm);
            }
        }
        store_rows(job, 0, row, total);
    }
}

/* Pairs of codes as rows of a 4 x 8 matrix: out[n] holds the pairs 2 n and 2 n + 1 of all four rows. */
ALWAYS_INLINE void transpose_pairs(const v128_t in[ROWS], v128_t out[4]) {
    const v128_t low01 = wasm_i16x8_shuffle(in[0], in[1], 0, 8, 1, 9, 2, 10, 3, 11);
    const v128_t low23 = wasm_i16x8_shuffle(in[2], in[3], 0, 8, 1, 9, 2, 10, 3, 11);
    const v128_t high01 = wasm_i16x8_shuffle(in[0], in[1], 4, 12, 5, 13, 6, 14, 7, 15);
    const v128_t high23 = wasm_i16x8_shuffle(in[2], in[3], 4, 12, 5, 13, 6, 14, 7, 15);
    out[0] = wasm_i32x4_shuffle(low01, low23, 0, 4, 1, 5);
    out[1] = wasm_i32x4_shuffle(low01, low23, 2, 6, 3, 7);
    out[2] = wasm_i32x4_shuffle(high01, high23, 0, 4, 1, 5);
    out[3] = wasm_i32x4_shuffle(high01, high23, 2, 6, 3, 7);
}

/* Each 32-bit lane of a vector is one row: out[((lane * 4 + i) * 4 + k) * stride], where lane and i are those of the
 * fixed order and k is 0 for the even and 1 for the odd elements of the first 16, 2 and 3 for those of the second. */
ALWAYS_INLINE void unpack_rows(const struct job *job, uint32_t code_bits, bool fast, const struct four_rows *rows,
                               size_t group, v128_t *out, size_t stride) {
    const struct tables tables = tables_of(job);
    const size_t group_bytes = SG_GROUP / 8 * code_bits;
#pragma clang loop unroll(disable)
    for (size_t i = 0; i < 4; i++) {
        struct codes codes[ROWS];
        for (size_t r = 0; r < ROWS; r++) codes[r] = unpack(code_bits, rows->codes[r] + group * group_bytes, i);
        for (size_t odd = 0; odd < 2; odd++) {
            v128_t in[ROWS], pairs[4];
            for (size_t r = 0; r < ROWS; r++) in[r] = odd ? codes[r].odd : codes[r].even;
            transpose_pairs(in, pairs);
            for (size_t n = 0; n < 4; n++) {
                const struct level_pair level = levels_of(pairs[n], tables, fast);
                v128_t *place = out + ((2 * (n % 2) * 4 + i) * 4 + n / 2 * 2 + odd) * stride;
                place[0] = level.low;
                place[16 * stride] = level.high; /* the next lane */
            }
        }
    }
}

/* Adds one group's product of `row_vectors` x 4 rows with `tokens` tokens to total[token][row vector]. Not inlined, not
 * unrolled, few values alive at a time: V8 spills registers inside the loop otherwise, which costs a third. */
ALWAYS_INLINE void tile_exact(const struct job *job, const v128_t *level, struct token_group x, const v128_t *norm,
                              v128_t *total, size_t row_vectors, size_t tokens) {
    (void)job;
    const int16_t *number = x.number;
    v128_t group[2 * TILE_EXACT];
#pragma clang loop unroll(disable)
    for (size_t lane = 0; lane < 4; lane++) {
        v128_t sum[2 * TILE_EXACT];
        for (size_t n = 0; n < row_vectors * tokens; n++) sum[n] = wasm_f32x4_splat(0.0f);
#pragma clang loop unroll(disable)
        for (size_t i = 0; i < 4; i++) {
            v128_t run[2 * TILE_EXACT];
            HIDE_ORIGIN(level);
            HIDE_ORIGIN(number);
            for (size_t k = 0; k < 4; k++) {
                v128_t row[2];
                for (size_t h = 0; h < row_vectors; h++) row[h] = level[k * row_vectors + h];
                for (size_t t = 0; t < tokens; t++) {
                    const v128_t pair = wasm_v128_load32_splat(number + t * SG_GROUP + 8 * k);
                    for (size_t h = 0; h < row_vectors; h++) {
                        const v128_t product = dot(row[h], pair);
                        const size_t n = t * row_vectors + h;
                        run[n] = k == 0 ? product : wasm_i32x4_add(run[n], product);
                    }
                }
            }
            for (size_t n = 0; n < row_vectors * tokens; n++) {
                sum[n] = wasm_f32x4_add(sum[n], wasm_f32x4_convert_i32x4(run[n]));
            }
            level += 4 * row_vectors;
            number += 32;
        }
        for (size_t n = 0; n < row_vectors * tokens; n++) {
            group[n] = lane == 0 ? sum[n] : wasm_f32x4_add(group[n], sum[n]);
        }
        number += 2 - (ptrdiff_t)SG_GROUP;
    }
    for (size_t n = 0; n < row_vectors * tokens; n++) {
        const struct token_group place = {NULL, x.unit + n / row_vectors, NULL};
        total[n] = add_exact(total[n], group[n], &place, norm[n % row_vectors]);
    }
}

/* The loops with their constants: one copy per way, and per code width where that is worth its bytes. */
#define TILE(kind, name, row_vectors, tokens)                                                                          \
    static __attribute__((noinline)) void name(const struct job *job, size_t group, size_t first, size_t end,          \
                                               const v128_t *level, const v128_t *norm, v128_t *total) {               \
        for (size_t t = first; t < end; t += tokens) {                                                                 \
            kind(job, level, token_group_at(job, group, t), norm, total + t * row_vectors, row_vectors, tokens);       \
        }                                                                                                              \
    }
TILE(tile_exact, exact_1x1, 1, 1)
TILE(tile_exact, exact_1x2, 1, 2)
TILE(tile_exact, exact_2x1, 2, 1)
TILE(tile_exact, exact_2x2, 2, 2)

#define UNPACK(name, fast, bits)                                                                                       \
    static void unpack_rows_##name##_##bits(const struct job *job, const struct four_rows *rows, size_t group,         \
                                            v128_t *out, size_t stride) {                                              \
        unpack_rows(job, bits, fast, rows, group, out, stride);                                                        \
    }
#define ONE_TOKEN(name, fast, bits)                                                                                    \
    static void one_token_##name##_##bits(const struct job *job) { one_token(job, bits, fast); }
UNPACK(exact, false, 1)
UNPACK(exact, false, 2)
UNPACK(exact, false, 3)
UNPACK(exact, false, 4)
ONE_TOKEN(exact, false, 2)
ONE_TOKEN(exact, false, 4)

static const struct method method_exact = {
    {unpack_rows_exact_1, unpack_rows_exact_2, unpack_rows_exact_3, unpack_rows_exact_4},
    {NULL, one_token_exact_2, NULL, one_token_exact_4},
    {{exact_1x1, exact_1x2}, {exact_2x1, exact_2x2}},
    TILE_EXACT,
};
#ifndef __wasm_relaxed_simd__ /* there product_relaxed.c has these */
ALWAYS_INLINE void tile_fast(const struct job *job, const v128_t *level, struct token_group x, const v128_t *norm,
                             v128_t *total, size_t row_vectors, size_t tokens) {
    const int16_t *number = x.number;
    v128_t sum[2 * TILE_FAST];
    IN_REGISTERS
    for (size_t n = 0; n < row_vectors * tokens; n++) sum[n] = wasm_i32x4_splat(0);
#pragma clang loop unroll(disable)
    for (size_t lane = 0; lane < 4; lane++) {
#pragma clang loop unroll(disable)
        for (size_t i = 0; i < 8; i++) {
            HIDE_ORIGIN(level);
            for (size_t k = 0; k < 2; k++) {
                v128_t row[2];
                for (size_t h = 0; h < row_vectors; h++) row[h] = level[k * row_vectors + h];
                for (size_t t = 0; t < tokens; t++) {
                    const v128_t pair = wasm_v128_load32_splat(number + t * SG_GROUP + 8 * k);
                    for (size_t h = 0; h < row_vectors; h++) {
                        const size_t n = t * row_vectors + h;
                        sum[n] = wasm_i32x4_add(sum[n], dot(row[h], pair));
                    }
                }
            }
            level += 2 * row_vectors;
            number += 16;
        }
        number += 2 - (ptrdiff_t)SG_GROUP;
    }
    const v128_t offset = wasm_f32x4_splat(job->levels->offset);
    IN_REGISTERS
    for (size_t n = 0; n < row_vectors * tokens; n++) {
        const struct token_group place = {NULL, x.unit + n / row_vectors, x.sum + n / row_vectors};
        total[n] = add_whole(total[n], sum[n], &place, offset, norm[n % row_vectors]);
    }
}

TILE(tile_fast, fast_1x1, 1, 1)
TILE(tile_fast, fast_1x3, 1, 3)
TILE(tile_fast, fast_2x1, 2, 1)
TILE(tile_fast, fast_2x3, 2, 3)
UNPACK(fast, true, 1)
UNPACK(fast, true, 2)
UNPACK(fast, true, 3)
UNPACK(fast, true, 4)
ONE_TOKEN(fast, true, 2)
ONE_TOKEN(fast, true, 4)

static const struct method method_fast = {
    {unpack_rows_fast_1, unpack_rows_fast_2, unpack_rows_fast_3, unpack_rows_fast_4},
    {NULL, one_token_fast_2, NULL, one_token_fast_4},
    {{fast_1x1, fast_1x3}, {fast_2x1, fast_2x3}},
    TILE_FAST,
};
#endif

static const struct method *method_of(enum sg_rounding rounding) {
    if (rounding == SG_ROUNDING_16) return &method_exact;
#ifdef __wasm_relaxed_simd__
    return sg_is_quicker_in_16_bits() ? &sg_method_relaxed_16 : &sg_method_relaxed_32;
#else
    return &method_fast;
#endif
}

/* Reads ahead, in the order of memory: the next 8 rows' codes in as many slices as they have groups, one with each
 * group of these rows. Unpacking takes a line from each row, group by group, which no prefetcher foresees. */
ALWAYS_INLINE void fetch_next(const struct job *job, size_t row, size_t group) {
    const struct sg_matrix *matrix = job->matrix;
    const size_t group_bytes = SG_GROUP / 8 * matrix->code_bits, part = 2 * ROWS * group_bytes;
    const size_t row_bytes = matrix->group_count * group_bytes;
    const size_t end = job->row_end * row_bytes;
    size_t at = (row + 2 * ROWS) * row_bytes + group * part;
    for (const size_t stop = at + part; at < stop && at < end; at += 64) {
        (void)*(const volatile uint8_t *)(matrix->codes + at);
    }
}

/* 4 or 8 rows from `row` on, all groups, all tokens. */
static void block_rows(const struct job *job, const struct method *method, size_t row, size_t row_vectors) {
    const uint32_t token_count = job->x->token_count;
    v128_t total[2 * SG_TOKEN_BLOCK], level[2 * STEPS], norm[2];
    struct four_rows rows[2];
    for (size_t h = 0; h < row_vectors; h++) rows[h] = rows_at(job->matrix, row + h * ROWS, job->row_end);
    for (size_t n = 0; n < row_vectors * token_count; n++) total[n] = wasm_f32x4_splat(0.0f);
    for (size_t g = 0; g < job->matrix->group_count; g++) {
        for (size_t h = 0; h < row_vectors; h++) {
            method->unpack_rows[job->matrix->code_bits - 1](job, rows + h, g, level + h, row_vectors);
            norm[h] = norms_of(rows + h, g);
        }
        fetch_next(job, row, g);
        const size_t whole = token_count / method->tile_tokens * method->tile_tokens;
        method->tile[row_vectors - 1][1](job, g, 0, whole, level, norm, total);
        method->tile[row_vectors - 1][0](job, g, whole, token_count, level, norm, total);
    }
    for (size_t t = 0; t < token_count; t++) {
        for (size_t h = 0; h < row_vectors; h++) store_rows(job, t, row + h * ROWS, total[t * row_vectors + h]);
    }
}

void sg_product_by(const struct method *method, const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count,
                   const struct sg_fixed *x, float *y, size_t y_stride) {
    const struct job job = {.matrix = matrix,
                            .levels = &matrix->levels->fixed[x->rounding],
                            .x = x,
                            .first_row = first_row,
                            .row_end = (size_t)first_row + row_count,
                            .y = y,
                            .y_stride = y_stride};
    if (x->token_count == 1 && method->one_token[matrix->code_bits - 1]) {
        method->one_token[matrix->code_bits - 1](&job);
        return;
    }
    for (size_t row = job.first_row; row < job.row_end; row += 2 * ROWS) {
        block_rows(&job, method, row, job.row_end - row > ROWS ? 2 : 1);
    }
}

void sg_product_simd(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const struct sg_fixed *x,
                     float *y, size_t y_stride) {
    sg_product_by(method_of(x->rounding), matrix, first_row, row_count, x, y, y_stride);
}

#ifndef SG_SCALAR
void sg_product(const struct sg_matrix *matrix, uint32_t first_row, uint32_t row_count, const struct sg_fixed *x,
                float *y, size_t y_stride) {
    sg_product_simd(matrix, first_row, row_count, x, y, y_stride);
}
#endif
#endif
