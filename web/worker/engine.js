/**
 * The engine's functions with JavaScript's types: addresses in, statuses out as errors.
 *
 * Owns: the memory of one instance and the layout of the engine's structs (little-endian wasm32). Growth detaches every view,
 * so a view is made anew for each use and never kept. Source: engine/include/saguaro.h, engine/wasm/engine.c.
 * Knows nothing of: messages, prompts, the network.
 */

import { FamilyError, STATUS, statusCode } from '../family/errors.js';

const PAGE_BYTES = 65536;
const ERROR_BYTES = 32;
/** SG_PATH_BYTES_MAX: the path of a keyword; names of fields are shorter. */
const FIELD_BYTES_MAX = 200;

/** @typedef {number} Address of a byte in the instance's memory */
/** @typedef {(...values: (number | bigint)[]) => number} EngineFunction */

export class Engine {
  #functions;
  #memory;
  #error;

  /** @param {WebAssembly.Instance} instance */
  constructor(instance) {
    this.#functions = /** @type {Record<string, EngineFunction>} */ (/** @type {unknown} */ (instance.exports));
    this.#memory = /** @type {WebAssembly.Memory} */ (instance.exports.memory);
    this.#functions._initialize?.();
    this.#error = this.reserve(ERROR_BYTES);
  }

  get memoryBytes() {
    return this.#memory.buffer.byteLength;
  }

  /**
   * An export that cannot fail. @param {string} name @param {...(number | bigint)} values
   * @returns {number}
   */
  call(name, ...values) {
    const found = this.#functions[name];
    if (!found) throw new FamilyError('engine_mismatch', `the engine has no function ${name}`);
    return found(...values);
  }

  /**
   * An export that returns a status and takes an error struct last. Throws the engine's own words.
   * @param {string} name @param {...(number | bigint)} values
   * @returns {number} the status, where it is not an error
   */
  check(name, ...values) {
    const status = this.call(name, ...values, this.#error);
    if (status > STATUS.done) throw this.#failure(name, status);
    return status;
  }

  /**
   * Fresh zeroed memory that stays for the life of the instance; whole pages.
   * @param {number} bytes
   * @returns {Address}
   */
  reserve(bytes) {
    const at = this.call('sg_reserve', bytes) >>> 0;
    if (at === 0) throw new FamilyError('out_of_memory', `the engine could not take ${bytes} bytes of memory`);
    return at;
  }

  /**
   * Several small blocks out of one reservation, each 16-byte aligned.
   * @template {string} Name
   * @param {Record<Name, number>} sizes
   * @returns {Record<Name, Address>}
   */
  reserveBlocks(sizes) {
    const entries = /** @type {[Name, number][]} */ (Object.entries(sizes));
    const rounded = entries.map(([, bytes]) => 16 * Math.ceil(bytes / 16));
    let at = this.reserve(rounded.reduce((sum, bytes) => sum + bytes, 0));
    const blocks = entries.map(([name], i) => {
      const block = /** @type {[Name, Address]} */ ([name, at]);
      at += rounded[i] ?? 0;
      return block;
    });
    return /** @type {Record<Name, Address>} */ (Object.fromEntries(blocks));
  }

  /** @param {Address} at @param {number} length */
  bytes(at, length) {
    return new Uint8Array(this.#memory.buffer, at, length);
  }

  /** @param {Address} at @param {number} length */
  words(at, length) {
    return new Uint32Array(this.#memory.buffer, at, length);
  }

  /** @param {Address} at */
  word(at) {
    return this.#view.getUint32(at, true);
  }

  /** @param {Address} at @param {number} value */
  setWord(at, value) {
    this.#view.setUint32(at, value, true);
  }

  /** @param {Address} at @param {number | bigint} value */
  setLong(at, value) {
    this.#view.setBigUint64(at, BigInt.asUintN(64, BigInt(value)), true);
  }

  /** @param {Address} at @param {number} value */
  setFloat(at, value) {
    this.#view.setFloat32(at, value, true);
  }

  /** @param {Address} at */
  float(at) {
    return this.#view.getFloat32(at, true);
  }

  /** @param {Address} at */
  double(at) {
    return this.#view.getFloat64(at, true);
  }

  get #view() {
    return new DataView(this.#memory.buffer);
  }

  /** @param {string} name @param {number} status */
  #failure(name, status) {
    const view = this.#view;
    const field = this.#text(view.getUint32(this.#error + 4, true));
    const [offset, found, allowed] = [8, 16, 24].map((at) => view.getBigUint64(this.#error + at, true));
    const code = statusCode(status);
    if (code === 'grammar_bad_json') {
      return new FamilyError(code, `tools at byte ${offset}: are not JSON, or have a key twice (${code})`);
    }
    if (code.startsWith('grammar_')) return new FamilyError(code, `tools: ${field}: calls cannot be held to it (${code})`);
    return new FamilyError(code, `${name}: ${field} at byte ${offset}: is ${found}, must keep to ${allowed} (${code})`);
  }

  /** A constant ASCII name. @param {Address} at */
  #text(at) {
    const bytes = this.bytes(at, Math.min(FIELD_BYTES_MAX, this.memoryBytes - at));
    const end = bytes.indexOf(0);
    return new TextDecoder().decode(bytes.slice(0, end < 0 ? undefined : end));
  }
}

/**
 * Memory at the end of the instance that one task after another uses: text and scratch of the tokenizer, then the session.
 * Nothing else may be reserved after it, so it grows in place.
 */
export class Workspace {
  #engine;
  #at = 0;
  #bytes = 0;

  /** @param {Engine} engine */
  constructor(engine) {
    this.#engine = engine;
  }

  /** The start of at least `bytes` bytes; what stood there before is lost. @param {number} bytes @returns {Address} */
  take(bytes) {
    const missing = bytes - this.#bytes;
    if (missing <= 0) return this.#at;
    const more = this.#engine.reserve(missing);
    const grewInPlace = this.#at + this.#bytes === more;
    const got = Math.ceil(missing / PAGE_BYTES) * PAGE_BYTES;
    this.#at = grewInPlace ? this.#at : more;
    this.#bytes = grewInPlace ? this.#bytes + got : got;
    return this.#bytes >= bytes ? this.#at : this.take(bytes);
  }
}
