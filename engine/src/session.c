/* Sessions: memory, position, marks, scores. The forward pass itself is forward.c. */
#include "arena.h"
#include "forward.h"
#include "math.h"

#define ROWS_TOGETHER 4u /* of a product with one token: fewer take no less time */

static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

static float *take_floats(struct sg_arena *arena, uint64_t count) {
    return sg_arena_take(arena, count, sizeof(float));
}

static struct sg_fixed take_fixed(struct sg_arena *arena, uint64_t tokens, uint64_t columns) {
    const uint64_t groups = (columns + SG_GROUP - 1) / SG_GROUP;
    struct sg_fixed fixed = {0};
    fixed.number = sg_arena_take(arena, tokens * groups * SG_GROUP, sizeof *fixed.number);
    fixed.unit = take_floats(arena, tokens * groups);
    fixed.sum = take_floats(arena, tokens * groups);
    return fixed;
}

static uint64_t raw_count(const struct sg_model *model) {
    const struct sg_geometry *g = &model->geometry;
    return (uint64_t)g->layer_count * sg_tap_reach(g) * (model->q_dim + model->k_dim + model->v_dim);
}

static uint64_t engram_count(const struct sg_model *model) {
    const struct sg_geometry *g = &model->geometry;
    return (uint64_t)g->site_count * sg_engram_reach(g) * g->d_model;
}

static void lay_out_state(const struct sg_model *model, struct sg_state *state, struct sg_arena *arena) {
    state->raw = take_floats(arena, raw_count(model));
    state->engram_values = take_floats(arena, engram_count(model));
    state->last = take_floats(arena, model->geometry.d_model);
}

static void lay_out_cache(const struct sg_model *model, uint32_t capacity, uint32_t numerics, struct sg_cache *cache,
                          struct sg_arena *arena) {
    const struct sg_geometry *g = &model->geometry;
    const uint64_t groups = (uint64_t)g->layer_count * g->kv_head_count, rows = groups * sg_key_rows(capacity);
    const uint64_t before = arena->used;
    if (numerics == SG_NUMERICS_EXACT) {
        cache->keys = take_floats(arena, rows * g->qk_head_dim);
        cache->values = take_floats(arena, groups * capacity * g->v_head_dim);
    } else {
        cache->key_numbers = sg_arena_take(arena, rows, g->qk_head_dim);
        cache->value_numbers = sg_arena_take(arena, rows, g->v_head_dim);
        cache->key_units = take_floats(arena, rows);
        cache->value_units = take_floats(arena, rows);
    }
    cache->bytes = (size_t)(arena->used - before);
}

/* What attention over the cache needs, for the rows that share one reading of it. */
static void lay_out_attention(const struct sg_model *model, uint32_t capacity, uint32_t numerics, uint64_t block,
                              struct sg_work *work, struct sg_arena *arena) {
    const struct sg_geometry *g = &model->geometry;
    const bool fast = numerics == SG_NUMERICS_FAST;
    const uint64_t together = !fast ? 1 : block < SG_TOKENS_TOGETHER ? block : SG_TOKENS_TOGETHER;
    const uint64_t rows = together * (g->head_count / g->kv_head_count);
    work->scores = take_floats(arena, most(rows * sg_key_rows(capacity), g->qk_head_dim));
    if (!fast) return;
    work->queries = sg_arena_take(arena, rows * g->qk_head_dim, sizeof *work->queries);
    work->weights = sg_arena_take(arena, rows * sg_key_rows(capacity), sizeof *work->weights);
    work->sums = sg_arena_take(arena, rows * most(SG_KEY_BLOCK, g->v_head_dim), sizeof *work->sums);
    work->factors = take_floats(arena, rows);
}

