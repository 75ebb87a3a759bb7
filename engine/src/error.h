/* How the engine's own files report a failure. */
#ifndef SG_ERROR_H
#define SG_ERROR_H

#include "saguaro.h"

/* Fills `*error` (which may be NULL) and returns `status`, so that a check reads `return sg_fail(...)`. */
int sg_fail(struct sg_error *error, enum sg_status status, const char *field, uint64_t offset, uint64_t found,
            uint64_t allowed);

#endif
