/**
 * Every failure that the library reports on purpose.
 *
 * Owns: `FamilyError`, the engine's status names and the library's own codes. A cause that Python or C can meet too has
 * the same code there (`engine/include/sg_status.h`, `builder/errors.py`). Knows nothing of: what a page says about them.
 */

/** The engine's status values; the code is the name in lower case. Source: engine/include/sg_status.h. */
export const STATUS = Object.freeze(
  /** @type {const} */ ({
    ok: 0,
    need_base: 1,
    need_patch: 2,
    done: 3,
    bad_argument: 10,
    out_of_memory: 11,
    buffer_too_small: 12,
    bad_depth: 13,
    cact_truncated: 100,
    cact_bad_tag: 101,
    cact_bad_header: 102,
    cact_bad_codebook: 103,
    cact_bad_record: 104,
    cact_bad_offset: 105,
    cact_bad_shape: 106,
    cact_bad_padding: 107,
    cact_trailing_bytes: 108,
    cact_bad_tokenizer: 109,
    cact_bad_value: 110,
    cact_unsupported: 111,
    patch_truncated: 200,
    patch_bad_magic: 201,
    patch_bad_version: 202,
    patch_wrong_base: 203,
    patch_wrong_target: 204,
    patch_bad_header: 205,
    patch_bad_segment: 206,
    patch_bad_coder: 207,
    patch_bad_table: 208,
    patch_corrupt: 209,
    patch_trailing_bytes: 210,
    patch_hash_mismatch: 211,
    context_full: 300,
    bad_token: 301,
    bad_state: 302,
    bad_utf8: 303,
    unknown_head: 304,
    grammar_bad_json: 400,
    grammar_bad_schema: 401,
    grammar_unsupported: 402,
    grammar_limit: 403,
    grammar_empty: 404,
  }),
);

/** The library's own codes, each with its cause. @satisfies {Record<string, string>} */
export const OWN_CODES = Object.freeze(
  /** @type {const} */ ({
    aborted: 'the caller aborted the request',
    asleep: 'the member was put to sleep while it worked',
    closed: 'the family was closed',
    empty_turn: 'the message holds no text',
    engine_mismatch: 'engine and page library speak different versions',
    engine_unsupported: 'the browser cannot run the engine',
    file_hash_mismatch: 'the joined parts are not the file that the manifest names',
    manifest_damaged: 'family.json does not match its own hash',
    manifest_invalid: 'family.json breaks its format',
    manifest_missing: 'there is no family.json at this address',
    manifest_version: 'family.json has a version that this library does not know',
    network: 'the connection failed',
    offline: 'the device is offline',
    over_budget: 'the model does not fit into the memory budget',
    part_hash_mismatch: 'a part does not have the hash that the manifest names',
    part_is_html: 'the host answered with a web page instead of the part',
    part_is_lfs_pointer: 'the host answered with a Git LFS pointer instead of the part',
    part_missing: 'the host does not have the part',
    part_too_long: 'a part is longer than the manifest says',
    part_too_short: 'a part ended before its length in the manifest',
    protocol: 'page and worker speak different versions',
    release_changed: 'the site was updated while the page was open',
    server_error: 'the host answered with an error',
    unknown_member: 'the family has no member with this id',
    worker_lost: 'the worker died or fell silent',
  }),
);

/** @typedef {keyof typeof STATUS | keyof typeof OWN_CODES} Code */

/** The status name of a value that the engine returned. @param {number} value @returns {Code} */
export function statusCode(value) {
  for (const [name, known] of Object.entries(STATUS)) {
    if (known === value) return /** @type {Code} */ (name);
  }
  return 'engine_mismatch';
}

/** One sentence for a person, one code for programs. */
export class FamilyError extends Error {
  /**
   * @param {Code} code
   * @param {string} message
   * @param {{ cause?: unknown }} [options]
   */
  constructor(code, message, options) {
    super(message, options);
    this.name = 'FamilyError';
    this.code = code;
  }
}

/**
 * Any thrown value as a `FamilyError`; what was not thrown on purpose keeps its own words under `fallback`.
 * @param {unknown} error
 * @param {Code} fallback
 */
export function asFamilyError(error, fallback) {
  if (error instanceof FamilyError) return error;
  const name = error instanceof Error || error instanceof DOMException ? error.name : '';
  if (name === 'AbortError') return new FamilyError('aborted', 'stopped', { cause: error });
  const words = error instanceof Error ? error.message : String(error);
  return new FamilyError(fallback, words, { cause: error });
}

/** Why the signal fired: `aborted`, unless who fired it said something better. @param {AbortSignal} signal */
export function abortReason({ reason }) {
  return reason instanceof FamilyError ? reason : new FamilyError('aborted', 'stopped', { cause: reason });
}

/** Throws the reason if the signal has fired. @param {AbortSignal | undefined} signal */
export function throwIfAborted(signal) {
  if (signal?.aborted) throw abortReason(signal);
}

/** A signal that fires with the first of these. @param {...(AbortSignal | undefined)} signals */
export function anySignal(...signals) {
  return AbortSignal.any(signals.filter((signal) => signal !== undefined));
}

/**
 * Settles as `promise` does, or rejects as soon as the signal fires; the work behind the promise goes on.
 * @template T
 * @param {Promise<T>} promise
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<T>}
 */
export function untilAborted(promise, signal) {
  if (!signal) return promise;
  throwIfAborted(signal);
  return new Promise((resolve, reject) => {
    const abort = () => reject(abortReason(signal));
    signal.addEventListener('abort', abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}
