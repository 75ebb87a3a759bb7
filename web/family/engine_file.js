/**
 * The engine: one file, downloaded and compiled once, sent to every worker.
 *
 * Owns: the compiled module. Knows nothing of: what it exports.
 */

/** @import { EngineSpec } from './types.d.ts' */
/** @import { PartSource } from './parts.js' */

import { FamilyError, OWN_CODES, anySignal } from './errors.js';

export class EngineFile {
  #spec;
  #source;
  #signal;
  /** @type {Promise<WebAssembly.Module> | null} */
  #module = null;
  /** Fires when its file is deleted. */
  #wanted = new AbortController();

  /**
   * @param {EngineSpec} spec
   * @param {PartSource} source
   * @param {AbortSignal} signal the family's end, no single request's
   */
  constructor(spec, source, signal) {
    this.#spec = spec;
    this.#source = source;
    this.#signal = signal;
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
    this.#wanted.abort(new FamilyError('asleep', `${this.#spec.path}: ${OWN_CODES.asleep}`));
    this.#wanted = new AbortController();
  }

  async #compile() {
    const bytes = await this.#source.obtain(this.#spec, anySignal(this.#signal, this.#wanted.signal));
    try {
      return await WebAssembly.compile(bytes);
    } catch (error) {
      const words = 'this browser cannot run the engine; it needs WebAssembly with SIMD';
      throw new FamilyError('engine_unsupported', words, { cause: error });
    }
  }
}
