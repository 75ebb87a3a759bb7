/* The one place that fills `struct sg_error`. */
#include "error.h"

int sg_fail(struct sg_error *error, enum sg_status status, const char *field, uint64_t offset, uint64_t found,
            uint64_t allowed) {
    if (error) {
        error->status = (uint32_t)status;
        error->field = field;
        error->offset = offset;
        error->found = found;
        error->allowed = allowed;
    }
    return (int)status;
}
