/**
 * From proven parts to a file in memory.
 *
 * Owns: the two ways of loading, whole file or base and patch, each ending in a proof by SHA-256. Bytes pass through one
 * small window; the file itself is the only large block. Source: engine/include/saguaro.h, "Rebuild".
 * Knows nothing of: where bytes come from, models.
 */

/** @import { Address, Engine } from './engine.js' */
/** @import { FileIdentity, Stream } from './types.d.ts' */

import { FamilyError, STATUS } from '../family/errors.js';
import { toHex } from '../family/hash.js';

const WINDOW_BYTES = 256 * 1024;
const SHA256_STATE_BYTES = 104;
const DIGEST_BYTES = 32;
const IO_BYTES = 24;
const EXPECT_BYTES = 80;

/**
 * @typedef {object} Loader
 * @property {Address} file
 * @property {number} writtenBytes
 * @property {Stream | null} wants null: the file is complete and proved
 * @property {(stream: Stream, bytes: Uint8Array) => void} feed
 */

/** @param {Engine} engine @param {FileIdentity} file @param {FileIdentity | null} base @returns {Loader} */
export function createLoader(engine, file, base) {
  return base ? new RebuildLoader(engine, file, base) : new WholeLoader(engine, file);
}

/** @implements {Loader} */
class WholeLoader {
  writtenBytes = 0;
  /** @type {Stream | null} */
  wants = 'file';
  #engine;
  #identity;
  #hash;

  /** @param {Engine} engine @param {FileIdentity} identity */
  constructor(engine, identity) {
    this.#engine = engine;
    this.#identity = identity;
    this.file = engine.reserve(identity.bytes);
    this.#hash = engine.reserve(SHA256_STATE_BYTES + DIGEST_BYTES);
    engine.call('sg_sha256_init', this.#hash);
  }

  /** @param {Stream} stream @param {Uint8Array} bytes */
  feed(stream, bytes) {
    refuseOther(stream, this.wants);
    const at = this.file + this.writtenBytes;
    if (this.writtenBytes + bytes.length > this.#identity.bytes) throw wrongFile('is longer than the manifest says');
    this.#engine.bytes(at, bytes.length).set(bytes);
    this.#engine.call('sg_sha256_update', this.#hash, at, bytes.length);
    this.writtenBytes += bytes.length;
    if (this.writtenBytes === this.#identity.bytes) this.#prove();
  }

  #prove() {
    const digest = this.#hash + SHA256_STATE_BYTES;
    this.#engine.call('sg_sha256_final', this.#hash, digest);
    if (toHex(this.#engine.bytes(digest, DIGEST_BYTES)) !== this.#identity.sha256) throw wrongFile('has another hash');
    this.wants = null;
  }
}

/** @implements {Loader} */
class RebuildLoader {
  writtenBytes = 0;
  /** @type {Stream | null} */
  wants = null;
  #engine;
  #rebuild;
  #io;
  #inlets;

  /** @param {Engine} engine @param {FileIdentity} file @param {FileIdentity} base */
  constructor(engine, file, base) {
    this.#engine = engine;
    this.file = engine.reserve(file.bytes);
    this.#rebuild = engine.reserve(engine.call('sg_rebuild_size') >>> 0);
    this.#io = engine.reserve(IO_BYTES + EXPECT_BYTES);
    this.#inlets = { base: new Inlet(engine), patch: new Inlet(engine) };
    const expect = this.#io + IO_BYTES;
    engine.bytes(expect, DIGEST_BYTES).set(fromHex(base.sha256));
    engine.bytes(expect + DIGEST_BYTES, DIGEST_BYTES).set(fromHex(file.sha256));
    engine.setLong(expect + 64, base.bytes);
    engine.setLong(expect + 72, file.bytes);
    engine.check('sg_rebuild_begin', this.#rebuild, expect, this.file);
    this.#run();
  }

  /** Takes all of the bytes, or throws. @param {Stream} stream @param {Uint8Array} bytes */
  feed(stream, bytes) {
    refuseOther(stream, this.wants);
    this.#inlets[stream === 'base' ? 'base' : 'patch'].put(bytes);
    this.#run();
  }

  /** Works until the engine wants bytes that are not here, or is done. */
  #run() {
    const { base, patch } = this.#inlets;
    for (;;) {
      const [fromBase, fromPatch] = [base.fill(), patch.fill()];
      this.#engine.words(this.#io, 6).set([fromBase.at, fromBase.count, 0, fromPatch.at, fromPatch.count, 0]);
      const status = this.#engine.check('sg_rebuild_step', this.#rebuild, this.#io);
      base.use(this.#engine.word(this.#io + 8));
      patch.use(this.#engine.word(this.#io + 20));
      this.writtenBytes = Number(this.#engine.call('sg_rebuild_written', this.#rebuild));
      this.wants = WANTS.get(status) ?? null;
      if (this.wants === null || this.#inlets[this.wants].isEmpty) return;
    }
  }
}

/** One stream's bytes on their way through a window in the engine's memory. */
class Inlet {
  #engine;
  #window;
  #at = 0;
  #count = 0;
  /** What has not entered the window yet. @type {Uint8Array} */
  #rest = new Uint8Array(0);

  /** @param {Engine} engine */
  constructor(engine) {
    this.#engine = engine;
    this.#window = engine.reserve(WINDOW_BYTES);
  }

  get isEmpty() {
    return this.#count === 0 && this.#rest.length === 0;
  }

  /** @param {Uint8Array} bytes */
  put(bytes) {
    this.#rest = bytes;
  }

  /** Address and count of the next bytes; an empty window is filled first. */
  fill() {
    if (this.#count === 0 && this.#rest.length > 0) {
      const count = Math.min(WINDOW_BYTES, this.#rest.length);
      this.#engine.bytes(this.#window, count).set(this.#rest.subarray(0, count));
      this.#rest = this.#rest.subarray(count);
      this.#at = this.#window;
      this.#count = count;
    }
    return { at: this.#at, count: this.#count };
  }

  /** @param {number} count bytes that the engine took */
  use(count) {
    this.#at += count;
    this.#count -= count;
  }
}

/** @type {ReadonlyMap<number, 'base' | 'patch'>} */
const WANTS = new Map([
  [STATUS.need_base, /** @type {const} */ ('base')],
  [STATUS.need_patch, /** @type {const} */ ('patch')],
]);

/** @param {Stream} stream @param {Stream | null} wants */
function refuseOther(stream, wants) {
  if (stream !== wants) throw new FamilyError('bad_state', `feed: stream is ${stream}, must be ${wants ?? 'none'}`);
}

/** @param {string} found */
function wrongFile(found) {
  return new FamilyError('file_hash_mismatch', `the model's file ${found}; the site must be packed again`);
}

/** @param {string} text */
function fromHex(text) {
  return Uint8Array.from({ length: text.length / 2 }, (_, i) => parseInt(text.slice(2 * i, 2 * i + 2), 16));
}
