/* Attention over keys and values of 8 bits, one unit per head and position; queries and weights have 16.
 *
 * The sums are whole numbers and exact, so that several tokens may share one reading of the cache, each with its own
 * view. Pairs that meet in one product stand side by side: two dimensions of a key, two positions of a value. */
#include "attention.h"

#include "math.h"

#define WHOLE_SUM_MAX 16.0e6f /* times 127, with half a unit more for each of 2^20 addends, stays below 2^31 */

/* One group's part of a layer's cache. */
struct cache_part {
    int8_t *keys, *values;
    float *key_units, *value_units;
};

static struct cache_part part_of(const struct sg_session *session, uint32_t layer, size_t group) {
    const struct sg_geometry *geometry = &session->model->geometry;
    const size_t first = ((size_t)layer * geometry->kv_head_count + group) * sg_key_rows(session->capacity);
    const struct sg_cache *cache = &session->cache;
    return (struct cache_part){cache->key_numbers + first * geometry->qk_head_dim,
                               cache->value_numbers + first * geometry->v_head_dim, cache->key_units + first,
                               cache->value_units + first};
}

/* The nearest whole number, halves away from zero, not beyond the limit; the limit for NaN. */
static inline float round_within(float x, float limit) {
    const float shifted = x + (x < 0.0f ? sg_round_numbers.minus_half : sg_round_numbers.half);
    const float capped = shifted < limit ? shifted : limit;
    return capped > -limit ? capped : -limit;
}

static float checked_unit(float unit) { return unit >= SG_UNIT_MIN ? unit : 0.0f; }

static float inverse_of(float unit) { return unit > 0.0f ? 1.0f / unit : 0.0f; }

/* 8-bit numbers of one head of one position; returns their unit. */
static float round_head(const float *restrict x, size_t count, int8_t number[restrict SG_HEAD_MAX]) {
    const float unit = checked_unit(sg_largest_magnitude(x, count) * (1.0f / SG_MAX_8)), inverse = inverse_of(unit);
    for (size_t i = 0; i < count; i++) number[i] = (int8_t)round_within(x[i] * inverse, sg_round_numbers.max_8);
    return unit;
}

void sg_store_keys_fast(const struct sg_session *session, uint32_t layer, const float *keys, uint32_t count) {
    const size_t groups = session->model->geometry.kv_head_count, width = session->model->geometry.qk_head_dim;
    for (uint32_t t = 0; t < count; t++) {
        const size_t position = session->now.position + t, column = position % SG_KEY_BLOCK;
        for (size_t g = 0; g < groups; g++) {
            const struct cache_part part = part_of(session, layer, g);
            int8_t number[SG_HEAD_MAX], *to = part.keys + (position - column) * width + 2 * column;
            part.key_units[position] = round_head(keys + (t * groups + g) * width, width, number);
            for (size_t i = 0; i < width; i += 2, to += 2 * SG_KEY_BLOCK) memcpy(to, number + i, 2);
        }
    }
}

void sg_store_values_fast(const struct sg_session *session, uint32_t layer, const float *values, uint32_t count) {
    const size_t groups = session->model->geometry.kv_head_count, width = session->model->geometry.v_head_dim;
    for (uint32_t t = 0; t < count; t++) {
        const size_t position = session->now.position + t, column = position % 2;
        for (size_t g = 0; g < groups; g++) {
            const struct cache_part part = part_of(session, layer, g);
            int8_t number[SG_HEAD_MAX], *to = part.values + (position - column) * width + column;
            part.value_units[position] = round_head(values + (t * groups + g) * width, width, number);
            for (size_t i = 0; i < width; i++) to[2 * i] = number[i];
        }
    }
}

_Static_assert((uint64_t)SG_HEAD_MAX * (uint64_t)SG_MAX_16 * (uint64_t)SG_MAX_8 < INT32_MAX,
               "a query's products with a key stay within 32 bits");

/* The unit at which weights have 16 bits and their products with values stay within 32, however many there are. */
static float whole_unit(float largest, float sum) {
    const float by_value = largest * (1.0f / SG_MAX_16), by_sum = sum * (1.0f / WHOLE_SUM_MAX);
    return checked_unit(by_value > by_sum ? by_value : by_sum);
}

static void round_whole(const float *restrict x, size_t count, float unit, int16_t *restrict out) {
    const float inverse = inverse_of(unit);
    for (size_t i = 0; i < count; i++) out[i] = (int16_t)round_within(x[i] * inverse, sg_round_numbers.max_16);
}

/* A few tokens with the query heads of one key group: row t * heads + h. */
struct rows {
    const struct sg_session *session;
    struct cache_part part;
    size_t heads, count;
    const struct sg_seen *seen; /* by token */
    struct sg_span spans[2];    /* of all tokens together */
    size_t span_count;
};

static void scale_scores(const int32_t *restrict sums, const float *restrict units, float factor,
                         float *restrict scores) {
    for (size_t i = 0; i < SG_KEY_BLOCK; i++) scores[i] = (float)sums[i] * (units[i] * factor);
}

