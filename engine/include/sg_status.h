/* Status codes: every way in which a call can end. The same names, in lower case, are the error codes in
 * Python (`SaguaroError.code`) and JavaScript (`error.code`); a test compares all three.
 * Values are grouped by cause with gaps; a value, once released, keeps its meaning. */
#ifndef SG_STATUS_H
#define SG_STATUS_H

#define SG_STATUS_LIST(X)                                                                                      \
    X(OK, 0)                                                                                                   \
    /* flow of the streaming rebuild: not errors */                                                            \
    X(NEED_BASE, 1)                                                                                            \
    X(NEED_PATCH, 2)                                                                                           \
    X(DONE, 3)                                                                                                 \
    /* the caller's mistakes */                                                                                \
    X(BAD_ARGUMENT, 10)                                                                                        \
    X(OUT_OF_MEMORY, 11)                                                                                       \
    X(BUFFER_TOO_SMALL, 12)                                                                                    \
    X(BAD_DEPTH, 13)                                                                                           \
    /* container: docs/formats/cact.md */                                                                      \
    X(CACT_TRUNCATED, 100)                                                                                     \
    X(CACT_BAD_TAG, 101)                                                                                       \
    X(CACT_BAD_HEADER, 102)                                                                                    \
    X(CACT_BAD_CODEBOOK, 103)                                                                                  \
    X(CACT_BAD_RECORD, 104)                                                                                    \
    X(CACT_BAD_OFFSET, 105)                                                                                    \
    X(CACT_BAD_SHAPE, 106)                                                                                     \
    X(CACT_BAD_PADDING, 107)                                                                                   \
    X(CACT_TRAILING_BYTES, 108)                                                                                \
    X(CACT_BAD_TOKENIZER, 109)                                                                                 \
    X(CACT_BAD_VALUE, 110)                                                                                     \
    X(CACT_UNSUPPORTED, 111)                                                                                   \
    /* patch: docs/formats/patch.md */                                                                         \
    X(PATCH_TRUNCATED, 200)                                                                                    \
    X(PATCH_BAD_MAGIC, 201)                                                                                    \
    X(PATCH_BAD_VERSION, 202)                                                                                  \
    X(PATCH_WRONG_BASE, 203)                                                                                   \
    X(PATCH_WRONG_TARGET, 204)                                                                                 \
    X(PATCH_BAD_HEADER, 205)                                                                                   \
    X(PATCH_BAD_SEGMENT, 206)                                                                                  \
    X(PATCH_BAD_CODER, 207)                                                                                    \
    X(PATCH_BAD_TABLE, 208)                                                                                    \
    X(PATCH_CORRUPT, 209)                                                                                      \
    X(PATCH_TRAILING_BYTES, 210)                                                                               \
    X(PATCH_HASH_MISMATCH, 211)                                                                                \
    /* session */                                                                                              \
    X(CONTEXT_FULL, 300)                                                                                       \
    X(BAD_TOKEN, 301)                                                                                          \
    X(BAD_STATE, 302)                                                                                          \
    X(BAD_UTF8, 303)                                                                                           \
    X(UNKNOWN_HEAD, 304)                                                                                       \
    /* grammar of tool calls: docs/grammar.md */                                                               \
    X(GRAMMAR_BAD_JSON, 400)                                                                                   \
    X(GRAMMAR_BAD_SCHEMA, 401)                                                                                 \
    X(GRAMMAR_UNSUPPORTED, 402)                                                                                \
    X(GRAMMAR_LIMIT, 403)                                                                                      \
    X(GRAMMAR_EMPTY, 404)

enum sg_status {
#define SG_STATUS_ENUM(name, value) SG_STATUS_##name = value,
    SG_STATUS_LIST(SG_STATUS_ENUM)
#undef SG_STATUS_ENUM
};

#endif
