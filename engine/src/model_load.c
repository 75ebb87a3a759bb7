/* The canonical order of tensors (docs/formats/cact.md), as one straight walk that both checks and binds. */
#include "model_load.h"

#include "ladder.h"
#include "loader.h"
#include "math.h"

#define TERNARY_LEVEL 0x1.bb233ep-4f     /* 1.2240064 / sqrt(128): outer level of the three-level quantiser */
#define BINARY_LEVEL 0x1.20dd76p-4f      /* sqrt(2 / pi) / sqrt(128) */

struct sg_tensor sg_loader_next(struct sg_loader *loader, const struct sg_slot *slot) {
    struct sg_tensor tensor = {0};
    if (loader->status != SG_STATUS_OK) return tensor;
    loader->status = sg_directory_next(&loader->directory, slot, &tensor, loader->error);
    if (loader->status == SG_STATUS_OK && loader->arena) {
        loader->status = sg_values_check(slot, &tensor, loader->error);
    }
    return tensor;
}

struct sg_matrix sg_loader_matrix(struct sg_loader *loader, const char *name, uint32_t rows, uint32_t columns) {
    const struct sg_slot slot = {name, SG_KIND_CQ, 2, {rows, columns}};
    const struct sg_tensor tensor = sg_loader_next(loader, &slot);
    if (loader->status != SG_STATUS_OK) return (struct sg_matrix){0};
    return (struct sg_matrix){
        .codes = tensor.bytes,
        .norms = tensor.bytes + tensor.code_bytes,
        .levels = &loader->model->levels[tensor.bits],
        .row_count = rows,
        .column_count = columns,
        .group_count = (uint32_t)(sg_padded(columns) / SG_GROUP),
        .code_bits = tensor.bits == SG_TERNARY_BITS ? 2 : tensor.bits,
    };
}

const float *sg_loader_floats(struct sg_loader *loader, const char *name, uint32_t first, uint32_t second,
                              uint32_t third) {
    const uint32_t ndim = third ? 3 : second ? 2 : 1;
    const struct sg_slot slot = {name, SG_KIND_FP16, ndim, {first, second, third}};
    const struct sg_tensor tensor = sg_loader_next(loader, &slot);
    if (loader->status != SG_STATUS_OK || !loader->arena || loader->is_left_out) return NULL;
    const uint64_t count = tensor.byte_count / 2;
    float *values = sg_arena_take(loader->arena, count, sizeof *values);
    for (uint64_t i = 0; values && i < count; i++) values[i] = sg_float_of_half(sg_load_u16(tensor.bytes + 2 * i));
    return values;
}

static uint16_t *permutation(struct sg_loader *loader, const char *name) {
    const uint32_t count = loader->model->geometry.hada_n;
    const struct sg_slot slot = {name, SG_KIND_FP32, 1, {count}};
    const struct sg_tensor tensor = sg_loader_next(loader, &slot);
    if (loader->status != SG_STATUS_OK || !loader->arena) return NULL;
    uint16_t *places = sg_arena_take(loader->arena, count, sizeof *places);
    for (uint64_t i = 0; places && i < count; i++) {
        places[i] = (uint16_t)sg_float_of_bits(sg_load_u32(tensor.bytes + 4 * i));
    }
    return places;
}

static void load_attention(struct sg_loader *loader, struct sg_layer *layer) {
    const struct sg_model *m = loader->model;
    const uint32_t d = m->geometry.d_model, taps = m->geometry.qkv_conv_taps, qk = m->geometry.qk_head_dim;
    layer->norm_in = sg_loader_floats(loader, "layers.norm_in", d, 0, 0);
    layer->q_proj = sg_loader_matrix(loader, "layers.q_proj", m->q_dim, d);
    layer->k_proj = sg_loader_matrix(loader, "layers.k_proj", m->k_dim, d);
    layer->v_proj = sg_loader_matrix(loader, "layers.v_proj", m->v_dim, d);
    if (taps) {
        layer->q_taps = sg_loader_floats(loader, "layers.q_taps", taps, m->q_dim, 0);
        layer->k_taps = sg_loader_floats(loader, "layers.k_taps", taps, m->k_dim, 0);
        layer->v_taps = sg_loader_floats(loader, "layers.v_taps", taps, m->v_dim, 0);
    }
    layer->q_norm = sg_loader_floats(loader, "layers.q_norm", qk, 0, 0);
    layer->k_norm = sg_loader_floats(loader, "layers.k_norm", qk, 0, 0);
    layer->gate_proj = sg_loader_matrix(loader, "layers.gate_proj", m->out_dim, d);
    layer->out_proj = sg_loader_matrix(loader, "layers.out_proj", d, m->out_dim);
    layer->post_attn_norm = sg_loader_floats(loader, "layers.post_attn_norm", d, 0, 0);
    layer->attn_gate = sg_loader_floats(loader, "layers.attn_gate", 1, 0, 0);
    layer->pre_hada_norm = sg_loader_floats(loader, "layers.pre_hada_norm", d, 0, 0);
}

