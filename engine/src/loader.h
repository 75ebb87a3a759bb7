/* Tensors on their way from the directory into a model: what the files that walk a container share.
 *
 * The walk runs twice. The first pass applies rules 6 to 8 to every record; only then does the second look at numbers
 * (rule 9) and bind tensors. A failure sticks: the steps after it do nothing. */
#ifndef SG_LOADER_H
#define SG_LOADER_H

#include "arena.h"
#include "model.h"

struct sg_loader {
    struct sg_directory directory;
    struct sg_arena *arena; /* NULL in the first pass */
    struct sg_model *model;
    struct sg_error *error;
    int status;
    bool is_left_out; /* the present tensors belong to no layer of the rung: checked, and given no memory */
};

/* The next tensor, checked as far as the pass goes. */
struct sg_tensor sg_loader_next(struct sg_loader *loader, const struct sg_slot *slot);
struct sg_matrix sg_loader_matrix(struct sg_loader *loader, const char *name, uint32_t rows, uint32_t columns);
/* A binary16 tensor as floats: (first,), (first, second) or (first, second, third), unused sizes being 0. NULL where it
 * gets no memory. */
const float *sg_loader_floats(struct sg_loader *loader, const char *name, uint32_t first, uint32_t second,
                              uint32_t third);

/* model_load_heads.c: the manifest of heads and what follows from it, if the file has one here. */
void sg_loader_heads(struct sg_loader *loader);

#endif
