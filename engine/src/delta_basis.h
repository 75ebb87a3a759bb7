/* The seeded start of a LoRA adapter: a basis that a patch can name instead of carrying it.
 *
 * Owns: the generator. Knows nothing of: patches, fits.
 * `needle finetune` starts A (layers, in, rank) at normal numbers from JAX's generator with a seed that its users
 * rarely set, and training moves A by about a tenth. So the space that the shift's rows lie in is known but for a
 * small rest. Source: cactus-needle 3.2.8, needle/model/finetune.py (`init_lora`); JAX's partitionable threefry2x32
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). The normal numbers are ours, in integers: they
 * need to be near JAX's, not equal. */
#ifndef SG_DELTA_BASIS_H
#define SG_DELTA_BASIS_H

#include <stdint.h>

#define SG_BASIS_ONE 4096  /* one standard deviation */
#define SG_BASIS_GROUPS 16u /* upstream has five or ten */

/* Which matrix A: the seed, the adapter's group in upstream's order (gate, k, out, q, v), layer, input width, rank. */
struct sg_basis {
    uint32_t seed, group, layer, width, rank;
};

/* (rank, columns) of A^T, rotated as CQ rows are: by a Hadamard matrix over each 128 of `width` numbers padded with
 * zeros to `columns`. In 1/4096, within 16 bits. */
void sg_basis_fill(const struct sg_basis *basis, uint32_t columns, int16_t *rows);

#endif
