/* One block of memory, cut into pieces; or, without a block, only the sum of their sizes.
 *
 * Owns: the promise that memory is measured before it is taken: the same code runs twice, first over an arena whose
 * `base` is NULL, then over the caller's block. */
#ifndef SG_ARENA_H
#define SG_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SG_ARENA_ALIGNMENT 16u

struct sg_arena {
    uint8_t *base; /* NULL: measure only */
    uint64_t capacity;
    uint64_t used; /* may pass `capacity`; the caller looks once, with sg_arena_fits */
};

/* `count` elements of `size` bytes, zeroed; NULL when measuring or out of room. Count times size fits 64 bits for all
 * that a checked header can ask for. */
static inline void *sg_arena_take(struct sg_arena *arena, uint64_t count, uint64_t size) {
    const uint64_t start = arena->used;
    arena->used += (count * size + SG_ARENA_ALIGNMENT - 1) / SG_ARENA_ALIGNMENT * SG_ARENA_ALIGNMENT;
    if (!arena->base || arena->used > arena->capacity) return NULL;
    memset(arena->base + start, 0, (size_t)(arena->used - start));
    return arena->base + start;
}

static inline int sg_arena_fits(const struct sg_arena *arena) {
    return arena->used <= (arena->base ? arena->capacity : (uint64_t)SIZE_MAX);
}

#endif