static void lay_out_work(const struct sg_model *model, uint64_t block, struct sg_work *work, struct sg_arena *arena) {
    const struct sg_geometry *g = &model->geometry;
    const uint64_t d = g->d_model, lanes = g->lane_count, half = g->qk_head_dim / 2;
    const uint64_t widest = most(most(model->q_dim, model->k_dim), model->v_dim);
    work->streams = take_floats(arena, most(block * lanes * d, g->logit_count));
    work->flat = take_fixed(arena, block, lanes * d);
    work->input = take_floats(arena, block * d);
    work->hidden = take_floats(arena, block * d);
    work->operand = take_fixed(arena, block, most(most(d, model->out_dim), model->engram_dim));
    const uint64_t looked_up = model->engram_dim + sg_padded(g->engram_sub_dim);
    work->row = take_floats(arena, most(most(lanes * d, model->out_dim), most(looked_up, sg_padded((size_t)d))));
    work->raw = take_floats(arena, sg_tap_reach(g) ? (sg_tap_reach(g) + block) * widest : 0);
    work->q = take_floats(arena, block * model->q_dim);
    work->kv = take_floats(arena, block * most(model->k_dim, model->v_dim));
    work->gate = take_floats(arena, block * most(model->out_dim, d));
    work->mixed = take_floats(arena, block * model->out_dim);
    work->change = take_floats(arena, block * d);
    work->engram_raw = take_floats(arena, (sg_engram_reach(g) + block) * d);
    if (g->generation == 2) { /* one token after the other, in place */
        work->hada[0] = take_floats(arena, g->hada_n);
    } else {
        for (int i = 0; i < 4; i++) work->hada[i] = take_floats(arena, block * g->hada_n);
    }
    work->cosines = take_floats(arena, block * half);
    work->sines = take_floats(arena, block * half);
    work->lane_in = take_floats(arena, block * lanes);
    work->lane_out = take_floats(arena, block * lanes);
    work->lane_mix = take_floats(arena, block * lanes * lanes);
    work->ids = sg_arena_take(arena, model->order_max - 1 + block, sizeof *work->ids);
    work->logits = take_floats(arena, g->logit_count);
    work->ranking = sg_arena_take(arena, g->logit_count, sizeof *work->ranking);
}

/* Cuts a session out of `arena`, or measures it; `*session` is NULL when measuring. */
static int lay_out(const struct sg_model *model, uint32_t capacity, uint32_t numerics, struct sg_arena *arena,
                   struct sg_session **session, struct sg_error *error) {
    const struct sg_geometry *g = &model->geometry;
    *session = NULL;
    if (g->rope_theta < 1.0f) { /* angles beyond what sg_sincos reduces exactly; no such model exists */
        return sg_fail(error, SG_STATUS_CACT_UNSUPPORTED, "header.rope_theta", 0, 0, 1);
    }
    if (capacity < 1 || capacity > g->max_seq_len) {
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "capacity_tokens", 0, capacity, g->max_seq_len);
    }
    if (numerics > SG_NUMERICS_FAST) {
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "numerics", 0, numerics, SG_NUMERICS_FAST);
    }
    struct sg_session made = {.model = model, .capacity = capacity, .numerics = numerics};
    made.block_tokens = capacity < SG_TOKEN_BLOCK ? capacity : SG_TOKEN_BLOCK;
    struct sg_session *place = sg_arena_take(arena, 1, sizeof *place);
    lay_out_cache(model, capacity, numerics, &made.cache, arena);
    lay_out_state(model, &made.now, arena);
    lay_out_state(model, &made.mark, arena);
    lay_out_state(model, &made.kept, arena);
    lay_out_work(model, made.block_tokens, &made.work, arena);
    lay_out_attention(model, capacity, numerics, made.block_tokens, &made.work, arena);
    made.work.flat.rounding = made.work.operand.rounding =
        numerics == SG_NUMERICS_FAST ? SG_ROUNDING_7 : SG_ROUNDING_16;
    if (!sg_arena_fits(arena)) {
        return sg_fail(error, SG_STATUS_OUT_OF_MEMORY, "session", 0, arena->capacity, arena->used);
    }
    if (place) *place = made;
    *session = place;
    return SG_STATUS_OK;
}

