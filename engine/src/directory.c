/* The directory of a `.cact` file: rules 6 to 8 of docs/formats/cact.md. */
#include "container.h"
#include "kernels.h"

#define ALIGNMENT_BYTES 64u

/* Where each field stands in a record. */
enum { AT_DTYPE = 0, AT_NDIM = 1, AT_ZERO = 2, AT_SHAPE = 4, AT_GROUP = 36, AT_BITS = 40 };

static uint64_t aligned(uint64_t offset) {
    return (offset + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
}

int sg_directory_open(const uint8_t *file, size_t file_bytes, const struct sg_geometry *geometry,
                      struct sg_directory *directory, struct sg_error *error) {
    const uint64_t start = geometry->header_bytes + 4 * (uint64_t)geometry->codebook_count;
    const uint64_t end = start + (uint64_t)geometry->tensor_count * SG_RECORD_BYTES;
    if (file_bytes < end) return sg_fail(error, SG_STATUS_CACT_TRUNCATED, "directory", file_bytes, file_bytes, end);
    *directory = (struct sg_directory){.file = file, .file_bytes = file_bytes, .start = start, .free = end,
                                       .index = 0, .count = geometry->tensor_count};
    return SG_STATUS_OK;
}

static const uint8_t *record_at(const struct sg_directory *directory, uint32_t ahead) {
    const uint32_t index = directory->index + ahead;
    return index < directory->count ? directory->file + directory->start + (uint64_t)index * SG_RECORD_BYTES : NULL;
}

struct sg_record_fields sg_record_read(const uint8_t record[SG_RECORD_BYTES]) {
    struct sg_record_fields fields = {.dtype = record[AT_DTYPE], .ndim = record[AT_NDIM]};
    fields.zero = sg_load_u16(record + AT_ZERO);
    for (uint32_t axis = 0; axis < 4; axis++) fields.shape[axis] = sg_load_u32(record + AT_SHAPE + 4 * axis);
    fields.offset = sg_load_u64(record + SG_RECORD_AT_OFFSET);
    fields.byte_count = sg_load_u64(record + SG_RECORD_AT_NBYTES);
    fields.group = sg_load_u32(record + AT_GROUP);
    fields.bits = sg_load_u32(record + AT_BITS);
    return fields;
}

uint32_t sg_directory_kind(const struct sg_directory *directory, uint32_t ahead) {
    const uint8_t *record = record_at(directory, ahead);
    return record ? record[AT_DTYPE] : 0;
}

uint32_t sg_directory_shape(const struct sg_directory *directory, uint32_t ahead, uint32_t axis) {
    const uint8_t *record = record_at(directory, ahead);
    return record ? sg_load_u32(record + AT_SHAPE + 4 * axis) : 0;
}

/* Bytes of packed codes of a CQ tensor. Rows and columns are bounded by the header, so 64 bits hold every product. */
static uint64_t code_bytes_of(const struct sg_slot *slot, uint32_t bits) {
    const uint64_t stored_bits = bits == SG_TERNARY_BITS ? 2 : bits;
    return slot->shape[0] * (uint64_t)sg_padded(slot->shape[1]) / 8 * stored_bits;
}

static uint64_t blob_bytes_of(const struct sg_slot *slot, uint32_t bits) {
    if (slot->kind == SG_KIND_CQ) {
        return code_bytes_of(slot, bits) + slot->shape[0] * (uint64_t)(sg_padded(slot->shape[1]) / SG_GROUP) * 2;
    }
    uint64_t count = 1;
    for (uint32_t axis = 0; axis < slot->ndim; axis++) count *= slot->shape[axis];
    return count * (slot->kind == SG_KIND_FP16 ? 2 : 4);
}

/* Rule 6: dtype and coding. */
static int check_coding(const struct sg_slot *slot, const struct sg_record_fields *record, uint64_t at,
                        struct sg_error *error) {
    const uint32_t dtype = record->dtype, zero = record->zero, group = record->group, bits = record->bits;
    if (dtype != slot->kind) {
        const bool audio = slot->kind == SG_KIND_RAW && dtype == SG_KIND_FP32;
        return sg_fail(error, audio ? SG_STATUS_CACT_UNSUPPORTED : SG_STATUS_CACT_BAD_RECORD, slot->name,
                       at + AT_DTYPE, dtype, slot->kind);
    }
    if (zero) return sg_fail(error, SG_STATUS_CACT_BAD_RECORD, slot->name, at + AT_ZERO, zero, 0);
    if (slot->kind != SG_KIND_CQ) {
        if (group) return sg_fail(error, SG_STATUS_CACT_BAD_RECORD, slot->name, at + AT_GROUP, group, 0);
        if (bits) return sg_fail(error, SG_STATUS_CACT_BAD_RECORD, slot->name, at + AT_BITS, bits, 0);
        return SG_STATUS_OK;
    }
    if (bits < 1 || bits > SG_TERNARY_BITS) {
        return sg_fail(error, SG_STATUS_CACT_BAD_RECORD, slot->name, at + AT_BITS, bits, SG_TERNARY_BITS);
    }
    if (group != SG_GROUP) {
        return sg_fail(error, SG_STATUS_CACT_UNSUPPORTED, slot->name, at + AT_GROUP, group, SG_GROUP);
    }
    return SG_STATUS_OK;
}

/* Rule 7: the shape. */
static int check_shape(const struct sg_slot *slot, const struct sg_record_fields *record, uint64_t at,
                       struct sg_error *error) {
    if (record->ndim != slot->ndim) {
        return sg_fail(error, SG_STATUS_CACT_BAD_SHAPE, slot->name, at + AT_NDIM, record->ndim, slot->ndim);
    }
    for (uint32_t axis = 0; axis < 4; axis++) {
        const uint32_t found = record->shape[axis];
        if (found != slot->shape[axis]) {
            return sg_fail(error, SG_STATUS_CACT_BAD_SHAPE, slot->name, at + AT_SHAPE + 4 * axis, found,
                           slot->shape[axis]);
        }
    }
    return SG_STATUS_OK;
}

/* Rule 8: size, place, gap. */
static int check_place(const struct sg_directory *directory, const struct sg_slot *slot,
                       const struct sg_record_fields *record, uint64_t at, struct sg_error *error) {
    const uint64_t offset = record->offset, byte_count = record->byte_count;
    const uint64_t exact = blob_bytes_of(slot, record->bits);
    if (slot->kind != SG_KIND_RAW && byte_count != exact) {
        return sg_fail(error, SG_STATUS_CACT_BAD_OFFSET, slot->name, at + SG_RECORD_AT_NBYTES, byte_count, exact);
    }
    const uint64_t due = aligned(directory->free);
    if (offset != due) {
        return sg_fail(error, SG_STATUS_CACT_BAD_OFFSET, slot->name, at + SG_RECORD_AT_OFFSET, offset, due);
    }
    if (due > directory->file_bytes || byte_count > directory->file_bytes - due) {
        return sg_fail(error, SG_STATUS_CACT_TRUNCATED, slot->name, directory->file_bytes, directory->file_bytes,
                       due + byte_count);
    }
    for (uint64_t i = directory->free; i < due; i++) {
        if (directory->file[i]) {
            return sg_fail(error, SG_STATUS_CACT_BAD_PADDING, slot->name, i, directory->file[i], 0);
        }
    }
    return SG_STATUS_OK;
}

int sg_directory_next(struct sg_directory *directory, const struct sg_slot *slot, struct sg_tensor *tensor,
                      struct sg_error *error) {
    const uint8_t *bytes = record_at(directory, 0);
    if (!bytes) {
        return sg_fail(error, SG_STATUS_CACT_BAD_HEADER, "header.tensor_count", 4, directory->count,
                       (uint64_t)directory->count + 1);
    }
    const struct sg_record_fields record = sg_record_read(bytes);
    const uint64_t at = (uint64_t)(bytes - directory->file);
    int status = check_coding(slot, &record, at, error);
    if (status == SG_STATUS_OK) status = check_shape(slot, &record, at, error);
    if (status == SG_STATUS_OK) status = check_place(directory, slot, &record, at, error);
    if (status != SG_STATUS_OK) return status;
    tensor->offset = record.offset;
    tensor->bytes = directory->file + tensor->offset;
    tensor->byte_count = record.byte_count;
    tensor->bits = record.bits;
    tensor->code_bytes = slot->kind == SG_KIND_CQ ? code_bytes_of(slot, tensor->bits) : 0;
    directory->free = tensor->offset + tensor->byte_count;
    directory->index++;
    return SG_STATUS_OK;
}

int sg_directory_close(const struct sg_directory *directory, struct sg_error *error) {
    if (directory->index != directory->count) {
        return sg_fail(error, SG_STATUS_CACT_BAD_HEADER, "header.tensor_count", 4, directory->count,
                       directory->index);
    }
    if (directory->free != directory->file_bytes) {
        return sg_fail(error, SG_STATUS_CACT_TRAILING_BYTES, "file", directory->free, directory->file_bytes,
                       directory->free);
    }
    return SG_STATUS_OK;
}
