/**
 * Requests to one worker and their replies.
 *
 * Owns: ids, the table of open requests, the watchdog that notices a dead worker (a killed worker sends no event).
 * Knows nothing of: what the requests mean.
 */

/** @import { Reply, Request, Results, WorkProgress } from '../worker/types.d.ts' */
/** @import { Code } from './errors.js' */

import { FamilyError, OWN_CODES, STATUS } from './errors.js';

/**
 * @typedef {object} Pending
 * @property {Request['type']} type
 * @property {(result: never) => void} resolve
 * @property {(error: FamilyError) => void} reject
 * @property {((progress: WorkProgress) => void) | undefined} onProgress
 */

/**
 * @template {Request['type']} T
 * @typedef {Omit<Extract<Request, { type: T }>, 'type' | 'id'>} Body
 */

/**
 * @typedef {object} RequestOptions
 * @property {Transferable[]} [transfer]
 * @property {(progress: WorkProgress) => void} [onProgress]
 * @property {AbortSignal | undefined} [signal] asks the worker to stop; the reply still comes from the worker
 */

export class Channel {
  #worker;
  #silenceMs;
  /** @type {Map<number, Pending>} */
  #pending = new Map();
  #nextId = 1;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #armedAt = 0;
  /** @type {FamilyError | null} */
  #end = null;
  /** What the worker took when a request last failed; a request that succeeds tells in its result. */
  failedMemoryBytes = 0;

  /** @param {Worker} worker @param {number} silenceMs */
  constructor(worker, silenceMs) {
    this.#worker = worker;
    this.#silenceMs = silenceMs;
    worker.onmessage = (event) => this.#receive(/** @type {Reply} */ (event.data));
    worker.onmessageerror = () => this.#lose('a message could not be read');
    worker.onerror = (event) => {
      event.preventDefault();
      this.#lose(event.message || 'its script did not load');
    };
  }

  /** False once the worker is known to be gone. */
  get isOpen() {
    return this.#end === null;
  }

  /**
   * @template {Request['type']} T
   * @param {T} type
   * @param {Body<T>} body
   * @param {RequestOptions} [options]
   * @returns {Promise<Results[T]>}
   */
  request(type, body, { transfer = [], onProgress, signal } = {}) {
    if (this.#end) return Promise.reject(this.#end);
    const id = this.#nextId;
    this.#nextId += 1;
    const abort = () => void this.request('abort', { target: id }).catch(() => undefined);
    try {
      this.#worker.postMessage({ type, id, ...body }, transfer);
    } catch (error) {
      return Promise.reject(new FamilyError('bad_argument', `${type}: cannot be sent to the worker`, { cause: error }));
    }
    const reply = /** @type {Promise<Results[T]>} */ (
      new Promise((resolve, reject) => this.#pending.set(id, { type, resolve, reject, onProgress }))
    );
    this.#watch();
    if (signal?.aborted) abort();
    signal?.addEventListener('abort', abort, { once: true });
    return reply.finally(() => signal?.removeEventListener('abort', abort));
  }

  /** Ends the worker; whoever still waits gets `error`. @param {FamilyError} error */
  close(error) {
    if (this.#end) return;
    this.#end = error;
    clearTimeout(this.#timer);
    this.#worker.terminate();
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
  }

  /** @param {string} why */
  #lose(why) {
    this.close(new FamilyError('worker_lost', `the model's worker was lost: ${why}`));
  }

  /** @param {Reply} reply */
  #receive(reply) {
    const pending = this.#pending.get(reply.id);
    if (!pending) return;
    if (reply.type !== 'progress') this.#pending.delete(reply.id);
    this.#watch();
    switch (reply.type) {
      case 'progress':
        return pending.onProgress?.(reply.progress);
      case 'done':
        return pending.resolve(/** @type {never} */ (reply.result));
      case 'error':
        this.failedMemoryBytes = reply.memoryBytes;
        return pending.reject(rebuilt(reply.error));
      default:
        return this.#lose(`an unknown reply ${JSON.stringify(/** @type {never} */ (reply))}`);
    }
  }

  /** Arms the watchdog while somebody waits. */
  #watch() {
    clearTimeout(this.#timer);
    if (this.#pending.size === 0) return;
    this.#armedAt = Date.now();
    this.#timer = setTimeout(() => this.#silent(), this.#silenceMs);
  }

  /** A timer that comes far too late means that the whole tab slept, the worker with it: it gets a second chance. */
  #silent() {
    if (Date.now() - this.#armedAt > 2 * this.#silenceMs) this.#watch();
    else this.#lose(`it was silent for ${this.#silenceMs / 1000} s`);
  }
}

/** @param {{ code: string, message: string, stack: string }} error */
function rebuilt({ code, message, stack }) {
  const known = code in STATUS || code in OWN_CODES;
  const error = new FamilyError(known ? /** @type {Code} */ (code) : 'worker_lost', message);
  error.stack = stack;
  return error;
}
