/* The header of a `.cact` file: rules 1 to 5 of docs/formats/cact.md. */
#include "container.h"

#define TAG_82 0x05e12a82u
#define TAG_83 0x05e12a83u
#define TAG_84 0x05e12a84u
#define HALF_WORD_MAX 0xffffffffu

/* A header word: where it goes and its inclusive bounds (rule 3). */
struct word {
    const char *name;
    uint32_t place;
    uint32_t low, high;
};

#define WORD(field, low, high) {"header." #field, (uint32_t)offsetof(struct sg_geometry, field), low, high}
#define ANY(field) WORD(field, 0, HALF_WORD_MAX)
#define COMMON_WORDS                                                                                           \
    ANY(tag), WORD(tensor_count, 1, 4096), WORD(codebook_count, SG_CODEBOOK_COUNT, SG_CODEBOOK_COUNT),         \
        ANY(kv_window), WORD(kv_bits, 1, 32)
#define ORDER_WORDS WORD(order_count, 1, SG_ORDER_COUNT_MAX), ANY(orders[0]), ANY(orders[1]), ANY(orders[2]), ANY(orders[3])

static const struct word words_82[] = {COMMON_WORDS};

static const struct word words_83[] = {
    COMMON_WORDS,
    WORD(vocab_count, 1, 1u << 20),
    WORD(d_model, 1, 8192),
    WORD(head_count, 1, 128),
    WORD(kv_head_count, 1, 128),
    WORD(layer_count, 1, 64),
    {"header.head_dim", (uint32_t)offsetof(struct sg_geometry, qk_head_dim), 2, 512},
    WORD(max_seq_len, 1, 1u << 20),
    ANY(hada_n),
    WORD(lane_count, 1, SG_LANE_MAX),
    WORD(engram_slots, 1, 1u << 26),
    WORD(engram_sub_dim, 1, 8192),
    WORD(engram_table_count, 1, 64),
    WORD(engram_conv_taps, 1, 16),
    WORD(engram_dilation, 1, 16),
    ORDER_WORDS,
    ANY(site_count),
    ANY(sites[0]),
    ANY(sites[1]),
    ANY(sites[2]),
    ANY(sites[3]),
};

static const struct word words_84[] = {
    COMMON_WORDS,
    WORD(vocab_count, 1, 1u << 20),
    ANY(out_vocab_count),
    WORD(d_model, 1, 8192),
    WORD(head_count, 1, 128),
    WORD(kv_head_count, 1, 128),
    WORD(layer_count, 1, 64),
    WORD(qk_head_dim, 2, 512),
    WORD(v_head_dim, 1, 512),
    WORD(max_seq_len, 1, 1u << 20),
    ANY(hada_n),
    WORD(lane_count, 1, SG_LANE_MAX),
    ANY(sliding_window),
    ANY(global_mask_low),
    ANY(global_mask_high),
    WORD(qkv_conv_taps, 0, 16),
    WORD(engram_slots, 1, 1u << 26),
    WORD(engram_sub_dim, 1, 8192),
    WORD(engram_table_count, 1, 64),
    WORD(engram_conv_taps, 1, 16),
    WORD(engram_dilation, 1, 16),
    WORD(engram_seed_heads, 0, 1u << 16),
    ORDER_WORDS,
    ANY(site_count),
    ANY(sites[0]),
    ANY(sites[1]),
    ANY(sites[2]),
    ANY(sites[3]),
    ANY(sites[4]),
    ANY(sites[5]),
    ANY(sites[6]),
    ANY(sites[7]),
    ANY(sites[8]),
    ANY(sites[9]),
    ANY(sites[10]),
    ANY(sites[11]),
    ANY(sites[12]),
    ANY(sites[13]),
    ANY(sites[14]),
    ANY(sites[15]),
};

/* What each tag's header holds; 83 and 84 end with `rope_theta`. */
struct form {
    uint32_t tag, generation;
    const struct word *words;
    uint32_t word_count, header_bytes, site_capacity;
};

#define COUNT_OF(array) (uint32_t)(sizeof(array) / sizeof(array)[0])
static const struct form forms[] = {
    {TAG_82, 2, words_82, COUNT_OF(words_82), 20, 4},
    {TAG_83, 2, words_83, COUNT_OF(words_83), 120, 4},
    {TAG_84, 3, words_84, COUNT_OF(words_84), 196, 16},
};

/* The published generation-2 model, which tag 82 implies. */
static const struct sg_geometry geometry_82 = {
    .vocab_count = 8192, .d_model = 512,           .head_count = 8,         .kv_head_count = 4,
    .layer_count = 27,   .qk_head_dim = 64,        .v_head_dim = 64,        .max_seq_len = 2048,
    .hada_n = 512,       .lane_count = 4,          .engram_slots = 8192,    .engram_sub_dim = 128,
    .engram_table_count = 4, .engram_conv_taps = 4, .engram_dilation = 3,
    .order_count = 2,    .orders = {2, 3},         .site_count = 2,         .sites = {2, 15},
    .rope_theta = 100000.0f,
};

static int bad_word(struct sg_error *error, const char *field, uint64_t offset, uint64_t found, uint64_t allowed) {
    return sg_fail(error, SG_STATUS_CACT_BAD_HEADER, field, offset, found, allowed);
}

static const struct form *form_of(uint32_t tag) {
    for (uint32_t i = 0; i < COUNT_OF(forms); i++) {
        if (forms[i].tag == tag) return &forms[i];
    }
    return NULL;
}

static uint32_t power_of_two_from(uint32_t value) {
    uint32_t power = 1;
    while (power < value) power *= 2;
    return power;
}

