/* The numbers inside tensors: rule 9 of docs/formats/cact.md. */
#include "container.h"

static int bad_value(struct sg_error *error, const struct sg_slot *slot, uint64_t offset, uint64_t found) {
    return sg_fail(error, SG_STATUS_CACT_BAD_VALUE, slot->name, offset, found, 0);
}

/* Every binary16 number in the blob from `start` on is finite. */
static int check_finite(const struct sg_slot *slot, const struct sg_tensor *tensor, uint64_t start,
                        struct sg_error *error) {
    for (uint64_t i = start; i < tensor->byte_count; i += 2) {
        const uint16_t half = sg_load_u16(tensor->bytes + i);
        if ((half & 0x7c00) == 0x7c00) return bad_value(error, slot, tensor->offset + i, half);
    }
    return SG_STATUS_OK;
}

/* A crumb is 2 where its high bit is set and its low bit is not. */
static int check_crumbs(const struct sg_slot *slot, const struct sg_tensor *tensor, struct sg_error *error) {
    for (uint64_t i = 0; i < tensor->code_bytes; i++) {
        const uint32_t four = tensor->bytes[i];
        if (four & 0xaa & ~(four << 1)) return bad_value(error, slot, tensor->offset + i, four);
    }
    return SG_STATUS_OK;
}

/* Each integer below `count` stands there once. Without memory for marks, 64 integers are looked for at a time. */
static int check_permutation(const struct sg_slot *slot, const struct sg_tensor *tensor, struct sg_error *error) {
    const uint32_t count = slot->shape[0];
    for (uint32_t first = 0; first < count; first += 64) {
        uint64_t seen = 0;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t bits = sg_load_u32(tensor->bytes + 4 * (uint64_t)i);
            const float value = sg_float_of_bits(bits);
            if (!(value >= 0 && value < (float)count) || (float)(uint32_t)value != value) {
                return bad_value(error, slot, tensor->offset + 4 * (uint64_t)i, bits);
            }
            const uint32_t integer = (uint32_t)value;
            if (integer < first || integer - first >= 64) continue;
            if (seen >> (integer - first) & 1) return bad_value(error, slot, tensor->offset + 4 * (uint64_t)i, bits);
            seen |= (uint64_t)1 << (integer - first);
        }
    }
    return SG_STATUS_OK; /* `count` different integers below `count` are all of them */
}

int sg_values_check(const struct sg_slot *slot, const struct sg_tensor *tensor, struct sg_error *error) {
    switch (slot->kind) {
    case SG_KIND_FP16: return check_finite(slot, tensor, 0, error);
    case SG_KIND_FP32: return check_permutation(slot, tensor, error);
    case SG_KIND_CQ: {
        const int status = tensor->bits == SG_TERNARY_BITS ? check_crumbs(slot, tensor, error) : SG_STATUS_OK;
        return status == SG_STATUS_OK ? check_finite(slot, tensor, tensor->code_bytes, error) : status;
    }
    case SG_KIND_RAW: break; /* tokenizer_load.c reads it */
    }
    return SG_STATUS_OK;
}
