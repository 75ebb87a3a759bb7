/* Pieces as bytes, sorted, and the memory of a grammar. Nothing is allocated after open. */
#include "grammar.h"

#include "utf8.h"

/* ---- Pieces ---- */

bool sg_piece_is_special(const struct sg_model_info *info, uint32_t id) {
    const uint32_t special[] = {info->im_start_id, info->im_end_id, info->think_open_id, info->think_close_id,
                                info->tool_call_open_id, info->tool_call_close_id, info->eos_id};
    for (uint32_t i = 0; i < sizeof special / sizeof *special; i++) {
        if (id == special[i]) return true;
    }
    return false;
}

uint32_t sg_piece_text(const struct sg_tokenizer *tokenizer, uint32_t id, uint8_t *out) {
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

uint32_t sg_piece_id_count(const struct sg_model *model) {
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

/* Characters of a text that is nothing but what may stand in a string as it is; else 0. */
static uint8_t plain_characters(const uint8_t *text, uint32_t byte_count) {
    uint8_t count = 0;
    for (uint32_t i = 0; i < byte_count; count++) {
        const uint8_t lead = text[i];
        const uint32_t need = sg_utf8_need(lead);
        if (need == 0 || need > byte_count - i || lead < 0x20 || lead == '"' || lead == '\\') return 0;
        for (uint32_t place = 1; place < need; place++) {
            if (!sg_utf8_continues(lead, place, text[i + place])) return 0;
        }
        i += need;
    }
    return count;
}

/* How many pieces may stand in a call, and their bytes; fills them in where there is memory. */
static uint32_t read_pieces(const struct sg_model *model, struct sg_grammar *grammar, uint32_t *byte_count) {
    struct sg_model_info info;
    uint32_t count = 0;
    sg_model_describe(model, &info);
    *byte_count = 0;
    for (uint32_t id = 0; id < sg_piece_id_count(model); id++) {
        const uint32_t bytes = sg_piece_text(&model->tokenizer, id, NULL);
        if (bytes == 0 || bytes > SG_PIECE_BYTES_MAX || sg_piece_is_special(&info, id)) continue;
        if (grammar) {
            uint8_t *text = grammar->piece_bytes + *byte_count;
            sg_piece_text(&model->tokenizer, id, text);
            grammar->pieces[count] = (struct sg_piece_entry){.id = id, .start = *byte_count,
                                                             .byte_count = (uint8_t)bytes,
                                                             .characters = plain_characters(text, bytes)};
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
    for (uint32_t id = 0; id < sg_piece_id_count(model); id++) {
        uint8_t bytes[1];
        if (sg_piece_is_special(&info, id) || sg_piece_text(&model->tokenizer, id, NULL) != 1) continue;
        sg_piece_text(&model->tokenizer, id, bytes);
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
    made.spellers = sg_arena_take(arena, (model->geometry.logit_count + 31) / 32, sizeof *made.spellers);
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
    sg_grammar_find_spellers(made);
    made->known_bytes = SG_NONE;
    sg_place_start(made, made->now);
    made->first_cost = sg_finish_cost(made, made->now);
    sg_grammar_reset(made);
    *grammar = made;
    return SG_STATUS_OK;
}
