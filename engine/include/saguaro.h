/* The engine's public interface: SHA-256, streaming rebuild, patch maker, tokenizer, model, session.
 *
 * Owns: every call that a host (Python through wasmtime, JavaScript in a worker, a native test) may make.
 * Knows nothing of: files, clocks, the network, the page, prompts.
 *
 * Rules
 *  - No mutable static state. All state lies in blocks that the caller provides; each block's size is told by a
 *    `*_size` or `*_measure` call before it is taken. In WebAssembly a host takes blocks with `sg_reserve`.
 *  - Blocks are 16-byte aligned. The engine never frees and never moves; pointers that it was given at `open` must
 *    stay valid for as long as the object is used (the model runs on the container's bytes in place).
 *  - Each fallible call returns an `enum sg_status`; on failure it fills `*error` and leaves its object either as it
 *    was or, for a rebuild, dead. Nothing is printed, nothing aborts.
 *  - Same inputs, same bits: fixed summation order, own `exp`, no fused or relaxed operation. Prefill in blocks of any
 *    size gives the same bits as one token at a time.
 */
#ifndef SAGUARO_H
#define SAGUARO_H

#include <stddef.h>
#include <stdint.h>

#include "sg_status.h"

#define SG_ABI_VERSION 2u

/* Why a call failed. `field` is a constant ASCII name such as "header.d_model" (never NULL on failure; of a grammar's
 * schema it is a path that lies in the grammar's memory). `offset` is a byte offset in the input at fault, `found` and
 * `allowed` are the value and the bound that it broke (0 if none). */
struct sg_error {
    uint32_t status;
    const char *field;
    uint64_t offset;
    uint64_t found;
    uint64_t allowed;
};

/* ---- SHA-256 (FIPS 180-4) ---- */
struct sg_sha256 {
    uint32_t state[8];
    uint64_t byte_count;
    uint8_t block[64];
};
void sg_sha256_init(struct sg_sha256 *hash);
void sg_sha256_update(struct sg_sha256 *hash, const uint8_t *data, size_t byte_count);
void sg_sha256_final(struct sg_sha256 *hash, uint8_t digest[32]);

/* ---- Rebuild: base bytes + patch bytes, both as they arrive, into one target buffer (docs/formats/patch.md) ---- */
struct sg_rebuild_io {
    const uint8_t *base;   /* next base bytes in file order; may be NULL when base_count is 0 */
    size_t base_count;
    size_t base_used;      /* out */
    const uint8_t *patch;  /* next patch bytes in file order */
    size_t patch_count;
    size_t patch_used;     /* out */
};
struct sg_rebuild_expect { /* from the manifest; the patch's own header must say the same */
    uint8_t base_sha256[32];
    uint8_t target_sha256[32];
    uint64_t base_bytes;
    uint64_t target_bytes;
};
struct sg_rebuild;
size_t sg_rebuild_size(void);
/* `target` holds `expect->target_bytes` bytes. */
int sg_rebuild_begin(struct sg_rebuild *rebuild, const struct sg_rebuild_expect *expect, uint8_t *target,
                     struct sg_error *error);
/* Works until it runs out of one input: NEED_BASE, NEED_PATCH, DONE (all written, hash proved) or an error (dead). */
int sg_rebuild_step(struct sg_rebuild *rebuild, struct sg_rebuild_io *io, struct sg_error *error);
/* No more input will come: DONE, or what is missing (PATCH_TRUNCATED; PATCH_WRONG_BASE if it is base bytes). */
int sg_rebuild_finish(const struct sg_rebuild *rebuild, struct sg_error *error);
/* Bytes of the target that are final so far, for progress. */
uint64_t sg_rebuild_written(const struct sg_rebuild *rebuild);

/* ---- Patch maker: two whole containers in, one part of the target (a tensor, a gap, a run of records) a step ---- */
struct sg_patch_options {
    uint32_t effort;       /* 0: no guided coding (quick); 1 to 9: how hard the low-rank shift is looked for */
    uint32_t adapter_seed; /* the seed that the LoRA adapter started from, if it is upstream's; 0 is upstream's default */
    const uint8_t *shifts; /* what sg_requantise wrote for tensors of the target, each with its offset; may be NULL */
    size_t shift_bytes;
};
struct sg_patch_maker;
size_t sg_patch_maker_size(size_t base_bytes, size_t target_bytes);
size_t sg_patch_bound(size_t base_bytes, size_t target_bytes);
/* Same inputs, same bytes; any two containers will do. `out_capacity` is at least the bound, which is the target's size
 * and a small frame. Both containers, the options' shifts and `out` must stay until the patch is made. */
