/**
 * Files in Cache Storage, keyed by hash.
 *
 * Owns: the form of an entry (its size stands in a header, so that listing reads no body). Puts are atomic: an entry is
 * there whole or not at all. Knows nothing of: what a file is for, and whether its bytes are still good.
 */

/** @import { Backend } from './store.js' */

/**
 * Moves every entry into another cache, one by one, and deletes what is left.
 * @param {CacheStorage} caches @param {string} from @param {Cache} to
 */
export async function moveCache(caches, from, to) {
  if (!(await caches.has(from))) return;
  const cache = await caches.open(from);
  for (const request of await cache.keys()) {
    const response = await cache.match(request);
    if (response) await to.put(request, response);
    await cache.delete(request);
  }
  await caches.delete(from);
}

/** @implements {Backend} */
export class CacheBackend {
  #cache;
  #root;

  /**
   * @param {Cache} cache
   * @param {URL} root entries are named by URLs below it; none is ever fetched
   */
  constructor(cache, root) {
    this.#cache = cache;
    this.#root = root;
  }

  /** @param {string} key */
  async get(key) {
    const response = await this.#cache.match(this.#url(key));
    return response ? new Uint8Array(await response.arrayBuffer()) : null;
  }

  /** @param {string} key @param {Uint8Array<ArrayBuffer>} bytes */
  async put(key, bytes) {
    const headers = { 'content-type': 'application/octet-stream', 'content-length': String(bytes.byteLength) };
    await this.#cache.put(this.#url(key), new Response(bytes, { headers }));
  }

  /** @param {string} key */
  async delete(key) {
    return this.#cache.delete(this.#url(key));
  }

  async list() {
    const entries = [];
    for (const request of await this.#cache.keys()) {
      const response = await this.#cache.match(request);
      const key = request.url.slice(this.#root.href.length);
      entries.push({ key, bytes: Number(response?.headers.get('content-length') ?? 0) });
    }
    return entries;
  }

  /** @param {string} key */
  #url(key) {
    return new URL(key, this.#root).href;
  }
}
