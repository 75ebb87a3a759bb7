/* The container's outline, for the patch maker: header size by tag, directory, blobs.
 *
 * Owns: the checks that let the maker use the file's own offsets. Knows nothing of: what a tensor is for.
 * Source: docs/formats/cact.md. */
#include "patch_container.h"

#include "cursor.h"
#include "patch_format.h"

enum { DTYPE_CQ = 3 };

static size_t header_bytes_of_tag(uint32_t tag) {
    return tag == 0x05E12A82u ? 20 : tag == 0x05E12A83u ? 120 : tag == 0x05E12A84u ? 196 : 0;
}

struct sg_record sg_container_record(const struct sg_container *container, uint32_t index) {
    const uint8_t *at = container->file + container->directory_offset + (size_t)SG_RECORD_BYTES * index;
    struct sg_record record = {.offset = sg_load_u64(at + 20), .byte_count = sg_load_u64(at + 28), .dtype = at[0]};
    const uint32_t row_count = sg_load_u32(at + 4), column_count = sg_load_u32(at + 8), bits = sg_load_u32(at + 40);
    const uint32_t group_count = column_count / SG_PATCH_GROUP_CODES + (column_count % SG_PATCH_GROUP_CODES != 0);
    const uint64_t row_bytes = (uint64_t)group_count * (SG_PATCH_GROUP_CODES / 8 * sg_cq_code_bits(bits) + 2);
    if (record.dtype == DTYPE_CQ && sg_load_u32(at + 36) == SG_PATCH_GROUP_CODES && sg_cq_code_bits(bits) &&
        group_count && row_count && group_count <= SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES &&
        record.byte_count / row_count == row_bytes && record.byte_count % row_count == 0) {
        record.bits = bits;
        record.row_count = row_count;
        record.group_count = group_count;
        record.column_count = column_count;
    }
    return record;
}

int sg_container_open(struct sg_container *container, const uint8_t *file, size_t file_bytes, struct sg_error *error) {
    if (file_bytes < 20)
        return sg_fail(error, SG_STATUS_CACT_TRUNCATED, "header", 0, file_bytes, 20);
    const uint32_t tag = sg_load_u32(file), record_count = sg_load_u32(file + 4), level_count = sg_load_u32(file + 8);
    if (!header_bytes_of_tag(tag))
        return sg_fail(error, SG_STATUS_CACT_BAD_TAG, "header.tag", 0, tag, 0x05E12A84u);
    if (record_count > SG_RECORDS_MAX)
        return sg_fail(error, SG_STATUS_CACT_BAD_HEADER, "header.num_tensors", 4, record_count, SG_RECORDS_MAX);
    if (level_count > 1024)
        return sg_fail(error, SG_STATUS_CACT_BAD_HEADER, "header.codebook_len", 8, level_count, 1024);
    *container = (struct sg_container){file, file_bytes, tag, record_count, 0};
    container->directory_offset = header_bytes_of_tag(tag) + (size_t)4 * level_count;
    uint64_t end = container->directory_offset + (uint64_t)SG_RECORD_BYTES * record_count;
    if (end > file_bytes)
        return sg_fail(error, SG_STATUS_CACT_TRUNCATED, "directory", file_bytes, file_bytes, end);
    for (uint32_t i = 0; i < record_count; i++) {
        const struct sg_record record = sg_container_record(container, i);
        const uint64_t at = container->directory_offset + (uint64_t)SG_RECORD_BYTES * i;
        if (record.offset < end || record.offset > file_bytes)
            return sg_fail(error, SG_STATUS_CACT_BAD_OFFSET, "record.offset", at + 20, record.offset, end);
        if (record.byte_count > file_bytes - record.offset)
            return sg_fail(error, SG_STATUS_CACT_TRUNCATED, "record.nbytes", at + 28, record.byte_count,
                           file_bytes - record.offset);
        end = record.offset + record.byte_count;
    }
    return SG_STATUS_OK;
}
