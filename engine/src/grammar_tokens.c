/* From bytes to ids: which may come next, and how many the shortest end takes.
 *
 * Pieces stand in the order of their bytes, so that a walk over them steps through common beginnings once and leaves out
 * all that starts with what does not fit. Nothing is allocated after open. */
#include "grammar.h"

#include "utf8.h"

static const uint8_t marker[] = "<tool_call>";
#define MARKER_BYTES (sizeof marker - 1)

/* ---- Pieces ---- */

/* Ids that steer the conversation: never part of a call, whatever their spelling. */
static bool is_special(const struct sg_model_info *info, uint32_t id) {
    const uint32_t special[] = {info->im_start_id, info->im_end_id, info->think_open_id, info->think_close_id,
                                info->tool_call_open_id, info->tool_call_close_id, info->eos_id};
    for (uint32_t i = 0; i < sizeof special / sizeof *special; i++) {
        if (id == special[i]) return true;
    }
    return false;
}

/* The bytes that an id adds to a text, a space for U+2581; 0 for none. `out` may be NULL. */
static uint32_t text_of(const struct sg_tokenizer *tokenizer, uint32_t id, uint8_t *out) {
    const struct sg_piece piece = sg_piece_at(tokenizer, id);
    if (piece.type == SG_PIECE_CONTROL || piece.type == SG_PIECE_UNKNOWN) return 0;
    if (piece.type == SG_PIECE_BYTE) {
        uint32_t value = 0;
        while (tokenizer->byte_ids[value] != id && value < 255) value++;
        if (out) out[0] = (uint8_t)value;
        return tokenizer->byte_ids[value] == id;
    }
    uint32_t used = 0;
    for (uint32_t i = 0; i < piece.byte_count; used++) {
        const bool is_space = piece.byte_count - i >= 3 && memcmp(piece.text + i, "\xe2\x96\x81", 3) == 0;
        if (out) out[used] = is_space ? ' ' : piece.text[i];
        i += is_space ? 3 : 1;
    }
    return used;
}

static uint32_t id_count(const struct sg_model *model) {
    const uint32_t pieces = model->tokenizer.piece_count, logits = model->geometry.logit_count;
    return pieces < logits ? pieces : logits;
}

