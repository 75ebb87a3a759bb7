/* libFuzzer's entry; TARGET is one of targets.h. */
#include "targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t byte_count);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t byte_count) {
    TARGET(data, byte_count);
    return 0;
}
