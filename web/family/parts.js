/**
 * Proven parts, from the store or the network, and the one count of bytes that progress is made of.
 *
 * Owns: store before network, eviction of what rotted on disk, one download of a part at a time across tabs, the ledger of
 * received bytes. Knows nothing of: members, workers, what the parts add up to.
 */

/** @import { Host, Part, Piece } from './types.d.ts' */
/** @import { Hash } from './hash.js' */
/** @import { Store } from './store.js' */
/** @import { WithLock } from './locks.js' */

import { downloadPart } from './download.js';
import { FamilyError, abortReason, throwIfAborted } from './errors.js';

/**
 * @typedef {object} PartSourceOptions
 * @property {URL} root the folder of family.json
 * @property {string} site names the family, for locks
 * @property {Store} store
 * @property {Host} host
 * @property {Hash} hash
 * @property {WithLock} withLock
 * @property {number} idleMs
 * @property {number} retryMs
 * @property {() => void} onChange the ledger moved
 */

export class PartSource {
  #options;
  /** Bytes here, by hash. @type {Map<string, number>} */
  #received = new Map();
  /** Hashes of what is on its way. @type {Set<string>} */
  #arriving = new Set();

  /** @param {PartSourceOptions} options */
  constructor(options) {
    this.#options = options;
  }

  /** Reads what the store lists into the ledger. */
  async refresh() {
    this.#received = new Map((await this.#options.store.list()).map(({ key, bytes }) => [key, bytes]));
    this.#options.onChange();
  }

  /** Bytes of these parts that are here. @param {readonly Piece[]} parts */
  receivedBytes(parts) {
    return parts.reduce((sum, part) => sum + Math.min(this.#received.get(part.sha256) ?? 0, part.bytes), 0);
  }

  /** Whether one of these parts is on its way, for whomever. @param {readonly Part[]} parts */
  isArriving(parts) {
    return parts.some(({ sha256 }) => this.#arriving.has(sha256));
  }

  /**
   * The bytes of one part, proved; the caller owns the buffer.
   * @param {Part} part
   * @param {AbortSignal | undefined} signal
   */
  async obtain(part, signal) {
    const { site, store, withLock } = this.#options;
    throwIfAborted(signal);
    return withLock(`saguaro-part ${site} ${part.sha256}`, signal, async () => {
      const stored = await this.#proven(part, signal);
      if (stored) return stored;
      const bytes = await this.#download(part, signal);
      if (signal?.aborted) {
        this.#note(part, 0);
        throw abortReason(signal);
      }
      await store.put(part.sha256, bytes);
      return bytes;
    });
  }

  /**
   * The parts in order, one ahead: the next one travels while the caller works on this one.
   * @param {readonly Part[]} parts
   * @param {AbortSignal | undefined} signal
   */
  async *read(parts, signal) {
    const ahead = { next: this.#start(parts[0], signal) };
    for (let i = 0; i < parts.length; i += 1) {
      const bytes = await ahead.next;
      ahead.next = this.#start(parts[i + 1], signal);
      if (bytes) yield bytes;
    }
  }

  /** @param {Part | undefined} part @param {AbortSignal | undefined} signal */
  #start(part, signal) {
    const bytes = part ? this.obtain(part, signal) : Promise.resolve(null);
    // The reader may stop before it comes to this part; the failure is then nobody's.
    bytes.catch(() => undefined);
    return bytes;
  }

  /**
   * Pieces that must be here already, in order; nothing is fetched.
   * @param {readonly Piece[]} pieces
   * @param {AbortSignal} signal
   */
  async *readKept(pieces, signal) {
    for (const piece of pieces) {
      const bytes = await this.#proven(piece, signal);
      if (!bytes) throw new FamilyError('part_missing', `${piece.sha256}: is no longer kept`);
      yield bytes;
    }
  }

  /**
   * Keeps a part that was made here, after its proof.
   * @param {Part} part
   * @param {Uint8Array<ArrayBuffer>} bytes
   * @param {AbortSignal} signal
   */
  async keep(part, bytes, signal) {
    const { hash, store } = this.#options;
    if ((await hash(bytes)) !== part.sha256) {
      throw new FamilyError('file_hash_mismatch', `${part.path}: what was rebuilt is another part`);
    }
    throwIfAborted(signal);
    await store.put(part.sha256, bytes);
    this.#note(part, part.bytes);
  }

  /** Forgets a part. @param {string} sha256 */
  async remove(sha256) {
    await this.#options.store.delete(sha256);
    this.#received.delete(sha256);
    this.#options.onChange();
  }

  /** @param {Part} part @param {AbortSignal | undefined} signal */
  async #download(part, signal) {
    const { host, hash, idleMs, onChange, retryMs, root } = this.#options;
    const onBytes = (/** @type {number} */ bytes) => this.#note(part, bytes);
    this.#arriving.add(part.sha256);
    onChange();
    try {
      return await downloadPart(new URL(part.path, root), part, { host, hash, signal, idleMs, retryMs, onBytes });
    } finally {
      this.#arriving.delete(part.sha256);
      onChange();
    }
  }

  /**
   * What the store has, if it is still good; else the store loses it.
   * @param {Piece} part
   * @param {AbortSignal | undefined} signal
   */
  async #proven(part, signal) {
    const bytes = await this.#options.store.get(part.sha256);
    if (!bytes) {
      this.#note(part, 0);
      return null;
    }
    if (bytes.byteLength === part.bytes && (await this.#options.hash(bytes)) === part.sha256) {
      throwIfAborted(signal);
      this.#note(part, part.bytes);
      return bytes;
    }
    await this.remove(part.sha256);
    return null;
  }

  /** @param {Piece} part @param {number} bytes */
  #note(part, bytes) {
    if (this.#received.get(part.sha256) === bytes) return;
    this.#received.set(part.sha256, bytes);
    this.#options.onChange();
  }
}