static int compare(const struct sg_grammar *grammar, const struct sg_piece_entry *a, const struct sg_piece_entry *b) {
    const uint32_t common = a->byte_count < b->byte_count ? a->byte_count : b->byte_count;
    const int order = memcmp(grammar->piece_bytes + a->start, grammar->piece_bytes + b->start, common);
    if (order) return order;
    if (a->byte_count != b->byte_count) return a->byte_count < b->byte_count ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static void sift_down(const struct sg_grammar *grammar, uint32_t root, uint32_t count) {
    struct sg_piece_entry *heap = grammar->pieces;
    while (2 * root + 1 < count) {
        uint32_t child = 2 * root + 1;
        if (child + 1 < count && compare(grammar, &heap[child], &heap[child + 1]) < 0) child++;
        if (compare(grammar, &heap[root], &heap[child]) >= 0) return;
        const struct sg_piece_entry moved = heap[root];
        heap[root] = heap[child];
        heap[child] = moved;
        root = child;
    }
}

static void sort_pieces(struct sg_grammar *grammar) {
    struct sg_piece_entry *pieces = grammar->pieces;
    for (uint32_t root = grammar->piece_count / 2; root > 0; root--) sift_down(grammar, root - 1, grammar->piece_count);
    for (uint32_t last = grammar->piece_count; last-- > 1;) {
        const struct sg_piece_entry moved = pieces[0];
        pieces[0] = pieces[last];
        pieces[last] = moved;
        sift_down(grammar, 0, last);
    }
    for (uint32_t i = 1; i < grammar->piece_count; i++) {
        const uint8_t *a = grammar->piece_bytes + pieces[i - 1].start, *b = grammar->piece_bytes + pieces[i].start;
        uint8_t common = 0;
        while (common < pieces[i - 1].byte_count && common < pieces[i].byte_count && a[common] == b[common]) common++;
        pieces[i].common = common;
    }
}

/* How many pieces may stand in a call, and their bytes; fills them in where there is memory. */
static uint32_t read_pieces(const struct sg_model *model, struct sg_grammar *grammar, uint32_t *byte_count) {
    struct sg_model_info info;
    uint32_t count = 0;
    sg_model_describe(model, &info);
    *byte_count = 0;
    for (uint32_t id = 0; id < id_count(model); id++) {
        const uint32_t bytes = text_of(&model->tokenizer, id, NULL);
        if (bytes == 0 || bytes > SG_PIECE_BYTES_MAX || is_special(&info, id)) continue;
        if (grammar) {
            grammar->pieces[count] = (struct sg_piece_entry){.id = id, .start = *byte_count,
                                                             .byte_count = (uint8_t)bytes};
            text_of(&model->tokenizer, id, grammar->piece_bytes + *byte_count);
        }
        *byte_count += bytes;
        count++;
    }
    return count;
}

/* ---- Opening ---- */

/* A grammar needs the markers, and a piece for each byte, so that whatever is begun can be ended. */
static int check_model(const struct sg_model *model, struct sg_error *error) {
    struct sg_model_info info;
    sg_model_describe(model, &info);
    const uint32_t logit_count = model->geometry.logit_count;
    if (info.tool_call_open_id >= logit_count || info.tool_call_close_id >= logit_count) {
        return sg_fail(error, SG_STATUS_GRAMMAR_UNSUPPORTED, "tokenizer.tool_call", 0, 0, 0);
    }
    bool is_spelt[256] = {false};
    for (uint32_t id = 0; id < id_count(model); id++) {
        uint8_t bytes[1];
        if (is_special(&info, id) || text_of(&model->tokenizer, id, NULL) != 1) continue;
        text_of(&model->tokenizer, id, bytes);
        is_spelt[bytes[0]] = true;
    }
    for (uint32_t i = 0; i < 256; i++) {
        if (!is_spelt[i]) return sg_fail(error, SG_STATUS_GRAMMAR_UNSUPPORTED, "tokenizer.byte_fallback", 0, i, 255);
    }
    return SG_STATUS_OK;
}

struct layout {
    struct sg_grammar *grammar;
    struct sg_json *values;
    uint16_t *node_of_value;
};

static struct layout lay_out(const struct sg_model *model, const struct sg_json_counts *counts, struct sg_arena *arena) {
    const struct sg_schema_sizes sizes = sg_schema_sizes(counts);
    uint32_t piece_byte_count;
    struct sg_grammar made = {.model = model, .piece_count = read_pieces(model, NULL, &piece_byte_count)};
    sg_model_describe(model, &made.info);
    struct layout layout = {.grammar = sg_arena_take(arena, 1, sizeof made)};
    layout.values = sg_arena_take(arena, counts->values, sizeof *layout.values);
    layout.node_of_value = sg_arena_take(arena, counts->values, sizeof *layout.node_of_value);
    made.nodes = sg_arena_take(arena, sizes.nodes, sizeof *made.nodes);
    made.choices = sg_arena_take(arena, sizes.choices, sizeof *made.choices);
    made.literals = sg_arena_take(arena, sizes.literals, sizeof *made.literals);
    made.literal_bytes = sg_arena_take(arena, sizes.literal_bytes, 1);
    made.patterns = sg_arena_take(arena, counts->objects, sizeof *made.patterns);
    made.positions = sg_arena_take(arena, SG_POSITIONS_ALL_MAX, sizeof *made.positions);
    made.ranges = sg_arena_take(arena, SG_RANGES_ALL_MAX, sizeof *made.ranges);
    made.pieces = sg_arena_take(arena, made.piece_count, sizeof *made.pieces);
    made.piece_bytes = sg_arena_take(arena, piece_byte_count, 1);
    made.now = sg_arena_take(arena, 1, sizeof *made.now);
    made.walk = sg_arena_take(arena, SG_PIECE_BYTES_MAX + 1, sizeof *made.walk);
    made.allowed = sg_arena_take(arena, (model->geometry.logit_count + 31) / 32, sizeof *made.allowed);
    made.finish = sg_arena_take(arena, SG_FINISH_BYTES_MAX, 1);
    made.known = sg_arena_take(arena, SG_FINISH_BYTES_MAX, 1);
    made.best = sg_arena_take(arena, SG_FINISH_BYTES_MAX + 1, sizeof *made.best);
    if (layout.grammar && sg_arena_fits(arena)) *layout.grammar = made;
    return layout;
}

static int count_tools(const struct sg_model *model, const uint8_t *tools, size_t tools_bytes,
                       struct sg_json_counts *counts, struct sg_error *error) {
    const int status = check_model(model, error);
    return status == SG_STATUS_OK ? sg_json_read(tools, tools_bytes, NULL, counts, error) : status;
}

int sg_grammar_measure(const struct sg_model *model, const uint8_t *tools, size_t tools_bytes, size_t *grammar_bytes,
                       struct sg_error *error) {
    struct sg_json_counts counts;
    struct sg_arena arena = {0};
    *grammar_bytes = 0;
    const int status = count_tools(model, tools, tools_bytes, &counts, error);
    if (status != SG_STATUS_OK) return status;
    lay_out(model, &counts, &arena);
    *grammar_bytes = (size_t)arena.used;
    return SG_STATUS_OK;
}

static uint32_t cost_of(struct sg_grammar *grammar, const struct sg_place *place);

int sg_grammar_open(const struct sg_model *model, const uint8_t *tools, size_t tools_bytes, void *memory,
                    size_t memory_bytes, struct sg_grammar **grammar, struct sg_error *error) {
    struct sg_json_counts counts;
    struct sg_arena arena = {.base = memory, .capacity = memory_bytes};
    *grammar = NULL;
    int status = count_tools(model, tools, tools_bytes, &counts, error);
    if (status != SG_STATUS_OK) return status;
    if (!memory) return sg_fail(error, SG_STATUS_BAD_ARGUMENT, "memory", 0, 0, 0);
    const struct layout layout = lay_out(model, &counts, &arena);
    if (!sg_arena_fits(&arena)) return sg_fail(error, SG_STATUS_OUT_OF_MEMORY, "grammar", 0, memory_bytes, arena.used);
    struct sg_grammar *made = layout.grammar;
    status = sg_json_read(tools, tools_bytes, layout.values, &counts, error);
    if (status != SG_STATUS_OK) return status;
    status = sg_schema_compile(made, tools, layout.values, &counts, layout.node_of_value, error);
    if (status != SG_STATUS_OK) return status;
    uint32_t piece_byte_count;
    read_pieces(model, made, &piece_byte_count);
    sort_pieces(made);
    made->known_bytes = SG_NONE;
    sg_place_start(made, made->now);
    made->first_cost = cost_of(made, made->now);
    sg_grammar_reset(made);
    *grammar = made;
    return SG_STATUS_OK;
}

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

/* Ids of a thread's shortest end with the closing marker; SG_NONE if it is too long to tell. */
static uint32_t thread_cost(struct sg_grammar *grammar, const struct sg_thread *thread) {
    struct sg_text text = {grammar->finish, 0, SG_FINISH_BYTES_MAX};
    sg_finish_thread(grammar, thread, &text);
    if (text.byte_count > text.capacity) return SG_NONE;
    if (text.byte_count != grammar->known_bytes || memcmp(grammar->known, grammar->finish, text.byte_count) != 0) {
        grammar->known_cost = fewest_pieces(grammar, text.byte_count) + 1;
        grammar->known_bytes = text.byte_count;
        memcpy(grammar->known, grammar->finish, text.byte_count);
    }
    return grammar->known_cost;
}

static uint32_t cost_of(struct sg_grammar *grammar, const struct sg_place *place) {
    uint32_t best = SG_NONE;
    for (uint32_t i = 0; i < place->thread_count; i++) {
        const uint32_t cost = thread_cost(grammar, &place->threads[i]);
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
    return cost_of(grammar, place) <= room;
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
    if (piece.type == SG_PIECE_BYTE) return text_of(tokenizer, id, &value) ? spell(spelt, value) : spelt;
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
    if (id >= id_count(grammar->model) || is_special(&grammar->info, id)) return false;
    if (sg_piece_at(&grammar->model->tokenizer, id).byte_count > 3 * SG_PIECE_BYTES_MAX) return false;
    uint8_t bytes[3 * SG_PIECE_BYTES_MAX];
    const uint32_t byte_count = text_of(&grammar->model->tokenizer, id, bytes);
    if (byte_count == 0 || byte_count > SG_PIECE_BYTES_MAX) return false;
    sg_place_copy(&grammar->walk[0], grammar->now);
    return walk(grammar, bytes, 0, byte_count) == byte_count && can_end(grammar, &grammar->walk[byte_count], room - 1);
}

static void set(struct sg_grammar *grammar, uint32_t id) { grammar->allowed[id / 32] |= 1u << id % 32; }

static uint32_t fill_call(struct sg_grammar *grammar, uint32_t room) {
    uint32_t count = 0, reached = 0; /* bytes of the last piece that was walked which fitted */
    if (sg_place_is_done(grammar->now)) {
        set(grammar, grammar->info.tool_call_close_id);
        return 1;
    }
    sg_place_copy(&grammar->walk[0], grammar->now);
    for (uint32_t i = 0; i < grammar->piece_count; i++) {
        const struct sg_piece_entry *piece = &grammar->pieces[i];
        if (piece->common > reached) continue;
        reached = walk(grammar, grammar->piece_bytes + piece->start, piece->common, piece->byte_count);
        if (reached < piece->byte_count || !can_end(grammar, &grammar->walk[reached], room - 1)) continue;
        set(grammar, piece->id);
        count++;
    }
    return count;
}

uint32_t sg_grammar_fill(struct sg_grammar *grammar, uint32_t room) {
    memset(grammar->allowed, 0, (grammar->info.logit_count + 31) / 32 * sizeof *grammar->allowed);
    if (room == 0) return 0;
    if (grammar->is_calling) return fill_call(grammar, room);
    uint32_t count = 0;
    for (uint32_t id = 0; id < grammar->info.logit_count; id++) {
        if (!takes_in_text(grammar, id, room)) continue;
        set(grammar, id);
        count++;
    }
    return count;
}

void sg_grammar_allowed(struct sg_grammar *grammar, uint32_t room_tokens, const uint32_t **words) {
    sg_grammar_fill(grammar, room_tokens);
    *words = grammar->allowed;
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
        sg_place_copy(grammar->now, &grammar->walk[text_of(&grammar->model->tokenizer, id, NULL)]);
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
