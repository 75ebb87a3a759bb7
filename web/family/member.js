/**
 * One member and its worker.
 *
 * Owns: the worker's life (born for the member, ended to free its memory), the flow of proven bytes into it, the member's
 * state. Knows nothing of: the memory of other members, prompts, routes.
 */

/** @import { Generation, Manifest, MemberRole, MemberSpec, MemberState, MemberStatus, Part, Scoring } from './types.d.ts' */
/** @import { BaseFile } from './base_file.js' */
/** @import { Body, RequestOptions } from './channel.js' */
/** @import { EngineFile } from './engine_file.js' */
/** @import { Code } from './errors.js' */
/** @import { PartSource } from './parts.js' */
/** @import { Stream } from '../worker/types.d.ts' */

import { Channel } from './channel.js';
import { FamilyError, OWN_CODES, abortReason, anySignal, asFamilyError } from './errors.js';
import { throwIfAborted, untilAborted } from './errors.js';
import { fillWorker } from './filling.js';

/**
 * @typedef {object} MemberOptions
 * @property {MemberSpec} spec
 * @property {MemberRole} role
 * @property {Manifest} manifest
 * @property {PartSource} source
 * @property {EngineFile} engine
 * @property {BaseFile} base
 * @property {(name: string) => Worker} createWorker
 * @property {number} silenceMs
 * @property {() => void} onChange the status moved
 */

/** @typedef {(writtenBytes: number) => void} OnWritten */

/** Ends that are no failure of the member. @type {ReadonlySet<Code>} */
const ENDED_ON_PURPOSE = new Set(/** @type {Code[]} */ (['aborted', 'asleep', 'closed']));

export class Member {
  #options;
  /** @type {Channel | null} */
  #channel = null;
  /** Fires when the worker, or the one that is about to be born, must end. */
  #life = new AbortController();
  /** Fires when files are deleted that its downloads would bring back. */
  #wanted = new AbortController();
  /** @type {'asleep' | 'opening' | 'ready'} */
  #worker = 'asleep';
  #memoryBytes = 0;
  #lastMemoryBytes = 0;
  /** @type {FamilyError | null} */
  #error = null;

  /** @param {MemberOptions} options */
  constructor(options) {
    this.#options = options;
  }

  get spec() {
    return this.#options.spec;
  }

  get isReady() {
    return this.#worker === 'ready' && this.#channel?.isOpen === true;
  }

  /** Memory of the worker now; 0 when it sleeps. */
  get memoryBytes() {
    return this.isReady || this.#worker === 'opening' ? this.#memoryBytes : 0;
  }

  /** What opening will take: as much as the last time, else the file and some room to work. */
  get expectedMemoryBytes() {
    return this.#lastMemoryBytes || Math.ceil(this.spec.bytes * 1.1) + (8 << 20);
  }

  /** Everything that must be here before the member can open: the base's parts come first. */
  get parts() {
    return this.partsAfter(this.#options.manifest.base.delivery.parts);
  }

  /** The same if these parts travel for the base. @param {readonly Part[]} baseParts */
  partsAfter(baseParts) {
    const { role, spec } = this.#options;
    if (role === 'base') return baseParts;
    return spec.delivery.kind === 'whole' ? spec.delivery.parts : [...baseParts, ...spec.delivery.parts];
  }

  /** @returns {MemberStatus} */
  get status() {
    const { spec, role, source } = this.#options;
    const { id, title, about, bytes } = spec;
    const delivery = this.#delivery;
    const haveBytes = source.receivedBytes(delivery.parts);
    return {
      ...{ id, role, title, about, bytes, haveBytes },
      state: this.#state(haveBytes === delivery.bytes),
      kind: delivery.kind,
      lossy: spec.lossy ?? null,
      downloadBytes: delivery.bytes,
      memoryBytes: this.memoryBytes,
      error: this.#error,
    };
  }

  /** What travels for this member alone, as things stand. */
  get #delivery() {
    const { base, role, spec } = this.#options;
    return (role === 'base' ? base.upgrade : null)?.delivery ?? spec.delivery;
  }

