/**
 * One part over the network, proved.
 *
 * Owns: attempts, the idle watchdog, and telling apart what hosts answer instead of a part. Sizes come from the manifest
 * only, since `Content-Length` is wrong as soon as a host compresses. No ranges: a part is good by its hash or fetched again.
 * Knows nothing of: storage, members.
 */

/** @import { Host, Part } from './types.d.ts' */
/** @import { Hash } from './hash.js' */
/** @import { Code } from './errors.js' */

import { FamilyError, abortReason, throwIfAborted } from './errors.js';

const ATTEMPT_COUNT = 3;
/** What may go away by itself. @type {ReadonlySet<Code>} */
const PASSING = new Set(/** @type {Code[]} */ (['network', 'server_error', 'part_too_short', 'part_hash_mismatch']));
const LFS_POINTER = 'version https://git-lfs';

/**
 * @typedef {object} DownloadOptions
 * @property {Pick<Host, 'fetch' | 'isOnline'>} host
 * @property {Hash} hash
 * @property {AbortSignal | undefined} signal
 * @property {number} idleMs no byte for this long ends an attempt
 * @property {number} retryMs pause before the second attempt; doubles for each further one
 * @property {(receivedBytes: number) => void} onBytes how much of the part is here; falls back to 0 at a new attempt
 */

/**
 * @param {URL} url
 * @param {Part} part
 * @param {DownloadOptions} options
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function downloadPart(url, part, options) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await tryOnce(url, part, options);
    } catch (error) {
      options.onBytes(0);
      throwIfAborted(options.signal);
      if (!(error instanceof FamilyError)) throw error;
      if (!PASSING.has(error.code) || attempt === ATTEMPT_COUNT) throw error;
      if (error.code === 'network' && !options.host.isOnline()) {
        throw new FamilyError('offline', `${part.path}: this device is offline`, { cause: error });
      }
      await pause(options.retryMs * 2 ** (attempt - 1), options.signal);
    }
  }
}

/** @param {URL} url @param {Part} part @param {DownloadOptions} options */
async function tryOnce(url, part, options) {
  const watchdog = createWatchdog(options.idleMs, options.signal);
  try {
    const response = await options.host.fetch(url, { cache: 'no-store', signal: watchdog.signal });
    watchdog.feed();
    refuseStatus(response, part);
    const bytes = await readBody(response, part, options, watchdog);
    await prove(bytes, response, part, options.hash);
    return bytes;
  } catch (error) {
    if (error instanceof FamilyError) throw error;
    throwIfAborted(options.signal);
    const words = watchdog.signal.aborted
      ? `${part.path}: no byte arrived for ${options.idleMs / 1000} s`
      : `${part.path}: the connection failed`;
    throw new FamilyError('network', words, { cause: error });
  } finally {
    watchdog.stop();
  }
}

/** @param {Response} response @param {Part} part */
function refuseStatus(response, part) {
  if (response.ok) return;
  const passing = response.status >= 500 || response.status === 429 || response.status === 408;
  const code = passing ? 'server_error' : 'part_missing';
  throw new FamilyError(code, `${part.path}: the host answered with status ${response.status}, must be 200`);
}

/**
 * @param {Response} response
 * @param {Part} part
 * @param {DownloadOptions} options
 * @param {Watchdog} watchdog
 */
async function readBody(response, part, options, watchdog) {
  const bytes = new Uint8Array(part.bytes);
  let at = 0;
  for await (const chunk of chunksOf(response, watchdog)) {
    if (at + chunk.byteLength > part.bytes) {
      bytes.set(chunk.subarray(0, part.bytes - at), at);
      throw notThePart(bytes, response, part, 'part_too_long', `is more than ${part.bytes} bytes`);
    }
    bytes.set(chunk, at);
    at += chunk.byteLength;
    options.onBytes(at);
  }
  if (at < part.bytes) throw notThePart(bytes.subarray(0, at), response, part, 'part_too_short', `is ${at} bytes`);
  return bytes;
}

/** A body piece by piece; who stops early ends its transfer. @param {Response} response @param {Watchdog} watchdog */
export async function* chunksOf({ body }, watchdog) {
  const reader = body?.getReader();
  try {
    for (let step = await reader?.read(); step && !step.done; step = await reader?.read()) {
      watchdog.feed();
      yield step.value;
    }
  } finally {
    reader?.cancel().catch(() => undefined);
  }
}

/** @param {Uint8Array<ArrayBuffer>} bytes @param {Response} response @param {Part} part @param {Hash} hash */
async function prove(bytes, response, part, hash) {
  const found = await hash(bytes);
  if (found !== part.sha256) {
    throw notThePart(bytes, response, part, 'part_hash_mismatch', `has the hash ${found.slice(0, 12)}`);
  }
}

/**
 * The most telling error for bytes that are not the part.
 * @param {Uint8Array} bytes @param {Response} response @param {Part} part @param {Code} code @param {string} found
 */
function notThePart(bytes, response, part, code, found) {
  const start = new TextDecoder().decode(bytes.subarray(0, 256)).trimStart();
  if (start.startsWith(LFS_POINTER)) {
    const words = `${part.path}: is a Git LFS pointer; the host does not serve LFS files`;
    return new FamilyError('part_is_lfs_pointer', words);
  }
  const saysHtml = response.headers.get('content-type')?.includes('text/html');
  if (saysHtml || /^<(!doctype|html|head|body)/i.test(start)) {
    return new FamilyError('part_is_html', `${part.path}: is a web page; the host does not have the part`);
  }
  const expected = `${part.bytes} bytes with the hash ${part.sha256.slice(0, 12)}`;
  return new FamilyError(code, `${part.path}: ${found}, must be ${expected}`);
}

/** @typedef {ReturnType<typeof createWatchdog>} Watchdog */

/** Fires its signal after silence, or with the outer one. @param {number} idleMs @param {AbortSignal | undefined} outer */
export function createWatchdog(idleMs, outer) {
  const controller = new AbortController();
  const abort = () => controller.abort();
  outer?.addEventListener('abort', abort, { once: true });
  if (outer?.aborted) abort();
  let timer = setTimeout(abort, idleMs);
  return {
    signal: controller.signal,
    feed() {
      clearTimeout(timer);
      timer = setTimeout(abort, idleMs);
    },
    stop() {
      clearTimeout(timer);
      outer?.removeEventListener('abort', abort);
    },
  };
}

/** @param {number} ms @param {AbortSignal | undefined} signal @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      if (signal) reject(abortReason(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', abort);
      resolve();
    }, ms);
    signal?.addEventListener('abort', abort, { once: true });
  });
}
