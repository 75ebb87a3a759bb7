/**
 * Files in this tab's memory: the last resort, gone when the tab closes.
 *
 * Owns: copies, so that a caller may transfer what it got. Knows nothing of: why there is no better place.
 */

/** @import { Backend } from './store.js' */

/** @implements {Backend} */
export class MemoryBackend {
  /** @type {Map<string, Uint8Array<ArrayBuffer>>} */
  #files = new Map();

  /** @param {string} key */
  async get(key) {
    return this.#files.get(key)?.slice() ?? null;
  }

  /** @param {string} key @param {Uint8Array<ArrayBuffer>} bytes */
  async put(key, bytes) {
    this.#files.set(key, bytes.slice());
  }

  /** @param {string} key */
  async delete(key) {
    return this.#files.delete(key);
  }

  async list() {
    return [...this.#files].map(([key, bytes]) => ({ key, bytes: bytes.byteLength }));
  }
}
