/* The container's outline, for the patch maker: where header, directory and blobs lie, whatever model they hold.
 *
 * Owns: the checks that let the maker use the file's own offsets. Knows nothing of: what a tensor is for, how a header or a
 * record is laid out (container.h). */
#include "patch_container.h"

#include "patch_format.h"

#define CODEBOOK_LEVELS_MAX 1024u

struct sg_record sg_container_record(const struct sg_container *container, uint32_t index) {
    const struct sg_record_fields fields =
        sg_record_read(container->file + container->directory_offset + (size_t)SG_RECORD_BYTES * index);
    struct sg_record record = {.offset = fields.offset, .byte_count = fields.byte_count, .dtype = fields.dtype};
    const uint32_t row_count = fields.shape[0], column_count = fields.shape[1], bits = fields.bits;
    const uint32_t group_count = column_count / SG_PATCH_GROUP_CODES + (column_count % SG_PATCH_GROUP_CODES != 0);
    const uint64_t row_bytes = (uint64_t)group_count * (SG_PATCH_GROUP_CODES / 8 * sg_cq_code_bits(bits) + 2);
    if (record.dtype == SG_KIND_CQ && fields.group == SG_PATCH_GROUP_CODES && sg_cq_code_bits(bits) &&
        group_count && row_count && group_count <= SG_PATCH_ROW_CODES_MAX / SG_PATCH_GROUP_CODES &&
        record.byte_count / row_count == row_bytes && record.byte_count % row_count == 0) {
        record.bits = bits;
        record.row_count = row_count;
        record.group_count = group_count;
        record.column_count = column_count;
    }
    return record;
}

static int check_places(const struct sg_container *container, struct sg_error *error) {
    uint64_t end = container->directory_offset + (uint64_t)SG_RECORD_BYTES * container->record_count;
    for (uint32_t i = 0; i < container->record_count; i++) {
        const struct sg_record record = sg_container_record(container, i);
        const uint64_t at = container->directory_offset + (uint64_t)SG_RECORD_BYTES * i;
        if (record.offset < end || record.offset > container->file_bytes)
            return sg_fail(error, SG_STATUS_CACT_BAD_OFFSET, "record.offset", at + SG_RECORD_AT_OFFSET, record.offset, end);
        const uint64_t left = container->file_bytes - record.offset;
        if (record.byte_count > left)
            return sg_fail(error, SG_STATUS_CACT_TRUNCATED, "record.nbytes", at + SG_RECORD_AT_NBYTES, record.byte_count, left);
        end = record.offset + record.byte_count;
    }
    return SG_STATUS_OK;
}

int sg_container_open(struct sg_container *container, const uint8_t *file, size_t file_bytes, struct sg_error *error) {
    struct sg_geometry outline;
    struct sg_directory directory;
    int status = sg_header_outline(file, file_bytes, &outline, error);
    if (status != SG_STATUS_OK)
        return status;
    if (outline.tensor_count > SG_RECORDS_MAX)
        return sg_fail(error, SG_STATUS_CACT_BAD_HEADER, "header.tensor_count", 4, outline.tensor_count, SG_RECORDS_MAX);
    if (outline.codebook_count > CODEBOOK_LEVELS_MAX)
        return sg_fail(error, SG_STATUS_CACT_BAD_HEADER, "header.codebook_count", 8, outline.codebook_count,
                       CODEBOOK_LEVELS_MAX);
    status = sg_directory_open(file, file_bytes, &outline, &directory, error);
    if (status != SG_STATUS_OK)
        return status;
    *container = (struct sg_container){file, file_bytes, outline.tag, directory.count, (size_t)directory.start};
    return check_places(container, error);
}
