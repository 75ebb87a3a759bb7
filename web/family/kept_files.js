/**
 * What was downloaded, by file and by who needs it.
 *
 * Owns: which files belong to which member of this release, and which to none. Knows nothing of: workers, the network.
 */

/** @import { Manifest, MemberSpec, Piece, StoredFile } from './types.d.ts' */
/** @import { BaseFile } from './base_file.js' */
/** @import { PartSource } from './parts.js' */
/** @import { Store } from './store.js' */

import { membersOf } from './manifest.js';
import { SAVED_MANIFEST } from './manifest_source.js';

export class KeptFiles {
  #manifest;
  #store;
  #source;
  #base;

  /** @param {Manifest} manifest @param {Store} store @param {PartSource} source @param {BaseFile} base */
  constructor(manifest, store, source, base) {
    this.#manifest = manifest;
    this.#store = store;
    this.#source = source;
    this.#base = base;
  }

  /** @returns {Promise<StoredFile[]>} */
  async list() {
    const files = (await this.#store.list()).filter(({ key }) => key !== SAVED_MANIFEST);
    return files.map(({ key, bytes }) => ({ sha256: key, bytes, usedBy: this.#usersOf(key) }));
  }

  /** Deletes what only this member needs. @param {MemberSpec} spec */
  async removeMember(spec) {
    const alone = this.#filesOf(spec).filter(({ sha256 }) => this.#usersOf(sha256).length === 1);
    for (const { sha256 } of alone) await this.#source.remove(sha256);
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
    const has = (/** @type {Piece} */ part) => part.sha256 === sha256;
    const users = membersOf(this.#manifest).filter((spec) => this.#filesOf(spec).some(has));
    const { engine } = this.#manifest;
    const isEngine = has(engine) || (engine.relaxed && has(engine.relaxed));
    return [...(isEngine ? ['engine'] : []), ...users.map(({ id }) => id)];
  }

  /** The base needs what it will be rebuilt from, too, until it is here. @param {MemberSpec} spec @returns {Piece[]} */
  #filesOf(spec) {
    const upgrade = spec === this.#manifest.base ? this.#base.upgrade : null;
    return [...spec.delivery.parts, ...(upgrade ? [...upgrade.delivery.parts, ...upgrade.from_parts] : [])];
  }
}
