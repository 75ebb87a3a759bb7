/* Which ids may come next, and how many the shortest end takes.
 *
 * Pieces stand in the order of their bytes, so that a walk over them steps through common beginnings once and leaves out
 * all that starts with what does not fit. Where a string is open, pieces of plain characters need no walk: they only
 * count. Nothing is allocated. */
#include "grammar.h"

static const uint8_t marker[] = "<tool_call>";
#define MARKER_BYTES (sizeof marker - 1)

/* ---- How many ids the shortest end takes ---- */

/* Narrows the pieces low .. high, which share `at` bytes, to those whose next byte is `byte`. */
static bool narrow(const struct sg_grammar *grammar, uint32_t *low, uint32_t *high, uint32_t at, uint8_t byte) {
    uint32_t bounds[2];
    for (int side = 0; side < 2; side++) {
        uint32_t from = *low, to = *high;
        while (from < to) {
            const uint32_t middle = from + (to - from) / 2;
            const struct sg_piece_entry *piece = &grammar->pieces[middle];
            const int next = at < piece->byte_count ? grammar->piece_bytes[piece->start + at] : -1;
            if (next < byte + side) from = middle + 1;
            else to = middle;
        }
        bounds[side] = from;
    }
    *low = bounds[0];
    *high = bounds[1];
    return *low < *high;
}

/* The fewest pieces that spell the text in `finish`. */
static uint32_t fewest_pieces(struct sg_grammar *grammar, uint32_t byte_count) {
    grammar->best[byte_count] = 0;
    for (uint32_t start = byte_count; start-- > 0;) {
        uint32_t low = 0, high = grammar->piece_count;
        uint16_t best = (uint16_t)(grammar->best[start + 1] + 1); /* each byte has a piece */
        for (uint32_t length = 0; start + length < byte_count; length++) {
            if (!narrow(grammar, &low, &high, length, grammar->finish[start + length])) break;
            const bool is_piece = grammar->pieces[low].byte_count == length + 1;
            const uint16_t ids = (uint16_t)(grammar->best[start + length + 1] + 1);
            if (is_piece && ids < best) best = ids;
        }
        grammar->best[start] = best;
    }
    return grammar->best[0];
}

/* Ids of a thread's shortest end with the closing marker, or anything up to `enough` if it is no more than that; SG_NONE
 * if the end is too long to tell. */
static uint32_t thread_cost(struct sg_grammar *grammar, const struct sg_thread *thread, uint32_t enough) {
    struct sg_text text = {grammar->finish, 0, SG_FINISH_BYTES_MAX};
    sg_finish_thread(grammar, thread, &text);
    if (text.byte_count > text.capacity) return SG_NONE;
    if (text.byte_count < enough) return enough; /* each byte has a piece */
    if (text.byte_count != grammar->known_bytes || memcmp(grammar->known, grammar->finish, text.byte_count) != 0) {
        grammar->known_cost = fewest_pieces(grammar, text.byte_count) + 1;
        grammar->known_bytes = text.byte_count;
        memcpy(grammar->known, grammar->finish, text.byte_count);
    }
    return grammar->known_cost;
}

uint32_t sg_finish_cost(struct sg_grammar *grammar, const struct sg_place *place) {
    uint32_t best = SG_NONE;
    for (uint32_t i = 0; i < place->thread_count; i++) {
        const uint32_t cost = thread_cost(grammar, &place->threads[i], 0);
        if (cost < best) best = cost;
    }
    return best;
}

/* Whether `room` ids are enough for some end. Bytes are counted first: each is an id of its own at worst. */
static bool can_end(struct sg_grammar *grammar, const struct sg_place *place, uint32_t room) {
    for (uint32_t i = 0; i < place->thread_count; i++) {
        uint64_t reach = 1;
        for (uint32_t depth = 0; depth < place->threads[i].depth; depth++) {
            reach += grammar->nodes[place->threads[i].frames[depth].node].reach;
        }
        if (reach <= room && reach <= SG_FINISH_BYTES_MAX) return true;
    }
    for (uint32_t i = 0; i < place->thread_count; i++) {
        if (thread_cost(grammar, &place->threads[i], room) <= room) return true;
    }
    return false;
}

/* ---- Which ids may come next ---- */

/* Bytes of the marker that the text has spelt once `byte` follows `spelt` of them. Its only border is "<". */
static uint32_t spell(uint32_t spelt, uint8_t byte) {
    if (byte == marker[spelt]) return spelt + 1;
    return byte == marker[0];
}

