/**
 * The engine: one file, downloaded and compiled once, sent to every worker.
 *
 * Owns: the compiled module. Knows nothing of: what it exports.
 */

/** @import { EngineSpec } from './types.d.ts' */
/** @import { PartSource } from './parts.js' */

import { FamilyError } from './errors.js';

export class EngineFile {
  #spec;
  #source;
  #signal;
  /** @type {Promise<WebAssembly.Module> | null} */
  #module = null;

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
    this.#module ??= this.#compile();
    try {
      return await this.#module;
    } catch (error) {
      this.#module = null;
      throw error;
    }
  }

  /** After its file was deleted. */
  forget() {
    this.#module = null;
  }

  async #compile() {
    const bytes = await this.#source.obtain(this.#spec, this.#signal);
    try {
      return await WebAssembly.compile(bytes);
    } catch (error) {
      const words = 'this browser cannot run the engine; it needs WebAssembly with SIMD';
      throw new FamilyError('engine_unsupported', words, { cause: error });
    }
  }
}