int sg_patch_begin(struct sg_patch_maker *maker, size_t maker_bytes, const struct sg_patch_options *options,
                   const uint8_t *base, size_t base_bytes, const uint8_t *target, size_t target_bytes, uint8_t *out,
                   size_t out_capacity, struct sg_error *error);
/* Goes on by one part: OK while there is more to do, then DONE: the patch is whole. BAD_STATE after that. */
int sg_patch_step(struct sg_patch_maker *maker, struct sg_error *error);
/* Bytes of the target that the patch accounts for so far, for progress. */
uint64_t sg_patch_done(const struct sg_patch_maker *maker);
/* Bytes in `out`: the patch's size once it is whole. */
size_t sg_patch_bytes(const struct sg_patch_maker *maker);

/* ---- Requantising: opt-in; other codes than the nearest, so that the patch gets small (docs/budget.md) ---- */
#define SG_CODEBOOK_LEVELS 28u
struct sg_requantise_input { /* one CQ tensor */
    const uint8_t *base;      /* the base's blob: packed codes, then norms */
    const uint8_t *codebooks; /* the container's SG_CODEBOOK_LEVELS levels */
    const float *p, *q;       /* the wanted change of the rotated weights: (rows, rank) times (rank, codes per row) */
    const float *weights;     /* the wanted rotated weights; NULL: zero residual, the codes that the change predicts */
    uint32_t row_count, group_count, bits;
    uint32_t width;           /* columns before padding */
    uint32_t rank;
    float step;               /* rounding of P and Q, as an error of the boosted change in norms of a group */
    float lambda;             /* with `weights`: what a bit costs, in variances of a weight */
    uint32_t is_trial;        /* zero residual: only the patch's size matters, the boost may be rough */
};
struct sg_requantised {
    double wanted_square, product, error_square; /* |wanted|^2, realised times wanted, |realised - wanted|^2 */
    float push;               /* with `weights`: how many changes more each code is aimed at */
    uint32_t shift_bytes;     /* 0: nothing of the change is left, the blob is the base's */
    uint32_t rank, boost;     /* boost: zero residual, in 1/256 */
    uint32_t noise, table_width; /* of the table that the codes were chosen for */
};
struct sg_requantiser;
size_t sg_requantise_size(void);
void sg_requantise_begin(struct sg_requantiser *state, uint32_t adapter_seed);
size_t sg_requantise_shift_bound(uint32_t row_count, uint32_t group_count);
/* Fills `target` (as large as the base's blob) and `shift`, whose second word is for the tensor's offset in the target.
 * Tensors come in file order: a seeded adapter is found from one to the next. */
int sg_requantise(struct sg_requantiser *state, const struct sg_requantise_input *input, uint8_t *target, uint8_t *shift,
                  struct sg_requantised *result, struct sg_error *error);

/* ---- Model: a validated view of a container's bytes ---- */
struct sg_model;
struct sg_model_info {
    uint32_t tag;
    uint32_t vocab_count;      /* rows of the embedding */
    uint32_t logit_count;      /* logits per position */
    uint32_t piece_count;      /* tokenizer pieces; ids >= this have no text */
    uint32_t layer_count;
    uint32_t d_model;
    uint32_t max_seq_len;
    uint32_t pad_id, eos_id, bos_id, unk_id;
    uint32_t im_start_id, im_end_id;          /* UINT32_MAX where the tokenizer has no such piece */
    uint32_t think_open_id, think_close_id;
    uint32_t tool_call_open_id, tool_call_close_id;
    uint32_t heads; /* bit h is set where the file has head h (enum sg_head_code) */
};
/* Checks the whole file (docs/formats/cact.md); `*model_bytes` is what `sg_model_open` needs. Only `open`, which has memory
 * for it, finds two tokenizer pieces with the same text. */