static void load_mlp(struct sg_loader *loader, struct sg_layer *layer) {
    const struct sg_model *m = loader->model;
    const uint32_t n = m->geometry.hada_n, a = m->hada_a, b = m->hada_b;
    layer->d1 = sg_loader_floats(loader, "layers.d1", n, 0, 0);
    layer->d2 = sg_loader_floats(loader, "layers.d2", n, 0, 0);
    if (m->geometry.generation == 2) {
        layer->d3 = sg_loader_floats(loader, "layers.d3", n, 0, 0);
        return;
    }
    layer->b2 = sg_loader_floats(loader, "layers.b2", n, 0, 0);
    layer->d3 = sg_loader_floats(loader, "layers.d3", n, 0, 0);
    layer->d4 = sg_loader_floats(loader, "layers.d4", n, 0, 0);
    for (uint32_t i = 0; i < 3; i++) {
        layer->w[i].a = sg_loader_floats(loader, "layers.w_a", a, a, 0);
        layer->w[i].b = sg_loader_floats(loader, "layers.w_b", b, b, 0);
    }
    layer->cond_v = sg_loader_floats(loader, "layers.cond_v", m->geometry.d_model, SG_CONDITION_COUNT, 0);
    layer->cond_u = sg_loader_floats(loader, "layers.cond_u", SG_CONDITION_COUNT, n, 0);
}

static void load_connections(struct sg_loader *loader, struct sg_connections *c) {
    const struct sg_geometry *g = &loader->model->geometry;
    const uint32_t layers = g->layer_count, lanes = g->lane_count, columns = g->lane_count * g->d_model;
    c->a_pre = sg_loader_floats(loader, "mhc_a_pre", layers, 0, 0);
    c->a_post = sg_loader_floats(loader, "mhc_a_post", layers, 0, 0);
    c->a_res = sg_loader_floats(loader, "mhc_a_res", layers, 0, 0);
    c->b_pre = sg_loader_floats(loader, "mhc_b_pre", layers, lanes, 0);
    c->b_post = sg_loader_floats(loader, "mhc_b_post", layers, lanes, 0);
    c->b_res = sg_loader_floats(loader, "mhc_b_res", layers, lanes, lanes);
    c->phi_pre = sg_loader_matrix(loader, "mhc_phi_pre", layers * lanes, columns);
    c->phi_post = sg_loader_matrix(loader, "mhc_phi_post", layers * lanes, columns);
    c->phi_res = sg_loader_matrix(loader, "mhc_phi_res", layers * lanes * lanes, columns);
}

static void load_engram(struct sg_loader *loader, struct sg_engram *engram) {
    const struct sg_model *m = loader->model;
    const struct sg_geometry *g = &m->geometry;
    const uint64_t rows = (uint64_t)g->engram_table_count * g->engram_slots; /* 2^32 fits no shape word */
    const uint32_t row_word = rows > UINT32_MAX ? UINT32_MAX : (uint32_t)rows;
    engram->tables = sg_loader_matrix(loader, "engrams.tables", row_word, g->engram_sub_dim);
    engram->key_proj = sg_loader_matrix(loader, "engrams.key_proj", g->d_model, m->engram_dim);
    engram->value_proj = sg_loader_matrix(loader, "engrams.value_proj", g->d_model, m->engram_dim);
    engram->taps = sg_loader_floats(loader, "engrams.taps", g->engram_conv_taps, g->d_model, 0);
}

static void load_tokenizer(struct sg_loader *loader) {
    if (loader->status != SG_STATUS_OK || sg_directory_kind(&loader->directory, 0) == 0) return;
    const struct sg_slot slot = {"tokenizer", SG_KIND_RAW, 0, {0}};
    const struct sg_tensor tensor = sg_loader_next(loader, &slot);
    if (loader->status != SG_STATUS_OK || !loader->arena) return;
    loader->status = sg_tokenizer_load(tensor.bytes, tensor.byte_count, tensor.offset,
                                       loader->model->geometry.vocab_count, &loader->model->tokenizer, loader->arena,
                                       loader->error);
}

/* All layers of the file, of which those of the rung are bound. */
static void load_layers(struct sg_loader *loader, const bool *kept) {
    struct sg_model *m = loader->model;
    uint32_t place = 0;
    for (uint32_t l = 0; l < m->geometry.layer_count; l++) {
        struct sg_layer layer = {.origin = l};
        loader->is_left_out = !kept[l];
        load_attention(loader, &layer);
        load_mlp(loader, &layer);
        if (m->layers && kept[l]) m->layers[place++] = layer;
    }
    loader->is_left_out = false;
}

static void load_engrams(struct sg_loader *loader, const bool *kept) {
    struct sg_model *m = loader->model;
    uint32_t place = 0;
    for (uint32_t s = 0; s < m->geometry.site_count; s++) {
        const bool is_kept = kept[m->geometry.sites[s]];
        struct sg_engram engram;
        loader->is_left_out = !is_kept;
        load_engram(loader, &engram);
        if (is_kept) m->engrams[place++] = engram;
    }
    loader->is_left_out = false;
}