/* Where plain text gets with this id; MARKER_BYTES: it would spell the marker, which only the marker itself may. */
static uint32_t spell_piece(const struct sg_grammar *grammar, uint32_t id) {
    const struct sg_tokenizer *tokenizer = &grammar->model->tokenizer;
    uint32_t spelt = grammar->spelt;
    if (id >= tokenizer->piece_count) return spelt;
    const struct sg_piece piece = sg_piece_at(tokenizer, id);
    uint8_t value = 0;
    if (piece.type == SG_PIECE_BYTE) return sg_piece_text(tokenizer, id, &value) ? spell(spelt, value) : spelt;
    if (piece.type == SG_PIECE_CONTROL || piece.type == SG_PIECE_UNKNOWN) return spelt;
    for (uint32_t i = 0; i < piece.byte_count && spelt < MARKER_BYTES; i++) spelt = spell(spelt, piece.text[i]);
    return spelt;
}

static bool takes_in_text(const struct sg_grammar *grammar, uint32_t id, uint32_t room) {
    if (id != grammar->info.tool_call_open_id) return spell_piece(grammar, id) < MARKER_BYTES;
    return !grammar->is_thinking && grammar->first_cost < room;
}

/* The place behind a piece's bytes from `at` on, given those before; the bytes that fitted. */
static uint32_t walk(struct sg_grammar *grammar, const uint8_t *bytes, uint32_t at, uint32_t byte_count) {
    for (; at < byte_count; at++) {
        sg_place_step(grammar, &grammar->walk[at], bytes[at], &grammar->walk[at + 1]);
        if (grammar->walk[at + 1].thread_count == 0) return at;
    }
    return at;
}

bool sg_grammar_takes(struct sg_grammar *grammar, uint32_t id, uint32_t room) {
    if (id >= grammar->info.logit_count || room == 0) return false;
    if (!grammar->is_calling) return takes_in_text(grammar, id, room);
    if (id == grammar->info.tool_call_close_id) return sg_place_is_done(grammar->now);
    if (id >= sg_piece_id_count(grammar->model) || sg_piece_is_special(&grammar->info, id)) return false;
    if (sg_piece_at(&grammar->model->tokenizer, id).byte_count > 3 * SG_PIECE_BYTES_MAX) return false;
    uint8_t bytes[3 * SG_PIECE_BYTES_MAX];
    const uint32_t byte_count = sg_piece_text(&grammar->model->tokenizer, id, bytes);
    if (byte_count == 0 || byte_count > SG_PIECE_BYTES_MAX) return false;
    sg_place_copy(&grammar->walk[0], grammar->now);
    return walk(grammar, bytes, 0, byte_count) == byte_count && can_end(grammar, &grammar->walk[byte_count], room - 1);
}

static void set(struct sg_grammar *grammar, uint32_t id) { grammar->allowed[id / 32] |= 1u << id % 32; }

/* How many whole characters may be added to a thread that takes them as they come; bit k: k of them. 0 for other threads. */
static uint64_t plain_counts(struct sg_grammar *grammar, const struct sg_thread *thread, uint32_t room) {
    struct sg_place *behind = &grammar->walk[1];
    uint64_t counts = 0;
    const uint32_t most = sg_plain_room(grammar, thread);
    if (most == 0) return 0;
    behind->thread_count = 1;
    sg_thread_copy(&behind->threads[0], thread);
    for (uint32_t k = 1; k <= most && k <= SG_PIECE_BYTES_MAX; k++) {
        sg_plain_add(grammar, &behind->threads[0]);
        if (can_end(grammar, behind, room)) counts |= (uint64_t)1 << k;
    }
    return counts;
}

/* What plain pieces need no walk for. */
struct plain {
    uint64_t counts; /* bit k: pieces of k characters are allowed */
    bool is_all;     /* no thread takes others */
};

static struct plain find_plain(struct sg_grammar *grammar, uint32_t room) {
    struct plain plain = {0, true};
    for (uint32_t i = 0; i < grammar->now->thread_count; i++) {
        const struct sg_thread *thread = &grammar->now->threads[i];
        plain.counts |= plain_counts(grammar, thread, room);
        plain.is_all = plain.is_all && sg_plain_room(grammar, thread) > 0;
    }
    return plain;
}

/* Walks the pieces low .. high. Returns how many are allowed. */
static uint32_t fill_pieces(struct sg_grammar *grammar, uint32_t low, uint32_t high, const struct plain *plain,
                            uint32_t room) {
    uint32_t count = 0, reached = 0; /* bytes of the last piece that was walked which fitted */
    uint8_t common = 0;              /* bytes that the present piece shares with it */
    for (uint32_t i = low; i < high; i++) {
        const struct sg_piece_entry *piece = &grammar->pieces[i];
        if (piece->common < common) common = piece->common;
        bool fits = plain->counts >> piece->characters & 1;
        if (!fits && !(plain->is_all && piece->characters) && common <= reached) {
            reached = walk(grammar, grammar->piece_bytes + piece->start, common, piece->byte_count);
            common = piece->byte_count;
            fits = reached == piece->byte_count && can_end(grammar, &grammar->walk[reached], room);
        }
        if (!fits) continue;
        set(grammar, piece->id);
        count++;
    }
    return count;
}