int sg_model_measure(const uint8_t *file, size_t file_bytes, size_t *model_bytes, struct sg_error *error);
int sg_model_open(const uint8_t *file, size_t file_bytes, void *memory, size_t memory_bytes,
                  struct sg_model **model, struct sg_error *error);
/* The same for the first `depth` layers of the ladder (0: all layers), as if the file held no others: generation 3 from 2
 * layers on, else BAD_DEPTH. What the rung leaves out is checked all the same. */
int sg_model_measure_rung(const uint8_t *file, size_t file_bytes, uint32_t depth, size_t *model_bytes,
                          struct sg_error *error);
int sg_model_open_rung(const uint8_t *file, size_t file_bytes, uint32_t depth, void *memory, size_t memory_bytes,
                       struct sg_model **model, struct sg_error *error);
void sg_model_describe(const struct sg_model *model, struct sg_model_info *info);

/* ---- Tokenizer (SentencePiece BPE with byte fallback; BOS is the caller's) ---- */
size_t sg_encode_scratch_size(size_t text_bytes);
/* At most 3 * text_bytes + 3 ids come out: a space is three bytes where the vocabulary has no piece for it. */
int sg_encode(const struct sg_model *model, const uint8_t *text, size_t text_bytes, uint32_t *ids,
              size_t id_capacity, size_t *id_count, void *scratch, size_t scratch_bytes, struct sg_error *error);
/* Streaming decode: holds back the tail of an incomplete UTF-8 sequence; bytes that can never become valid turn into
 * U+FFFD, one per maximal bad subsequence (as Python's `replace`). `out` needs at most SG_DETOKENIZE_BYTES_MAX bytes; with
 * fewer, BUFFER_TOO_SMALL tells what this id needs in `allowed`, and the state is unchanged. */
#define SG_DETOKENIZE_BYTES_MAX 65544u /* the longest piece, and two replacements for what was held back before it */
struct sg_detokenizer {
    uint8_t pending[4];
    uint32_t pending_count;
    uint32_t started;
};
void sg_detokenizer_init(struct sg_detokenizer *state);
int sg_detokenize(const struct sg_model *model, struct sg_detokenizer *state, uint32_t id, uint8_t *out,
                  size_t out_capacity, size_t *out_bytes, struct sg_error *error);
int sg_detokenize_flush(struct sg_detokenizer *state, uint8_t *out, size_t out_capacity, size_t *out_bytes);

/* ---- Session: one KV cache ---- */
struct sg_session;
/* How products with the weights and the cache are rounded (docs/numerics.md). */
enum sg_numerics { SG_NUMERICS_EXACT = 0, SG_NUMERICS_FAST = 1 };
/* BAD_ARGUMENT for a number that names no numerics. */
int sg_session_measure(const struct sg_model *model, uint32_t capacity_tokens, uint32_t numerics,
                       size_t *session_bytes, struct sg_error *error);
int sg_session_open(const struct sg_model *model, uint32_t capacity_tokens, uint32_t numerics, void *memory,
                    size_t memory_bytes, struct sg_session **session, struct sg_error *error);
/* The first `token_count` positions stay visible to every token that is appended from now on. Without it a generation-2
 * model forgets what lies behind its KV window; a host pins the prompt's fixed part (system text and tools) before it
 * appends it. Marks and rewinds keep it; no effect on generation 3, which forgets nothing. */
int sg_session_pin(struct sg_session *session, uint32_t token_count, struct sg_error *error);
/* Back to the state after open: the next tokens see a fresh cache. */
void sg_session_reset(struct sg_session *session);
uint32_t sg_session_position(const struct sg_session *session);
/* What keys and values take of the session's memory. */
size_t sg_session_cache_bytes(const struct sg_session *session);
/* Appends tokens; afterwards the logits are those of the last one. All or nothing: on failure the session is unchanged. */
int sg_session_append(struct sg_session *session, const uint32_t *ids, size_t id_count, struct sg_error *error);
/* (logit_count,) f32, computed when they are first asked for; valid until the next append, score, rewind or reset.
 * BAD_STATE before the first append. Each NaN, which only overflow can make, has the bits 0x7fc00000. */
