/* Probe heads out of a container: the manifest decides what follows it. */
#include "loader.h"

#define HEAD_DIMENSION_MAX 4096u
#define ROUTER_OUTPUT_COUNT 3u
#define CALIBRATION_COUNT 3u

/* A size that the record itself decides, held within its limit; a size beyond it then fails the shape rule. */
static uint32_t free_size(uint32_t size) {
    return size < 1 ? 1 : size > HEAD_DIMENSION_MAX ? HEAD_DIMENSION_MAX : size;
}

/* A CQ matrix as floats: heads are small, and read cells that nothing else reads. */
static const float *matrix_as_floats(struct sg_loader *loader, const char *name, uint32_t rows, uint32_t columns) {
    const struct sg_matrix matrix = sg_loader_matrix(loader, name, rows, columns);
    if (loader->status != SG_STATUS_OK || !loader->arena) return NULL;
    const uint64_t count = (uint64_t)rows * columns; /* the rotation's buffer lies behind them */
    float *values = sg_arena_take(loader->arena, count + sg_padded(columns), sizeof *values);
    for (uint32_t r = 0; values && r < rows; r++) {
        sg_matrix_row(&matrix, r, values + count, values + (size_t)r * columns);
    }
    return values;
}

/* A matrix of a generation-3 head: CQ, or binary16 as in the first archives. */
static const float *head_matrix(struct sg_loader *loader, const char *name, bool packed, uint32_t rows,
                                uint32_t columns) {
    return packed ? matrix_as_floats(loader, name, rows, columns)
                  : sg_loader_floats(loader, name, rows, columns, 0);
}

static struct sg_head load_head_2(struct sg_loader *loader, uint32_t code) {
    const uint32_t d = loader->model->geometry.d_model;
    struct sg_head head = {0};
    head.probe_count = free_size(sg_directory_shape(&loader->directory, 0, 0));
    head.output_count = code == SG_HEAD_CONFIDENCE ? 1 : free_size(sg_directory_shape(&loader->directory, 1, 0));
    head.probes = sg_loader_floats(loader, "heads.probes", head.probe_count, d, 0);
    head.proj = sg_loader_floats(loader, "heads.proj", head.output_count, head.probe_count * d, 0);
    head.bias = sg_loader_floats(loader, "heads.bias", head.output_count, 0, 0);
    return head;
}

static struct sg_head load_head_3(struct sg_loader *loader, uint32_t code) {
    const struct sg_directory *directory = &loader->directory;
    const uint32_t d = loader->model->geometry.d_model, rows = loader->model->geometry.layer_count + 1;
    const bool packed = sg_directory_kind(directory, 0) == SG_KIND_CQ;
    const uint32_t probes = packed ? sg_directory_shape(directory, 0, 0) / rows : sg_directory_shape(directory, 0, 1);
    struct sg_head head = {.probe_count = free_size(probes)};
    head.query_count = free_size(sg_directory_shape(directory, 2, 0));
    head.output_count = code == SG_HEAD_CONFIDENCE ? 1
                        : code == SG_HEAD_ROUTER   ? ROUTER_OUTPUT_COUNT
                                                   : free_size(sg_directory_shape(directory, 4, 0));
    head.probes = packed ? matrix_as_floats(loader, "heads.probes", rows * head.probe_count, d)
                         : sg_loader_floats(loader, "heads.probes", rows, head.probe_count, d);
    head.gain = sg_loader_floats(loader, "heads.gain", rows, head.probe_count, 0);
    head.query = head_matrix(loader, "heads.query", packed, head.query_count, d);
    head.row_bias = sg_loader_floats(loader, "heads.row_bias", head.query_count, rows, head.probe_count);
    head.proj = head_matrix(loader, "heads.proj", packed, head.output_count, head.query_count * d);
    head.bias = sg_loader_floats(loader, "heads.bias", head.output_count, 0, 0);
    if (code == SG_HEAD_ROUTER) sg_loader_floats(loader, "heads.calibration", CALIBRATION_COUNT, 0, 0);
    return head;
}

/* The manifest's numbers, checked at once: known codes, strictly ascending. Returns how many. */
static uint32_t read_manifest(struct sg_loader *loader, uint32_t codes[SG_HEAD_ROUTER]) {
    const uint32_t known = loader->model->geometry.generation == 2 ? SG_HEAD_CONFIDENCE : SG_HEAD_ROUTER;
    uint32_t count = sg_directory_shape(&loader->directory, 0, 0);
    count = count < 1 ? 1 : count > known ? known : count;
    const struct sg_slot slot = {"heads.manifest", SG_KIND_FP16, 1, {count}};
    const struct sg_tensor manifest = sg_loader_next(loader, &slot);
    for (uint32_t i = 0; i < count && loader->status == SG_STATUS_OK; i++) {
        const uint16_t half = sg_load_u16(manifest.bytes + 2 * i);
        const float code = sg_float_of_half(half);
        codes[i] = 0;
        for (uint32_t candidate = 1; candidate <= known; candidate++) {
            if (code == (float)candidate) codes[i] = candidate;
        }
        if (codes[i] == 0 || (i > 0 && codes[i] <= codes[i - 1])) {
            loader->status = sg_fail(loader->error, SG_STATUS_CACT_BAD_VALUE, slot.name, manifest.offset, half, known);
        }
    }
    return count;
}

void sg_loader_heads(struct sg_loader *loader) {
    const uint32_t kind = sg_directory_kind(&loader->directory, 0);
    if (loader->status != SG_STATUS_OK || (kind != SG_KIND_FP16 && kind != SG_KIND_CQ)) return;
    uint32_t codes[SG_HEAD_ROUTER];
    const uint32_t count = read_manifest(loader, codes);
    for (uint32_t i = 0; i < count && loader->status == SG_STATUS_OK; i++) {
        loader->model->heads[codes[i]] = (loader->model->geometry.generation == 2 ? load_head_2 : load_head_3)(loader, codes[i]);
    }
}