/* One pass, first record to last. */
static void walk(struct sg_loader *loader, const bool *kept) {
    struct sg_model *m = loader->model;
    const struct sg_geometry *g = &m->geometry;
    uint32_t depth = 0;
    for (uint32_t l = 0; l < g->layer_count; l++) depth += kept[l];
    m->embedding = sg_loader_matrix(loader, "embedding", g->vocab_count, g->d_model);
    if (loader->arena) m->layers = sg_arena_take(loader->arena, depth, sizeof *m->layers);
    load_layers(loader, kept);
    load_connections(loader, &m->connections);
    if (g->generation == 3) {
        m->permutation_1 = permutation(loader, "hada_p1");
        m->permutation_2 = permutation(loader, "hada_p2");
    }
    load_engrams(loader, kept);
    m->final_norm = sg_loader_floats(loader, "final_norm", g->d_model, 0, 0);
    sg_loader_heads(loader);
    load_tokenizer(loader);
    if (loader->status == SG_STATUS_OK) loader->status = sg_directory_close(&loader->directory, loader->error);
}

static void set_levels(struct sg_model *model, const float codebooks[SG_CODEBOOK_COUNT]) {
    const float binary[2] = {-BINARY_LEVEL, BINARY_LEVEL};
    const float ternary[4] = {0.0f, TERNARY_LEVEL, 0.0f, -TERNARY_LEVEL};
    sg_levels_set(&model->levels[1], binary, 2);
    sg_levels_set(&model->levels[2], codebooks, 4);
    sg_levels_set(&model->levels[3], codebooks + 4, 8);
    sg_levels_set(&model->levels[4], codebooks + 12, 16);
    sg_levels_set(&model->levels[SG_TERNARY_BITS], ternary, 4);
}

static void set_derived(struct sg_model *model) {
    const struct sg_geometry *g = &model->geometry;
    model->file_layer_count = g->layer_count;
    model->q_dim = g->head_count * g->qk_head_dim;
    model->k_dim = g->kv_head_count * g->qk_head_dim;
    model->v_dim = g->kv_head_count * g->v_head_dim;
    model->out_dim = g->head_count * g->v_head_dim;
    model->engram_dim = g->engram_table_count * g->engram_sub_dim;
    uint32_t log = 0; /* hada_n = 2^log, split so that a is the smaller factor */
    while (1u << log < g->hada_n) log++;
    model->hada_a = 1u << log / 2;
    model->hada_b = g->hada_n / model->hada_a;
    for (uint32_t i = 0; i < g->order_count; i++) {
        if (g->orders[i] > model->order_max) model->order_max = g->orders[i];
    }
}

/* theta^(-2i / Q), rounded once: upstream's 1 / theta^(2i / Q) up to its own rounding (docs/numerics.md). */
static void set_rope_frequencies(struct sg_model *model, struct sg_arena *arena) {
    const struct sg_geometry *g = &model->geometry;
    model->rope_frequencies = sg_arena_take(arena, g->qk_head_dim / 2, sizeof *model->rope_frequencies);
    const double log_theta = sg_log((double)g->rope_theta);
    for (uint32_t i = 0; model->rope_frequencies && i < g->qk_head_dim / 2; i++) {
        model->rope_frequencies[i] = (float)sg_exp(-2.0 * i / g->qk_head_dim * log_theta);
    }
}

int sg_model_load(const uint8_t *file, size_t file_bytes, uint32_t depth, struct sg_model *model,
                  struct sg_arena *arena, struct sg_error *error) {
    memset(model, 0, sizeof *model);
    float codebooks[SG_CODEBOOK_COUNT];
    bool kept[SG_LAYER_MAX];
    int status = sg_header_read(file, file_bytes, &model->geometry, error);
    if (status == SG_STATUS_OK) status = sg_codebooks_read(file, file_bytes, &model->geometry, codebooks, error);
    if (status == SG_STATUS_OK) status = sg_ladder_choose(&model->geometry, depth, kept, error);
    if (status != SG_STATUS_OK) return status;
    set_derived(model);
    set_levels(model, codebooks);
    for (int pass = 0; pass < 2; pass++) {
        struct sg_loader loader = {.model = model, .arena = pass ? arena : NULL, .error = error};
        loader.status = sg_directory_open(file, file_bytes, &model->geometry, &loader.directory, error);
        if (loader.status == SG_STATUS_OK) walk(&loader, kept);
        if (loader.status != SG_STATUS_OK) return loader.status;
    }
    sg_ladder_cut(&model->geometry, kept);
    set_rope_frequencies(model, arena);
    if (!sg_arena_fits(arena)) {
        return sg_fail(error, SG_STATUS_OUT_OF_MEMORY, "model", 0, arena->capacity, arena->used);
    }
    return SG_STATUS_OK;
}