int sg_session_logits(struct sg_session *session, const float **logits, struct sg_error *error);
/* Sum over the ids of log p(id | all before), natural logarithm, as if appended; the session is as before afterwards. */
int sg_session_score(struct sg_session *session, const uint32_t *ids, size_t id_count, double *log_probability,
                     struct sg_error *error);
/* One mark per session: remembers the present state; `rewind` returns to it (any number of times). A reset drops it. */
int sg_session_mark(struct sg_session *session, struct sg_error *error);
int sg_session_rewind(struct sg_session *session, struct sg_error *error);

/* ---- Probe heads: what a model makes of a whole text, read from all its layers ---- */
/* By their code in the file. Generation 2 calls its embedding `contrastive` and has no router. */
enum sg_head_code { SG_HEAD_EMBEDDING = 1, SG_HEAD_CONFIDENCE = 2, SG_HEAD_ROUTER = 3 };
/* Outputs of a head, and the memory with which a session listens for it. UNKNOWN_HEAD where the file has no such head. */
int sg_head_measure(const struct sg_model *model, uint32_t head, uint32_t *output_count, size_t *listen_bytes,
                    struct sg_error *error);
/* From now on the head takes in each token that is appended (marks, rewinds and resets included, scores not). `memory` must
 * stay for as long as the session. UNKNOWN_HEAD, OUT_OF_MEMORY, BAD_STATE once the cache holds tokens. */
int sg_session_listen(struct sg_session *session, uint32_t head, void *memory, size_t memory_bytes,
                      struct sg_error *error);
/* (output_count,) f32 for the tokens so far, valid until the session's next call: a vector of length 1 (embedding), a
 * probability (confidence), logits (router). BAD_STATE before the first token and for a head that was not listened for. */
int sg_session_head(struct sg_session *session, uint32_t head, const float **outputs, struct sg_error *error);

/* ---- Sampling from the present logits; does not append ---- */
struct sg_sampling {
    float temperature;    /* 0: greedy, ties to the lower id */
    float top_p;          /* (0, 1]; 1: off */
    uint32_t top_k;       /* 0: off */
    uint32_t reserved;
    uint64_t random_state; /* in and out; PCG32 stream, see docs/numerics.md */
};
int sg_session_sample(struct sg_session *session, struct sg_sampling *sampling, uint32_t *id,
                      struct sg_error *error);

/* ---- Grammar: one answer, held to the declared tools from `<tool_call>` to `</tool_call>` (docs/grammar.md) ---- */
struct sg_grammar;
/* `tools` is JSON, a list of {name, description, parameters}. A refusal of its contents (GRAMMAR_*) tells `offset` in it;
 * from `open` on, `field` is the path of the keyword at fault, which lies in `memory`: tool/parameters/... */
int sg_grammar_measure(const struct sg_model *model, const uint8_t *tools, size_t tools_bytes, size_t *grammar_bytes,
                       struct sg_error *error);
/* `tools` is not needed afterwards. The grammar opens at the start of an answer. */
int sg_grammar_open(const struct sg_model *model, const uint8_t *tools, size_t tools_bytes, void *memory,
                    size_t memory_bytes, struct sg_grammar **grammar, struct sg_error *error);
/* Back to the start of an answer. */
void sg_grammar_reset(struct sg_grammar *grammar);
/* Moves on by an id that the answer keeps. BAD_TOKEN, and nothing moves, if it does not fit. */
int sg_grammar_accept(struct sg_grammar *grammar, uint32_t id, struct sg_error *error);
/* The ids that may come next if the answer keeps `room_tokens` more at most: (logit_count + 31) / 32 words, lowest bit
 * first, valid until the next call. */
void sg_grammar_allowed(struct sg_grammar *grammar, uint32_t room_tokens, const uint32_t **words);
/* `sg_session_sample` among these ids; does not accept the id. BAD_STATE if there is none, which a room that shrinks by
 * one with each id never makes. */
int sg_session_sample_allowed(struct sg_session *session, struct sg_grammar *grammar, uint32_t room_tokens,
                              struct sg_sampling *sampling, uint32_t *id, struct sg_error *error);

#endif