  /** Fetches what is missing, the engine first, and stops there. @param {AbortSignal} signal */
  async fetch(signal) {
    const { engine, source } = this.#options;
    const mine = anySignal(this.#wanted.signal, signal);
    await this.#noting(async () => {
      await engine.fetch(mine);
      await this.#prepareBase(mine);
      for await (const bytes of source.read(this.parts, mine)) void bytes;
    });
  }

  /** @param {AbortSignal} signal */
  async #prepareBase(signal) {
    const { base, manifest } = this.#options;
    if (this.parts.some((part) => part === manifest.base.delivery.parts[0])) await base.prepare(signal);
  }

  /** Ends downloads, those of an opening too: their files are about to be deleted. */
  stopFetching() {
    this.#wanted.abort(ended(this.spec));
    this.#wanted = new AbortController();
  }

  /**
   * Starts a worker and rebuilds the member in it while its bytes arrive.
   * @param {AbortSignal} signal
   * @param {OnWritten} onWritten
   */
  async open(signal, onWritten) {
    if (this.isReady) return;
    this.sleep();
    this.#memoryBytes = this.expectedMemoryBytes;
    const mine = anySignal(this.#life.signal, this.#wanted.signal, signal);
    this.#setWorker('opening');
    try {
      await this.#noting(() => this.#build(mine, onWritten));
      throwIfAborted(mine);
      this.#setWorker('ready');
    } catch (error) {
      this.sleep();
      throw error;
    }
  }

  /** @param {Body<'generate'>} body @param {RequestOptions} options @returns {Promise<Generation>} */
  async generate(body, options) {
    return this.#ask('generate', body, options);
  }

  /** @param {Body<'score'>} body @param {RequestOptions} options @returns {Promise<Scoring>} */
  async score(body, options) {
    return this.#ask('score', body, options);
  }

  /**
   * Ends the worker and frees its memory; the bytes stay in the store.
   * @param {'asleep' | 'closed'} [code] what those who wait for the worker are told
   */
  sleep(code) {
    const end = ended(this.spec, code);
    this.#life.abort(end);
    this.#life = new AbortController();
    this.#channel?.close(end);
    this.#channel = null;
    if (this.#worker !== 'asleep') this.#setWorker('asleep');
  }

  /**
   * @template {'generate' | 'score'} T
   * @param {T} type
   * @param {Body<T>} body
   * @param {RequestOptions} options
   */
  async #ask(type, body, options) {
    const channel = this.#channel;
    if (!channel) throw ended(this.spec);
    try {
      const result = await channel.request(type, body, options);
      this.#remember(result.memoryBytes);
      return result;
    } catch (error) {
      this.#memoryBytes = Math.max(this.#memoryBytes, channel.failedMemoryBytes);
      throw error;
    }
  }

  /** @param {AbortSignal} signal @param {OnWritten} onWritten */
  async #build(signal, onWritten) {
    const { createWorker, engine, manifest, silenceMs } = this.#options;
    const { id, bytes, delivery, sha256 } = this.spec;
    await this.#prepareBase(signal);
    const module = await untilAborted(engine.compiled(), signal);
    // Between the module and this line somebody may have put the member to sleep.
    throwIfAborted(signal);
    const channel = new Channel(createWorker(`saguaro ${this.spec.id}`), silenceMs);
    this.#channel = channel;
    const hurry = () => channel.close(abortReason(signal));
    signal.addEventListener('abort', hurry, { once: true });
    try {
      const { base, numerics } = manifest;
      const basis = delivery.kind === 'patch' ? { bytes: base.bytes, sha256: base.sha256 } : null;
      const what = { id, engine: module, file: { bytes, sha256 }, base: basis, numerics };
      this.#remember(await fillWorker(channel, { ...what, streams: this.#streams(signal), onWritten }));
    } finally {
      signal.removeEventListener('abort', hurry);
    }
  }

  /** @param {AbortSignal} signal @returns {Record<Stream, AsyncGenerator<Uint8Array<ArrayBuffer>>>} */
  #streams(signal) {
    const { manifest, source } = this.#options;
    const { parts } = this.spec.delivery;
    return {
      file: source.read(parts, signal),
      base: source.read(manifest.base.delivery.parts, signal),
      patch: source.read(parts, signal),
    };
  }

  /** Keeps the failure for the status, until the next try. @param {() => Promise<void>} action */
  async #noting(action) {
    this.#error = null;
    try {
      await action();
    } catch (error) {
      const known = asFamilyError(error, 'worker_lost');
      if (!ENDED_ON_PURPOSE.has(known.code)) this.#error = known;
      throw known;
    } finally {
      this.#options.onChange();
    }
  }

  /** @param {boolean} isStored @returns {MemberState} */
  #state(isStored) {
    if (this.isReady) return 'ready';
    if (this.#options.source.isArriving(this.#delivery.parts)) return 'downloading';
    if (this.#worker === 'opening') return 'opening';
    if (this.#error) return 'failed';
    return isStored ? 'stored' : 'absent';
  }

  /** @param {'asleep' | 'opening' | 'ready'} worker */
  #setWorker(worker) {
    this.#worker = worker;
    this.#options.onChange();
  }

  /** @param {number} memoryBytes */
  #remember(memoryBytes) {
    this.#memoryBytes = memoryBytes;
    this.#lastMemoryBytes = memoryBytes;
  }
}

/** @param {MemberSpec} spec @param {'asleep' | 'closed'} [code] */
function ended({ id }, code = 'asleep') {
  return new FamilyError(code, `${id}: ${OWN_CODES[code]}`);
}
