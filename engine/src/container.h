/* The `.cact` container: header, codebooks and directory, each number checked before it is used.
 *
 * Owns: rules 1 to 9 of docs/formats/cact.md in their order; `values.c` holds rule 9.
 * Knows nothing of: what a tensor means (model_load.c gives the canonical order), the tokenizer's blob. */
#ifndef SG_CONTAINER_H
#define SG_CONTAINER_H

#include "cursor.h"
#include "error.h"

#define SG_CODEBOOK_COUNT 28u
#define SG_SITE_MAX 16u
#define SG_ORDER_COUNT_MAX 4u
#define SG_ORDER_MAX 16u /* longest n-gram of an engram */
#define SG_LANE_MAX 16u
#define SG_TERNARY_BITS 5u

/* The header in one vocabulary for all tags; what a tag cannot say has the value that means "off". Fields that come
 * straight from the file are all 32-bit, so that one table can fill and check them. */
struct sg_geometry {
    uint32_t tag, tensor_count, codebook_count, kv_window, kv_bits;
    uint32_t vocab_count, out_vocab_count, d_model, head_count, kv_head_count, layer_count;
    uint32_t qk_head_dim, v_head_dim, max_seq_len, hada_n, lane_count, sliding_window;
    uint32_t global_mask_low, global_mask_high, qkv_conv_taps;
    uint32_t engram_slots, engram_sub_dim, engram_table_count, engram_conv_taps, engram_dilation, engram_seed_heads;
    uint32_t order_count, orders[SG_ORDER_COUNT_MAX];
    uint32_t site_count, sites[SG_SITE_MAX];
    float rope_theta;
    /* derived */
    uint32_t generation;   /* 2 or 3 */
    uint32_t logit_count;  /* out_vocab_count, or vocab_count where that is 0 */
    uint32_t header_bytes; /* the codebooks follow */
};

/* Rules 1 and 2, which need no model: of the geometry, `tag`, `tensor_count`, `codebook_count` and `header_bytes` are filled,
 * the counts as they stand in the file. */
int sg_header_outline(const uint8_t *file, size_t file_bytes, struct sg_geometry *geometry, struct sg_error *error);
/* Rules 1 to 4. */
int sg_header_read(const uint8_t *file, size_t file_bytes, struct sg_geometry *geometry, struct sg_error *error);
/* Rule 5; `values` receives the 28 levels: 4, 8 and 16 of them for 2, 3 and 4 bits. */
int sg_codebooks_read(const uint8_t *file, size_t file_bytes, const struct sg_geometry *geometry,
                      float values[SG_CODEBOOK_COUNT], struct sg_error *error);

enum sg_kind { SG_KIND_FP16 = 1, SG_KIND_FP32 = 2, SG_KIND_CQ = 3, SG_KIND_RAW = 4 };

/* A place in the canonical order and what must stand there. */
struct sg_slot {
    const char *name;
    enum sg_kind kind;
    uint32_t ndim;
    uint32_t shape[4];
};

/* A checked record. */
struct sg_tensor {
    const uint8_t *bytes;
    uint64_t offset;
    uint64_t byte_count;
    uint64_t code_bytes; /* CQ: bytes of the codes; the norms follow them */
    uint32_t bits;       /* CQ: 1 to 4, or 5 for ternary */
};

#define SG_RECORD_BYTES 44u
/* Where a record tells its blob's place. */
enum { SG_RECORD_AT_OFFSET = 20, SG_RECORD_AT_NBYTES = 28 };

/* A record as it stands in the file, unchecked. */
struct sg_record_fields {
    uint32_t dtype, ndim, zero, shape[4], group, bits;
    uint64_t offset, byte_count;
};
struct sg_record_fields sg_record_read(const uint8_t record[SG_RECORD_BYTES]);

/* One pass over the directory, record after record. */
struct sg_directory {
    const uint8_t *file;
    uint64_t file_bytes;
    uint64_t start;     /* of the first record */
    uint64_t free;      /* where the blobs that have been passed end */
    uint32_t index;     /* of the next record */
    uint32_t count;
};

/* The first half of rule 6: the whole directory is there. */
int sg_directory_open(const uint8_t *file, size_t file_bytes, const struct sg_geometry *geometry,
                      struct sg_directory *directory, struct sg_error *error);
/* Rules 6 to 8 for the next record. */
int sg_directory_next(struct sg_directory *directory, const struct sg_slot *slot, struct sg_tensor *tensor,
                      struct sg_error *error);
/* The end of rules 7 and 8: no record and no byte is left. */
int sg_directory_close(const struct sg_directory *directory, struct sg_error *error);
/* A look ahead, at a record that has not been checked yet; 0 past the end. */
uint32_t sg_directory_kind(const struct sg_directory *directory, uint32_t ahead);
uint32_t sg_directory_shape(const struct sg_directory *directory, uint32_t ahead, uint32_t axis);

/* Rule 9 for one tensor. */
int sg_values_check(const struct sg_slot *slot, const struct sg_tensor *tensor, struct sg_error *error);

#endif
