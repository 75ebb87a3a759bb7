/* What the patch maker wants to know of a container: where its parts lie. */
#ifndef SG_PATCH_CONTAINER_H
#define SG_PATCH_CONTAINER_H

#include "container.h"
#include "patch_format.h"

#define SG_RECORDS_MAX 65536u

struct sg_container {
    const uint8_t *file;
    size_t file_bytes;
    uint32_t tag;
    uint32_t record_count;
    size_t directory_offset; /* = bytes of header and codebooks */
};

struct sg_record {
    uint64_t offset, byte_count; /* of the blob */
    uint32_t dtype;              /* an `sg_kind`, or a number that is none */
    uint32_t bits;               /* CQ of a shape that a CQ segment can hold; else 0 */
    uint32_t row_count, group_count, column_count;
};

/* Checks that header, directory and every blob lie in the file, blobs in directory order without overlap. */
int sg_container_open(struct sg_container *container, const uint8_t *file, size_t file_bytes, struct sg_error *error);
/* Bytes of one row's codes, and of its norms; all codes of a CQ tensor come before all norms. */
static inline uint32_t sg_record_code_bytes(const struct sg_record *record) {
    return record->group_count * SG_PATCH_GROUP_CODES / 8 * sg_cq_code_bits(record->bits);
}
static inline uint32_t sg_record_norm_bytes(const struct sg_record *record) { return 2 * record->group_count; }
/* Record `index` below `record_count`. */
struct sg_record sg_container_record(const struct sg_container *container, uint32_t index);

#endif
