/* Walks a container in canonical order. */
#ifndef SG_MODEL_LOAD_H
#define SG_MODEL_LOAD_H

#include "arena.h"
#include "model.h"

/* Checks the file whole (rules 1 to 10 of docs/formats/cact.md) and fills `model` with rung `depth` of it (0: all layers), in
 * pieces of `arena`; over an arena that only measures, `model` is filled as far as it needs no memory. */
int sg_model_load(const uint8_t *file, size_t file_bytes, uint32_t depth, struct sg_model *model,
                  struct sg_arena *arena, struct sg_error *error);

#endif
