/**
 * What was downloaded, by file and by who needs it.
 *
 * Owns: which files belong to which member of this release, and which to none. Knows nothing of: workers, the network.
 */

/** @import { Manifest, MemberSpec, Part, StoredFile } from './types.d.ts' */
/** @import { PartSource } from './parts.js' */
/** @import { Store } from './store.js' */

import { membersOf } from './manifest.js';
import { SAVED_MANIFEST } from './manifest_source.js';

export class KeptFiles {
  #manifest;
  #store;
  #source;

  /** @param {Manifest} manifest @param {Store} store @param {PartSource} source */
  constructor(manifest, store, source) {
    this.#manifest = manifest;
    this.#store = store;
    this.#source = source;
  }

  /** @returns {Promise<StoredFile[]>} */
  async list() {
    const files = (await this.#store.list()).filter(({ key }) => key !== SAVED_MANIFEST);
    return files.map(({ key, bytes }) => ({ sha256: key, bytes, usedBy: this.#usersOf(key) }));
  }

  /** Deletes what only this member needs. @param {MemberSpec} spec */
  async removeMember(spec) {
    for (const { sha256 } of spec.delivery.parts) {
      if (this.#usersOf(sha256).length === 1) await this.#source.remove(sha256);
    }
  }

  /** Deletes what no member of this release needs, and says how many bytes that were. */
  async removeOld() {
    const old = (await this.list()).filter(({ usedBy }) => usedBy.length === 0);
    for (const { sha256 } of old) await this.#source.remove(sha256);
    return old.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Deletes every file; the saved manifest stays, so that the page opens offline and says what is missing. */
  async removeAll() {
    for (const { sha256 } of await this.list()) await this.#source.remove(sha256);
  }

  /** @param {string} sha256 */
  #usersOf(sha256) {
    const has = (/** @type {Part} */ part) => part.sha256 === sha256;
    const users = membersOf(this.#manifest).filter((spec) => spec.delivery.parts.some(has));
    return [...(has(this.#manifest.engine) ? ['engine'] : []), ...users.map(({ id }) => id)];
  }
}
