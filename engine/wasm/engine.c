/* What `engine.wasm` exports: everything that browsers run, under the names of saguaro.h.
 *
 * Knows nothing of: how anything works. docs/engine.md has the table for hosts. */
#include "export.h"

/* SHA-256 */
SG_WRAP_VOID(sha256_init, (struct sg_sha256 *hash), (hash))
SG_WRAP_VOID(sha256_update, (struct sg_sha256 *hash, const uint8_t *data, size_t byte_count),
             (hash, data, byte_count))
SG_WRAP_VOID(sha256_final, (struct sg_sha256 *hash, uint8_t digest[32]), (hash, digest))

/* Rebuild */
SG_WRAP(size_t, rebuild_size, (void), ())
SG_WRAP(int, rebuild_begin,
        (struct sg_rebuild *rebuild, const struct sg_rebuild_expect *expect, uint8_t *target, struct sg_error *error),
        (rebuild, expect, target, error))
SG_WRAP(int, rebuild_step, (struct sg_rebuild *rebuild, struct sg_rebuild_io *io, struct sg_error *error),
        (rebuild, io, error))
SG_WRAP(int, rebuild_finish, (const struct sg_rebuild *rebuild, struct sg_error *error), (rebuild, error))
SG_WRAP(uint64_t, rebuild_written, (const struct sg_rebuild *rebuild), (rebuild))

/* Model */
SG_WRAP(int, model_measure,
        (const uint8_t *file, size_t file_bytes, size_t *model_bytes, struct sg_error *error),
        (file, file_bytes, model_bytes, error))
SG_WRAP(int, model_open,
        (const uint8_t *file, size_t file_bytes, void *memory, size_t memory_bytes, struct sg_model **model,
         struct sg_error *error),
        (file, file_bytes, memory, memory_bytes, model, error))
SG_WRAP(int, model_measure_rung,
        (const uint8_t *file, size_t file_bytes, uint32_t depth, size_t *model_bytes, struct sg_error *error),
        (file, file_bytes, depth, model_bytes, error))
SG_WRAP(int, model_open_rung,
        (const uint8_t *file, size_t file_bytes, uint32_t depth, void *memory, size_t memory_bytes,
         struct sg_model **model, struct sg_error *error),
        (file, file_bytes, depth, memory, memory_bytes, model, error))
SG_WRAP_VOID(model_describe, (const struct sg_model *model, struct sg_model_info *info), (model, info))

/* Tokenizer */
SG_WRAP(size_t, encode_scratch_size, (size_t text_bytes), (text_bytes))
SG_WRAP(int, encode,
        (const struct sg_model *model, const uint8_t *text, size_t text_bytes, uint32_t *ids, size_t id_capacity,
         size_t *id_count, void *scratch, size_t scratch_bytes, struct sg_error *error),
        (model, text, text_bytes, ids, id_capacity, id_count, scratch, scratch_bytes, error))
SG_WRAP_VOID(detokenizer_init, (struct sg_detokenizer *state), (state))
SG_WRAP(int, detokenize,
        (const struct sg_model *model, struct sg_detokenizer *state, uint32_t id, uint8_t *out, size_t out_capacity,
         size_t *out_bytes, struct sg_error *error),
        (model, state, id, out, out_capacity, out_bytes, error))
SG_WRAP(int, detokenize_flush,
        (struct sg_detokenizer *state, uint8_t *out, size_t out_capacity, size_t *out_bytes),
        (state, out, out_capacity, out_bytes))

/* Session */
SG_WRAP(int, session_measure,
        (const struct sg_model *model, uint32_t capacity_tokens, uint32_t numerics, size_t *session_bytes,
         struct sg_error *error),
        (model, capacity_tokens, numerics, session_bytes, error))
SG_WRAP(int, session_open,
        (const struct sg_model *model, uint32_t capacity_tokens, uint32_t numerics, void *memory,
         size_t memory_bytes, struct sg_session **session, struct sg_error *error),
        (model, capacity_tokens, numerics, memory, memory_bytes, session, error))
SG_WRAP(size_t, session_cache_bytes, (const struct sg_session *session), (session))
SG_WRAP(int, session_pin, (struct sg_session *session, uint32_t token_count, struct sg_error *error),
        (session, token_count, error))
SG_WRAP_VOID(session_reset, (struct sg_session *session), (session))
SG_WRAP(uint32_t, session_position, (const struct sg_session *session), (session))
SG_WRAP(int, session_append,
        (struct sg_session *session, const uint32_t *ids, size_t id_count, struct sg_error *error),
        (session, ids, id_count, error))
SG_WRAP(int, session_logits, (struct sg_session *session, const float **logits, struct sg_error *error),
        (session, logits, error))
SG_WRAP(int, session_score,
        (struct sg_session *session, const uint32_t *ids, size_t id_count, double *log_probability,
         struct sg_error *error),
        (session, ids, id_count, log_probability, error))
SG_WRAP(int, session_mark, (struct sg_session *session, struct sg_error *error), (session, error))
SG_WRAP(int, session_rewind, (struct sg_session *session, struct sg_error *error), (session, error))
SG_WRAP(int, head_measure,
        (const struct sg_model *model, uint32_t head, uint32_t *output_count, size_t *listen_bytes,
         struct sg_error *error),
        (model, head, output_count, listen_bytes, error))
SG_WRAP(int, session_listen,
        (struct sg_session *session, uint32_t head, void *memory, size_t memory_bytes, struct sg_error *error),
        (session, head, memory, memory_bytes, error))
SG_WRAP(int, session_head,
        (struct sg_session *session, uint32_t head, const float **outputs, struct sg_error *error),
        (session, head, outputs, error))
SG_WRAP(int, session_sample,
        (struct sg_session *session, struct sg_sampling *sampling, uint32_t *id, struct sg_error *error),
        (session, sampling, id, error))

/* Grammar */
SG_WRAP(int, grammar_measure,
        (const struct sg_model *model, const uint8_t *tools, size_t tools_bytes, size_t *grammar_bytes,
         struct sg_error *error),
        (model, tools, tools_bytes, grammar_bytes, error))
SG_WRAP(int, grammar_open,
        (const struct sg_model *model, const uint8_t *tools, size_t tools_bytes, void *memory, size_t memory_bytes,
         struct sg_grammar **grammar, struct sg_error *error),
        (model, tools, tools_bytes, memory, memory_bytes, grammar, error))
SG_WRAP_VOID(grammar_reset, (struct sg_grammar *grammar), (grammar))
SG_WRAP(int, grammar_accept, (struct sg_grammar *grammar, uint32_t id, struct sg_error *error),
        (grammar, id, error))
SG_WRAP_VOID(grammar_allowed, (struct sg_grammar *grammar, uint32_t room_tokens, const uint32_t **words),
             (grammar, room_tokens, words))
SG_WRAP(int, session_sample_allowed,
        (struct sg_session *session, struct sg_grammar *grammar, uint32_t room_tokens,
         struct sg_sampling *sampling, uint32_t *id, struct sg_error *error),
        (session, grammar, room_tokens, sampling, id, error))