/* Scores of all rows with all keys in the spans. */
static void find_scores(const struct rows *rows, const float *queries, size_t token_stride) {
    const struct sg_work *work = &rows->session->work;
    const size_t qk = rows->session->model->geometry.qk_head_dim, row_count = rows->heads * rows->count;
    const size_t stride = sg_key_rows(rows->session->capacity);
    const float scale = 1.0f / __builtin_sqrtf((float)qk);
    for (size_t r = 0; r < row_count; r++) {
        const float *query = queries + r / rows->heads * token_stride + r % rows->heads * qk;
        const float unit = checked_unit(sg_largest_magnitude(query, qk) * (1.0f / SG_MAX_16));
        round_whole(query, qk, unit, work->queries + r * qk);
        work->factors[r] = unit * scale;
    }
    for (size_t s = 0; s < rows->span_count; s++) {
        for (size_t j = rows->spans[s].start; j < rows->spans[s].end; j += SG_KEY_BLOCK) {
            int32_t *sums = work->sums; /* (row_count, 16) */
            memset(sums, 0, row_count * SG_KEY_BLOCK * sizeof *sums);
            sg_add_whole_sums(work->queries, row_count, qk, rows->part.keys + j * qk, qk / 2, SG_KEY_BLOCK, sums);
            for (size_t r = 0; r < row_count; r++) {
                scale_scores(sums + r * SG_KEY_BLOCK, rows->part.key_units + j, work->factors[r],
                             work->scores + r * stride + j);
            }
        }
    }
}

/* Clears a row's weights in the spans of all rows, before its own are written; mostly its own are all of them. */
static void clear_before(const struct rows *rows, const struct sg_span *spans, size_t span_count, int16_t *weights) {
    if (span_count == rows->span_count && memcmp(spans, rows->spans, span_count * sizeof *spans) == 0) return;
    for (size_t s = 0; s < rows->span_count; s++) {
        const size_t start = rows->spans[s].start;
        memset(weights + start, 0, (rows->spans[s].end - start) * sizeof *weights);
    }
}

/* Scores of one row to whole weights, each value's unit taken in; returns what their sums are to be multiplied by. */
static float find_weights(const struct rows *rows, const struct sg_seen *seen, float *restrict scores,
                          int16_t *weights) {
    const float *restrict units = rows->part.value_units;
    struct sg_span spans[2];
    const size_t span_count = sg_find_spans(seen, spans);
    clear_before(rows, spans, span_count, weights);
    float top = SG_NO_SCORE, sum = 0.0f, largest = 0.0f, weight_sum = 0.0f;
    sg_set_unseen(scores, seen, spans, span_count, SG_NO_SCORE);
    for (size_t s = 0; s < span_count; s++) {
        top = sg_largest(scores + spans[s].start, spans[s].end - spans[s].start, top);
    }
    for (size_t s = 0; s < span_count; s++) {
        const size_t start = spans[s].start, end = spans[s].end;
        for (size_t j = start; j < end; j++) scores[j] = sg_expf(scores[j] - top);
        sum += sg_sum(scores + start, end - start);
        for (size_t j = start; j < end; j++) scores[j] *= units[j];
    }
    sg_set_unseen(scores, seen, spans, span_count, 0.0f);
    for (size_t s = 0; s < span_count; s++) {
        const size_t start = spans[s].start, count = spans[s].end - start;
        largest = sg_largest(scores + start, count, largest);
        weight_sum += sg_sum(scores + start, count);
    }
    const float unit = whole_unit(largest, weight_sum);
    for (size_t s = 0; s < span_count; s++) {
        const size_t start = spans[s].start;
        round_whole(scores + start, spans[s].end - start, unit, weights + start);
    }
    return unit / sum;
}

static void mix_rows(const struct rows *rows, float *out, size_t token_stride) {
    const struct sg_work *work = &rows->session->work;
    const size_t width = rows->session->model->geometry.v_head_dim, row_count = rows->heads * rows->count;
    const size_t stride = sg_key_rows(rows->session->capacity);
    for (size_t r = 0; r < row_count; r++) {
        const struct sg_seen *seen = rows->seen + r / rows->heads;
        work->factors[r] = find_weights(rows, seen, work->scores + r * stride, work->weights + r * stride);
    }
    memset(work->sums, 0, row_count * width * sizeof *work->sums);
    for (size_t s = 0; s < rows->span_count; s++) {
        const size_t start = rows->spans[s].start, pairs = (rows->spans[s].end - start) / 2;
        sg_add_whole_sums(work->weights + start, row_count, stride, rows->part.values + start * width, pairs, width,
                          work->sums);
    }
    for (size_t r = 0; r < row_count; r++) {
        float *to = out + r / rows->heads * token_stride + r % rows->heads * width;
        for (size_t i = 0; i < width; i++) to[i] = (float)work->sums[r * width + i] * work->factors[r];
    }
}

void sg_mix_fast(const struct sg_session *session, uint32_t layer, uint32_t count) {
    const struct sg_model *model = session->model;
    const struct sg_geometry *geometry = &model->geometry;
    const size_t heads = geometry->head_count / geometry->kv_head_count;
    for (uint32_t t = 0; t < count; t += SG_TOKENS_TOGETHER) {
        const uint32_t together = count - t < SG_TOKENS_TOGETHER ? count - t : SG_TOKENS_TOGETHER;
        struct sg_seen seen[SG_TOKENS_TOGETHER];
        for (uint32_t k = 0; k < together; k++) {
            seen[k] = sg_seen_by(session, layer, session->now.position + t + k);
        }
        struct rows rows = {.session = session, .heads = heads, .count = together, .seen = seen};
        const struct sg_seen any = {seen[0].pinned, seen[0].first, seen[together - 1].last};
        rows.span_count = sg_find_spans(&any, rows.spans);
        for (size_t g = 0; g < geometry->kv_head_count; g++) {
            rows.part = part_of(session, layer, g);
            find_scores(&rows, session->work.q + t * model->q_dim + g * heads * geometry->qk_head_dim, model->q_dim);
            mix_rows(&rows, session->work.mixed + t * model->out_dim + g * heads * geometry->v_head_dim,
                     model->out_dim);
        }
    }
}