static uint32_t fill_call(struct sg_grammar *grammar, uint32_t room) {
    uint32_t count = 0;
    struct sg_bytes first;
    if (sg_place_is_done(grammar->now)) {
        set(grammar, grammar->info.tool_call_close_id);
        return 1;
    }
    const struct plain plain = find_plain(grammar, room - 1);
    sg_place_copy(&grammar->walk[0], grammar->now);
    if (!sg_place_expects(grammar, grammar->now, &first)) {
        return fill_pieces(grammar, 0, grammar->piece_count, &plain, room - 1);
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t low = 0, high = grammar->piece_count;
        if (!(first.bits[byte / 64] >> byte % 64 & 1) || !narrow(grammar, &low, &high, 0, (uint8_t)byte)) continue;
        count += fill_pieces(grammar, low, high, &plain, room - 1);
    }
    return count;
}

/* All but the ids that would spell the marker, for which a piece must hold its last byte. */
static uint32_t fill_text(struct sg_grammar *grammar, uint32_t room) {
    const uint32_t logit_count = grammar->info.logit_count;
    uint32_t count = 0;
    for (uint32_t word = 0; word * 32 < logit_count; word++) {
        const uint32_t left = logit_count - word * 32;
        uint32_t bits = left < 32 ? (1u << left) - 1 : UINT32_MAX;
        for (uint32_t asked = bits & grammar->spellers[word]; asked; asked &= asked - 1) {
            const uint32_t id = word * 32 + (uint32_t)__builtin_ctz(asked);
            if (!takes_in_text(grammar, id, room)) bits &= ~(1u << id % 32);
        }
        grammar->allowed[word] = bits;
        count += (uint32_t)__builtin_popcount(bits);
    }
    return count;
}

bool sg_grammar_is_open(const struct sg_grammar *grammar) {
    struct sg_bytes first;
    return !grammar->is_calling || !sg_place_expects(grammar, grammar->now, &first);
}

uint32_t sg_grammar_fill(struct sg_grammar *grammar, uint32_t room) {
    memset(grammar->allowed, 0, (grammar->info.logit_count + 31) / 32 * sizeof *grammar->allowed);
    if (room == 0) return 0;
    return grammar->is_calling ? fill_call(grammar, room) : fill_text(grammar, room);
}

void sg_grammar_allowed(struct sg_grammar *grammar, uint32_t room_tokens, const uint32_t **words) {
    sg_grammar_fill(grammar, room_tokens);
    *words = grammar->allowed;
}

void sg_grammar_find_spellers(struct sg_grammar *grammar) {
    const struct sg_tokenizer *tokenizer = &grammar->model->tokenizer;
    for (uint32_t id = 0; id < sg_piece_id_count(grammar->model); id++) {
        const struct sg_piece piece = sg_piece_at(tokenizer, id);
        const uint8_t last = marker[MARKER_BYTES - 1];
        const bool is_speller = piece.type == SG_PIECE_BYTE ? id == tokenizer->byte_ids[last]
                                                            : memchr(piece.text, last, piece.byte_count) != NULL;
        if (is_speller) grammar->spellers[id / 32] |= 1u << id % 32;
    }
}

/* ---- Moving on ---- */

void sg_grammar_reset(struct sg_grammar *grammar) {
    grammar->is_calling = grammar->is_thinking = false;
    grammar->spelt = 0;
}

int sg_grammar_accept(struct sg_grammar *grammar, uint32_t id, struct sg_error *error) {
    const struct sg_model_info *info = &grammar->info;
    if (!sg_grammar_takes(grammar, id, UINT32_MAX)) {
        return sg_fail(error, SG_STATUS_BAD_TOKEN, "grammar", 0, id, info->logit_count - 1);
    }
    if (grammar->is_calling && id == info->tool_call_close_id) {
        sg_grammar_reset(grammar);
    } else if (grammar->is_calling) {
        sg_place_copy(grammar->now, &grammar->walk[sg_piece_text(&grammar->model->tokenizer, id, NULL)]);
    } else if (id == info->tool_call_open_id) {
        grammar->is_calling = true;
        sg_place_start(grammar, grammar->now);
    } else {
        grammar->spelt = spell_piece(grammar, id);
        if (id == info->think_open_id) grammar->is_thinking = true;
        if (id == info->think_close_id) grammar->is_thinking = false;
    }
    return SG_STATUS_OK;
}
