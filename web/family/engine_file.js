/**
 * The engine: one file, downloaded and compiled once, sent to every worker.
 *
 * Owns: which of the two files it is, and the compiled module. Both give the same bits; the one with relaxed SIMD takes less time
 * in `fast`. If that one cannot be had or compiled, the plain one is taken. Source: docs/numerics.md, "Two modules".
 * Knows nothing of: what it exports.
 */

/** @import { EngineStatus, Host, Manifest, Part } from './types.d.ts' */
/** @import { PartSource } from './parts.js' */

import { FamilyError, OWN_CODES, anySignal, asFamilyError, throwIfAborted } from './errors.js';

export class EngineFile {
  #plain;
  #relaxed;
  #source;
  #signal;
  /** The one in use. @type {Part} */
  #part;
  /** Why it is the plain one where the other was meant. @type {FamilyError | null} */
  #error = null;
  #isPlainInUse = false;
  /** @type {Promise<WebAssembly.Module> | null} */
  #module = null;
  /** Fires when its file is deleted. */
  #wanted = new AbortController();

  /**
   * @param {Pick<Manifest, 'engine' | 'numerics'>} manifest
   * @param {PartSource} source
   * @param {Pick<Host, 'hasRelaxedSimd'>} host
   * @param {AbortSignal} signal the family's end, no single request's
   */
  constructor({ engine, numerics }, source, { hasRelaxedSimd }, signal) {
    this.#plain = engine;
    this.#relaxed = (numerics === 'fast' && hasRelaxedSimd && engine.relaxed) || null;
    this.#part = this.#relaxed ?? engine;
    this.#source = source;
    this.#signal = signal;
  }

  /** The file that is downloaded. */
  get part() {
    return this.#part;
  }

  /** @returns {EngineStatus} */
  get status() {
    const haveBytes = this.#source.receivedBytes([this.#part]);
    const isRelaxed = this.#part === this.#relaxed;
    return { bytes: this.#part.bytes, haveBytes, variant: isRelaxed ? 'relaxed' : 'plain', error: this.#error };
  }

  /** Downloads it, and does not compile. @param {AbortSignal} signal */
  async fetch(signal) {
    await this.#trying((part) => this.#source.obtain(part, signal), signal);
  }

  /** The module; a failure is forgotten, so that the next caller tries again. */
  async compiled() {
    const module = (this.#module ??= this.#compile());
    try {
      return await module;
    } catch (error) {
      if (this.#module === module) this.#module = null;
      throw error;
    }
  }

  /** Before its file is deleted. */
  forget() {
    this.#module = null;
    this.#wanted.abort(new FamilyError('asleep', `${this.#part.path}: ${OWN_CODES.asleep}`));
    this.#wanted = new AbortController();
  }

  #compile() {
    const signal = anySignal(this.#signal, this.#wanted.signal);
    return this.#trying(async (part) => compile(await this.#source.obtain(part, signal)), signal);
  }

  /**
   * With the plain file if the relaxed one fails; if that fails as well, the next try begins as this one did.
   * @template T
   * @param {(part: Part) => Promise<T>} action
   * @param {AbortSignal} signal
   */
  async #trying(action, signal) {
    const part = this.#part;
    try {
      return await action(part);
    } catch (reason) {
      throwIfAborted(signal);
      if (part === this.#plain) throw reason;
      return this.#withPlain(part, action, asFamilyError(reason, 'engine_unsupported'));
    }
  }

  /**
   * A download and a compilation may be here at once; what one of them has got with the plain file stands.
   * @template T
   * @param {Part} failed
   * @param {(part: Part) => Promise<T>} action
   * @param {FamilyError} why
   */
  async #withPlain(failed, action, why) {
    [this.#part, this.#error] = [this.#plain, why];
    try {
      const result = await action(this.#plain);
      [this.#part, this.#error, this.#isPlainInUse] = [this.#plain, why, true];
      return result;
    } catch (error) {
      if (!this.#isPlainInUse) [this.#part, this.#error] = [failed, null];
      throw error;
    }
  }
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
async function compile(bytes) {
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) {
    const words = 'this browser cannot run the engine; it needs WebAssembly with SIMD';
    throw new FamilyError('engine_unsupported', words, { cause: error });
  }
}
