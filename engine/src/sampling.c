/* Drawing the next id. docs/numerics.md defines every step, so that the reference draws the same ids. */
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

static uint32_t greedy(const float *logits, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

/* A heap of all ids, whose top moves to the end of the array, candidate after candidate. */
struct ranking {
    const float *logits;
    uint32_t *heap;
    uint32_t count; /* ids that are still in the heap */
};

static struct ranking rank(const struct sg_session *session) {
    struct ranking ranking = {session->now.logits, session->work.ranking, session->model->geometry.logit_count};
    for (uint32_t i = 0; i < ranking.count; i++) ranking.heap[i] = i;
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

static uint32_t draw(const struct sg_session *session, struct sg_sampling *sampling) {
    const float *logits = session->now.logits;
    const uint32_t total = session->model->geometry.logit_count;
    const uint32_t kept = sampling->top_k && sampling->top_k < total ? sampling->top_k : total;
    const double temperature = (double)sampling->temperature;
    struct ranking ranking = rank(session);
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

int sg_session_sample(const struct sg_session *session, struct sg_sampling *sampling, uint32_t *id,
                      struct sg_error *error) {
    *id = 0;
    if (!session->now.has_logits) return sg_fail(error, SG_STATUS_BAD_STATE, "session.logits", 0, 0, 1);
    if (!(sampling->temperature >= 0.0f) || sampling->temperature > 1e6f) {
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "sampling.temperature", 0,
                       sg_bits_of_float(sampling->temperature), 0);
    }
    if (!(sampling->top_p > 0.0f && sampling->top_p <= 1.0f)) {
        return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "sampling.top_p", 0, sg_bits_of_float(sampling->top_p), 1);
    }
    *id = sampling->temperature == 0.0f ? greedy(session->now.logits, session->model->geometry.logit_count)
                                        : draw(session, sampling);
    return SG_STATUS_OK;
}