int sg_session_measure(const struct sg_model *model, uint32_t capacity_tokens, uint32_t numerics,
                       size_t *session_bytes, struct sg_error *error) {
    struct sg_arena arena = {0};
    struct sg_session *session;
    const int status = lay_out(model, capacity_tokens, numerics, &arena, &session, error);
    *session_bytes = status == SG_STATUS_OK ? (size_t)arena.used : 0;
    return status;
}

int sg_session_open(const struct sg_model *model, uint32_t capacity_tokens, uint32_t numerics, void *memory,
                    size_t memory_bytes, struct sg_session **session, struct sg_error *error) {
    *session = NULL;
    if (!memory) return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "memory", 0, 0, 0);
    struct sg_arena arena = {.base = memory, .capacity = memory_bytes};
    return lay_out(model, capacity_tokens, numerics, &arena, session, error);
}

int sg_session_pin(struct sg_session *session, uint32_t token_count, struct sg_error *error) {
    if (token_count > session->capacity) {
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "token_count", 0, token_count, session->capacity);
    }
    session->now.pinned = token_count;
    return SG_STATUS_OK;
}

static void copy_state(const struct sg_model *model, struct sg_state *to, const struct sg_state *from) {
    to->position = from->position;
    to->pinned = from->pinned;
    memcpy(to->recent_ids, from->recent_ids, sizeof to->recent_ids);
    memcpy(to->raw, from->raw, (size_t)raw_count(model) * sizeof *to->raw);
    memcpy(to->engram_values, from->engram_values, (size_t)engram_count(model) * sizeof *to->engram_values);
    memcpy(to->last, from->last, model->geometry.d_model * sizeof *to->last);
}

void sg_session_reset(struct sg_session *session) {
    struct sg_state *now = &session->now;
    session->has_mark = 0;
    now->position = 0;
    now->pinned = 0;
    memset(now->recent_ids, 0, sizeof now->recent_ids);
    memset(now->raw, 0, (size_t)raw_count(session->model) * sizeof *now->raw);
    memset(now->engram_values, 0, (size_t)engram_count(session->model) * sizeof *now->engram_values);
    sg_heads_reset(session);
}

uint32_t sg_session_position(const struct sg_session *session) { return session->now.position; }

size_t sg_session_cache_bytes(const struct sg_session *session) { return session->cache.bytes; }

/* All ids below `bound`, and room for them. */
static int check_ids(const struct sg_session *session, const uint32_t *ids, size_t id_count, uint32_t bound,
                     struct sg_error *error) {
    const uint32_t room = session->capacity - session->now.position;
    if (id_count > room) return sg_fail(error, SG_STATUS_CONTEXT_FULL, "ids", 0, id_count, room);
    for (size_t i = 0; i < id_count; i++) {
        if (ids[i] >= bound) return sg_fail(error, SG_STATUS_BAD_TOKEN, "ids", i, ids[i], bound - 1);
    }
    return SG_STATUS_OK;
}

static uint32_t block_of(const struct sg_session *session, size_t left) {
    return left < session->block_tokens ? (uint32_t)left : session->block_tokens;
}

int sg_session_append(struct sg_session *session, const uint32_t *ids, size_t id_count, struct sg_error *error) {
    const int status = check_ids(session, ids, id_count, session->model->geometry.vocab_count, error);
    if (status != SG_STATUS_OK) return status;
    for (size_t i = 0; i < id_count;) {
        const uint32_t count = block_of(session, id_count - i);
        sg_forward(session, ids + i, count);
        i += count;
        if (i == id_count) sg_forward_last(session, count - 1, session->now.last);
        session->has_logits = 0;
    }
    return SG_STATUS_OK;
}

/* Whether one of the rows of a block is wanted; blocks do not cross words. */
static bool is_wanted(const uint32_t *words, uint32_t row, uint32_t logit_count) {
    return row < logit_count && (!words || (words[row / 32] >> row % 32 & ((1u << ROWS_TOGETHER) - 1)) != 0);
}

