/* Drawing the next id. docs/numerics.md defines every step, so that the reference draws the same ids. */
#include "grammar.h"
#include "math.h"
#include "session.h"

/* PCG-XSH-RR 64/32 (O'Neill 2014) with its default increment. The state moves first, so that small seeds differ from the
 * first draw on. */
static uint32_t next_bits(uint64_t *state) {
    const uint64_t now = *state = *state * 6364136223846793005u + 1442695040888963407u;
    const uint32_t shifted = (uint32_t)((now >> 18 ^ now) >> 27), turn = (uint32_t)(now >> 59);
    return shifted >> turn | shifted << (-turn & 31);
}

/* Order of candidates: the higher logit first, then the lower id. */
static bool comes_before(const float *logits, uint32_t a, uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, uint32_t *heap, uint32_t root, uint32_t count) {
    while (2 * root + 1 < count) {
        uint32_t child = 2 * root + 1;
        if (child + 1 < count && comes_before(logits, heap[child + 1], heap[child])) child++;
        if (!comes_before(logits, heap[child], heap[root])) return;
        const uint32_t id = heap[root];
        heap[root] = heap[child];
        heap[child] = id;
        root = child;
    }
}

/* Which ids may be drawn: those with a bit in `words`, or all. */
struct candidates {
    const uint32_t *words; /* NULL: all */
    uint32_t id_count;
};

static bool may_draw(const struct candidates *candidates, uint32_t id) {
    return !candidates->words || (candidates->words[id / 32] >> id % 32 & 1);
}

static uint32_t greedy(const float *logits, const struct candidates *candidates) {
    uint32_t best = 0;
    while (!may_draw(candidates, best)) best++;
    for (uint32_t i = best + 1; i < candidates->id_count; i++) {
        if (logits[i] > logits[best] && may_draw(candidates, i)) best = i;
    }
    return best;
}

/* A heap of the candidates, whose top moves to the end of the array, candidate after candidate. */
struct ranking {
    const float *logits;
    uint32_t *heap;
    uint32_t count; /* ids that are still in the heap */
};

static struct ranking rank(const struct sg_session *session, const struct candidates *candidates) {
    struct ranking ranking = {session->work.logits, session->work.ranking, 0};
    for (uint32_t i = 0; i < candidates->id_count; i++) {
        if (may_draw(candidates, i)) ranking.heap[ranking.count++] = i;
    }
    for (uint32_t root = ranking.count / 2; root > 0; root--) {
        sift_down(ranking.logits, ranking.heap, root - 1, ranking.count);
    }
    return ranking;
}

static uint32_t next_candidate(struct ranking *ranking) {
    const uint32_t id = ranking->heap[0];
    ranking->heap[0] = ranking->heap[--ranking->count];
    ranking->heap[ranking->count] = id;
    sift_down(ranking->logits, ranking->heap, 0, ranking->count);
    return id;
}

/* Candidate i, once next_candidate has been called more than i times. */
static uint32_t candidate(const struct ranking *ranking, uint32_t total, uint32_t i) {
    return ranking->heap[total - 1 - i];
}

static uint32_t draw(const struct sg_session *session, const struct candidates *candidates,
                     struct sg_sampling *sampling) {
    const float *logits = session->work.logits;
    struct ranking ranking = rank(session, candidates);
    const uint32_t total = ranking.count;
    if (total == 1) { /* whose logit nobody needs; the random state moves as with every draw */
        next_bits(&sampling->random_state);
        return ranking.heap[0];
    }
    const uint32_t kept = sampling->top_k && sampling->top_k < total ? sampling->top_k : total;
    const double temperature = (double)sampling->temperature;
    const double top = (double)logits[ranking.heap[0]];
    double mass = 0.0;
    for (uint32_t i = 0; i < kept; i++) {
        mass += sg_exp(((double)logits[next_candidate(&ranking)] - top) / temperature);
    }
    const double limit = (double)sampling->top_p * mass;
    double nucleus = 0.0;
    uint32_t count = 0; /* the shortest prefix that reaches the limit */
    while (count < kept && (count == 0 || nucleus < limit)) {
        nucleus += sg_exp(((double)logits[candidate(&ranking, total, count)] - top) / temperature);
        count++;
    }
    const double target = (double)(next_bits(&sampling->random_state) >> 8) * 0x1p-24 * nucleus;
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = candidate(&ranking, total, i);
        sum += sg_exp(((double)logits[id] - top) / temperature);
        if (sum > target) return id;
    }
    return candidate(&ranking, total, count - 1);
}

static int check_sampling(const struct sg_session *session, const struct sg_sampling *sampling, struct sg_error *error) {
    if (!session->now.position) return sg_fail(error, SG_STATUS_BAD_STATE, "session.logits", 0, 0, 1);
    if (!(sampling->temperature >= 0.0f) || sampling->temperature > 1e6f) {
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "sampling.temperature", 0,
                       sg_bits_of_float(sampling->temperature), 0);
    }
    if (!(sampling->top_p > 0.0f && sampling->top_p <= 1.0f)) {
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "sampling.top_p", 0, sg_bits_of_float(sampling->top_p), 1);
    }
    return SG_STATUS_OK;
}

static uint32_t choose(const struct sg_session *session, const struct candidates *candidates,
                       struct sg_sampling *sampling) {
    if (sampling->temperature == 0.0f) return greedy(session->work.logits, candidates);
    return draw(session, candidates, sampling);
}

int sg_session_sample(struct sg_session *session, struct sg_sampling *sampling, uint32_t *id,
                      struct sg_error *error) {
    const struct candidates all = {NULL, session->model->geometry.logit_count};
    *id = 0;
    const int status = check_sampling(session, sampling, error);
    if (status != SG_STATUS_OK) return status;
    sg_session_form_logits(session, NULL);
    *id = choose(session, &all, sampling);
    return SG_STATUS_OK;
}

int sg_session_sample_allowed(struct sg_session *session, struct sg_grammar *grammar, uint32_t room_tokens,
                              struct sg_sampling *sampling, uint32_t *id, struct sg_error *error) {
    const uint32_t logit_count = session->model->geometry.logit_count;
    *id = 0;
    const int status = check_sampling(session, sampling, error);
    if (status != SG_STATUS_OK) return status;
    if (grammar->model != session->model) return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "grammar.model", 0, 0, 0);
    if (sampling->temperature == 0.0f && sg_grammar_is_open(grammar)) { /* the first choice nearly always fits */
        const struct candidates all = {NULL, logit_count};
        sg_session_form_logits(session, NULL);
        *id = greedy(session->work.logits, &all);
        if (sg_grammar_takes(grammar, *id, room_tokens)) return SG_STATUS_OK;
    }
    const uint32_t count = sg_grammar_fill(grammar, room_tokens);
    if (count == 0) {
        *id = 0;
        return sg_fail(error, SG_STATUS_BAD_STATE, "grammar.room", 0, room_tokens, 1);
    }
    const struct candidates allowed = {grammar->allowed, logit_count};
    if (count > 1) sg_session_form_logits(session, count > logit_count / 2 ? NULL : grammar->allowed);
    *id = choose(session, &allowed, sampling);
    return SG_STATUS_OK;
}