/* Rule 3: each word alone. */
static int read_words(struct sg_cursor *cursor, const struct form *form, struct sg_geometry *geometry,
                      struct sg_error *error) {
    for (uint32_t i = 0; i < form->word_count; i++) {
        const struct word *word = &form->words[i];
        const uint32_t value = sg_take_u32(cursor);
        if (value < word->low) return bad_word(error, word->name, 4 * i, value, word->low);
        if (value > word->high) return bad_word(error, word->name, 4 * i, value, word->high);
        memcpy((uint8_t *)geometry + word->place, &value, sizeof value);
    }
    if (form->tag == TAG_82) return SG_STATUS_OK;
    const uint32_t bits = sg_take_u32(cursor);
    geometry->rope_theta = sg_float_of_bits(bits);
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    if (!finite || !(geometry->rope_theta > 0)) {
        return bad_word(error, "header.rope_theta", form->header_bytes - 4u, bits, 0);
    }
    return SG_STATUS_OK;
}

/* Rule 4: the words together. `offset` is where the tag stands that all of them belong to. */
static int check_relations(const struct sg_geometry *g, uint32_t site_capacity, struct sg_error *error) {
    if (g->head_count % g->kv_head_count != 0) {
        return bad_word(error, "header.kv_head_count", 0, g->kv_head_count, g->head_count);
    }
    if (g->qk_head_dim % 2 != 0) return bad_word(error, "header.qk_head_dim", 0, g->qk_head_dim, 2);
    const uint32_t power = power_of_two_from(g->d_model);
    if (g->hada_n != power) return bad_word(error, "header.hada_n", 0, g->hada_n, power);
    if (g->out_vocab_count > g->vocab_count) {
        return bad_word(error, "header.out_vocab_count", 0, g->out_vocab_count, g->vocab_count);
    }
    if (g->engram_table_count % g->order_count != 0) {
        return bad_word(error, "header.engram_table_count", 0, g->engram_table_count, g->order_count);
    }
    for (uint32_t i = 0; i < SG_ORDER_COUNT_MAX; i++) {
        const bool used = i < g->order_count;
        const uint32_t high = used ? SG_ORDER_MAX : 0;
        if (g->orders[i] > high || (used && g->orders[i] == 0)) {
            return bad_word(error, "header.orders", 0, g->orders[i], high);
        }
    }
    if (g->site_count > site_capacity) return bad_word(error, "header.site_count", 0, g->site_count, site_capacity);
    uint32_t least = 0;
    for (uint32_t i = 0; i < site_capacity; i++) {
        const bool used = i < g->site_count;
        if (used ? g->sites[i] < least || g->sites[i] >= g->layer_count : g->sites[i] != 0) {
            return bad_word(error, "header.sites", 0, g->sites[i], used ? g->layer_count - 1 : 0);
        }
        least = g->sites[i] + 1;
    }
    return SG_STATUS_OK;
}

int sg_header_outline(const uint8_t *file, size_t file_bytes, struct sg_geometry *geometry, struct sg_error *error) {
    if (file_bytes < 4) return sg_fail(error, SG_STATUS_CACT_TRUNCATED, "header.tag", 0, file_bytes, 4);
    const uint32_t tag = sg_load_u32(file);
    const struct form *form = form_of(tag);
    if (!form) return sg_fail(error, SG_STATUS_CACT_BAD_TAG, "header.tag", 0, tag, TAG_84);
    if (file_bytes < form->header_bytes) {
        return sg_fail(error, SG_STATUS_CACT_TRUNCATED, "header", file_bytes, file_bytes, form->header_bytes);
    }
    *geometry = tag == TAG_82 ? geometry_82 : (struct sg_geometry){0};
    geometry->tag = tag;
    geometry->tensor_count = sg_load_u32(file + 4);
    geometry->codebook_count = sg_load_u32(file + 8);
    geometry->generation = form->generation;
    geometry->header_bytes = form->header_bytes;
    return SG_STATUS_OK;
}

int sg_header_read(const uint8_t *file, size_t file_bytes, struct sg_geometry *geometry, struct sg_error *error) {
    int status = sg_header_outline(file, file_bytes, geometry, error);
    if (status != SG_STATUS_OK) return status;
    const struct form *form = form_of(geometry->tag);
    struct sg_cursor cursor = sg_cursor_at(file, form->header_bytes);
    status = read_words(&cursor, form, geometry, error);
    if (status != SG_STATUS_OK) return status;
    if (form->tag == TAG_83) geometry->v_head_dim = geometry->qk_head_dim;
    status = check_relations(geometry, form->site_capacity, error);
    if (status != SG_STATUS_OK) return status;
    geometry->logit_count = geometry->out_vocab_count ? geometry->out_vocab_count : geometry->vocab_count;
    return SG_STATUS_OK;
}

int sg_codebooks_read(const uint8_t *file, size_t file_bytes, const struct sg_geometry *geometry,
                      float values[SG_CODEBOOK_COUNT], struct sg_error *error) {
    const uint64_t start = geometry->header_bytes;
    if (file_bytes < start + 4 * SG_CODEBOOK_COUNT) {
        return sg_fail(error, SG_STATUS_CACT_TRUNCATED, "codebooks", file_bytes, file_bytes,
                       start + 4 * SG_CODEBOOK_COUNT);
    }
    for (uint32_t i = 0; i < SG_CODEBOOK_COUNT; i++) {
        const uint32_t bits = sg_load_u32(file + start + 4 * i);
        values[i] = sg_float_of_bits(bits);
        const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
        const bool first = i == 0 || i == 4 || i == 12;
        if (!finite || !(first || values[i] > values[i - 1])) {
            return sg_fail(error, SG_STATUS_CACT_BAD_CODEBOOK, "codebooks", start + 4 * i, bits, 0);
        }
    }
    return SG_STATUS_OK;
}
