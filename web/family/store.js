/**
 * Where downloaded files live: Cache Storage, and memory for what it will not take.
 *
 * Owns: the decision between the two, and the notice that a page shows when something could not be kept.
 * Knows nothing of: the network, members, hashes (a key happens to be one).
 */

/** @import { Host, StorageNotice } from './types.d.ts' */

import { CacheBackend, moveCache } from './cache_backend.js';
import { MemoryBackend } from './memory_backend.js';

/**
 * @typedef {object} Backend
 * @property {(key: string) => Promise<Uint8Array<ArrayBuffer> | null>} get a fresh copy
 * @property {(key: string, bytes: Uint8Array<ArrayBuffer>) => Promise<void>} put rejects when it cannot keep the bytes
 * @property {(key: string) => Promise<boolean>} delete whether it was there
 * @property {() => Promise<{ key: string, bytes: number }[]>} list
 */

/**
 * Names a family among all that pages of one origin open: caches and locks are the origin's, manifests may be anybody's.
 * @param {URL} url of the manifest
 */
export function siteName({ origin, pathname }) {
  return origin + pathname;
}

export class Store {
  /** @type {Backend | null} */
  #lasting;
  #memory = new MemoryBackend();
  /** Writes under way. @type {Set<Promise<void>>} */
  #writes = new Set();
  /** @type {StorageNotice | null} */
  #notice;
  #onNotice;

  /**
   * @param {Backend | null} lasting
   * @param {StorageNotice | null} notice
   * @param {(notice: StorageNotice) => void} onNotice
   */
  constructor(lasting, notice, onNotice) {
    this.#lasting = lasting;
    this.#notice = notice;
    this.#onNotice = onNotice;
    if (notice) onNotice(notice);
  }

  /**
   * Opens the family's cache; a browser that refuses gives a store in memory and a notice.
   * @param {Host} host
   * @param {URL} url of the manifest
   * @param {(notice: StorageNotice) => void} onNotice
   */
  static async open(host, url, onNotice) {
    if (!host.caches) return new Store(null, 'insecure', onNotice);
    try {
      const root = new URL('.', url);
      const cache = await host.caches.open(`saguaro-parts ${siteName(url)}`);
      // Earlier versions named the cache by the folder's path alone. What cannot be moved is fetched again.
      await moveCache(host.caches, `saguaro-parts ${root.pathname}`, cache).catch(() => undefined);
      return new Store(new CacheBackend(cache, new URL('stored/', root)), null, onNotice);
    } catch {
      return new Store(null, 'denied', onNotice);
    }
  }

  /** `cache` while files outlive the tab. */
  get kind() {
    return this.#lasting && !this.#notice ? /** @type {const} */ ('cache') : /** @type {const} */ ('memory');
  }

  get notice() {
    return this.#notice;
  }

  /** The bytes as they were put, or as the disk has them now: prove them. @param {string} key */
  async get(key) {
    return (await this.#memory.get(key)) ?? (await this.#try((lasting) => lasting.get(key), null));
  }

  /** Keeps the bytes; where the disk refuses, in memory. @param {string} key @param {Uint8Array<ArrayBuffer>} bytes */
  async put(key, bytes) {
    const write = this.#write(key, bytes);
    this.#writes.add(write);
    await write.finally(() => this.#writes.delete(write));
  }

  /** @param {string} key @param {Uint8Array<ArrayBuffer>} bytes */
  async #write(key, bytes) {
    if (this.#lasting) {
      try {
        await this.#lasting.put(key, bytes);
        return;
      } catch (error) {
        this.#say(error instanceof DOMException && error.name === 'QuotaExceededError' ? 'full' : 'denied');
      }
    }
    await this.#memory.put(key, bytes);
  }

  /** After the writes under way, so that none of them brings the file back. @param {string} key */
  async delete(key) {
    await Promise.allSettled(this.#writes);
    const wasInMemory = await this.#memory.delete(key);
    return (await this.#try((lasting) => lasting.delete(key), false)) || wasInMemory;
  }

  /** Every file with its size. @returns {Promise<{ key: string, bytes: number }[]>} */
  async list() {
    return [...(await this.#try((lasting) => lasting.list(), [])), ...(await this.#memory.list())];
  }

  /**
   * Reads of a store that broke after it was opened count as empty, and say so.
   * @template T
   * @param {(lasting: Backend) => Promise<T>} action
   * @param {T} otherwise
   */
  async #try(action, otherwise) {
    if (!this.#lasting) return otherwise;
    try {
      return await action(this.#lasting);
    } catch {
      this.#say('denied');
      return otherwise;
    }
  }

  /** @param {StorageNotice} notice */
  #say(notice) {
    if (this.#notice === notice) return;
    this.#notice = notice;
    this.#onNotice(notice);
  }
}