void sg_session_form_logits(struct sg_session *session, const uint32_t *words) {
    const uint32_t logit_count = session->model->geometry.logit_count;
    if (session->has_logits) return;
    session->has_logits = !words;
    sg_logits_begin(session, session->now.last, 1);
    for (uint32_t row = 0, end; row < logit_count; row = end) {
        end = row + ROWS_TOGETHER;
        if (!is_wanted(words, row, logit_count)) continue;
        while (is_wanted(words, end, logit_count)) end += ROWS_TOGETHER;
        if (end > logit_count) end = logit_count;
        sg_logits_put(session, row, end - row, session->work.logits);
    }
}

int sg_session_logits(struct sg_session *session, const float **logits, struct sg_error *error) {
    *logits = NULL;
    if (!session->now.position) return sg_fail(error, SG_STATUS_BAD_STATE, "session.logits", 0, 0, 1);
    sg_session_form_logits(session, NULL);
    *logits = session->work.logits;
    return SG_STATUS_OK;
}

/* ln softmax(logits)[id], in binary64, summed in order of id. */
static double log_softmax(const float *logits, uint32_t logit_count, uint32_t id) {
    float top = logits[0];
    for (uint32_t i = 1; i < logit_count; i++) top = logits[i] > top ? logits[i] : top;
    double sum = 0.0;
    for (uint32_t i = 0; i < logit_count; i++) sum += sg_exp((double)logits[i] - (double)top);
    return (double)logits[id] - (double)top - sg_log(sum);
}

/* Adds ln p(ids[t]) after the block's t-th token, one after the other. The block's lanes make way for the logits. */
static void score_block(struct sg_session *session, const uint32_t *ids, uint32_t count, double *sum) {
    const struct sg_geometry *g = &session->model->geometry;
    const uint32_t room = session->block_tokens * g->lane_count * g->d_model / g->logit_count, together = room ? room : 1;
    float *last = session->work.input, *logits = session->work.streams;
    for (uint32_t t = 0; t < count; t++) sg_forward_last(session, t, last + (size_t)t * g->d_model);
    for (uint32_t t = 0; t < count; t++) {
        const uint32_t left = count - t, place = t % together;
        if (place == 0) {
            sg_logits_begin(session, last + (size_t)t * g->d_model, left < together ? left : together);
            sg_logits_put(session, 0, g->logit_count, logits);
        }
        *sum += log_softmax(logits + (size_t)place * g->logit_count, g->logit_count, ids[t]);
    }
}

int sg_session_score(struct sg_session *session, const uint32_t *ids, size_t id_count, double *log_probability,
                     struct sg_error *error) {
    const struct sg_model *model = session->model;
    const uint32_t logit_count = model->geometry.logit_count;
    *log_probability = 0.0;
    if (!session->now.position) return sg_fail(error, SG_STATUS_BAD_STATE, "session.logits", 0, 0, 1);
    const int status = check_ids(session, ids, id_count, logit_count, error);
    if (status != SG_STATUS_OK || id_count == 0) return status;
    sg_session_form_logits(session, NULL);
    double sum = log_softmax(session->work.logits, logit_count, ids[0]);
    copy_state(model, &session->kept, &session->now);
    session->is_rehearsing = 1;
    for (size_t i = 0; i + 1 < id_count;) { /* the last id is only looked up, not run */
        const uint32_t count = block_of(session, id_count - 1 - i);
        sg_forward(session, ids + i, count);
        score_block(session, ids + i + 1, count, &sum);
        i += count;
    }
    session->is_rehearsing = 0;
    copy_state(model, &session->now, &session->kept);
    *log_probability = sum;
    return SG_STATUS_OK;
}

int sg_session_mark(struct sg_session *session, struct sg_error *error) {
    (void)error; /* a mark can be set in any state; the parameter keeps the interface alike */
    copy_state(session->model, &session->mark, &session->now);
    sg_heads_mark(session);
    session->has_mark = 1;
    return SG_STATUS_OK;
}

int sg_session_rewind(struct sg_session *session, struct sg_error *error) {
    if (!session->has_mark) return sg_fail(error, SG_STATUS_BAD_STATE, "session.mark", 0, 0, 1);
    copy_state(session->model, &session->now, &session->mark);
    session->has_logits = 0;
    sg_heads_rewind(session);
    return SG_STATUS_OK;
}
