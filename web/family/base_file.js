/**
 * The base's file: whole from the host, or rebuilt from the base of an earlier release that is still kept.
 *
 * Owns: the choice between the two, and the second of them: an upgrade's patch is fetched, the base is rebuilt and proved in a
 * worker of its own and kept under its own names. Whatever fails on that way, the base travels whole.
 * Knows nothing of: other members, when files of earlier releases are deleted. Source: docs/formats/manifest.md, `base.upgrades`.
 */

/** @import { FamilyEvent, Manifest, UpgradeSpec } from './types.d.ts' */
/** @import { EngineFile } from './engine_file.js' */
/** @import { WithLock } from './locks.js' */
/** @import { PartSource } from './parts.js' */

import { Channel } from './channel.js';
import { FamilyError, OWN_CODES, abortReason, asFamilyError, throwIfAborted, untilAborted } from './errors.js';
import { fillWorker } from './filling.js';

/**
 * @typedef {object} BaseFileOptions
 * @property {Manifest} manifest
 * @property {string} site names the family, for locks
 * @property {PartSource} source
 * @property {EngineFile} engine
 * @property {WithLock} withLock
 * @property {(name: string) => Worker} createWorker
 * @property {number} silenceMs
 * @property {(event: FamilyEvent) => void} emit
 */

export class BaseFile {
  #options;
  #isGivenUp = false;

  /** @param {BaseFileOptions} options */
  constructor(options) {
    this.#options = options;
  }

  get #spec() {
    return this.#options.manifest.base;
  }

  get isComplete() {
    return this.#missingBytes(this.#spec.delivery.parts) === 0;
  }

  /** The cheapest upgrade whose earlier base is here, if it costs less than what is missing of the base. */
  get upgrade() {
    const { source } = this.#options;
    if (this.#isGivenUp) return null;
    /** @type {UpgradeSpec | null} */
    let best = null;
    let leastBytes = this.#missingBytes(this.#spec.delivery.parts);
    for (const upgrade of this.#spec.upgrades) {
      const costBytes = this.#missingBytes(upgrade.delivery.parts);
      const isPossible = source.receivedBytes(upgrade.from_parts) === upgrade.from_bytes;
      if (isPossible && costBytes < leastBytes) [best, leastBytes] = [upgrade, costBytes];
    }
    return best;
  }

  /** What travels for the base, if this upgrade was chosen and has not failed since. @param {UpgradeSpec | null} upgrade */
  partsBy(upgrade) {
    return upgrade && !this.#isGivenUp ? upgrade.delivery.parts : this.#spec.delivery.parts;
  }

  /**
   * Makes the base's parts from an upgrade, if there is one; afterwards they are read as ever, whatever came of it.
   * @param {AbortSignal} signal
   */
  async prepare(signal) {
    const { emit, engine, site, source, withLock } = this.#options;
    const upgrade = this.upgrade;
    if (!upgrade) return;
    // Without an engine there is no answer at all: that is no fault of the upgrade.
    const module = await untilAborted(engine.compiled(), signal);
    const fromSha256 = upgrade.from_sha256;
    try {
      await withLock(`saguaro-upgrade ${site} ${this.#spec.sha256}`, signal, async () => {
        await source.refresh(); // Another tab may have been faster.
        if (this.upgrade !== upgrade) return;
        await this.#rebuild(module, upgrade, signal);
        emit({ type: 'upgrade', fromSha256, error: null });
      });
    } catch (reason) {
      throwIfAborted(signal);
      const error = asFamilyError(reason, 'worker_lost');
      if (error.code === 'offline') throw error; // The whole base cannot be had either.
      this.#isGivenUp = true;
      emit({ type: 'upgrade', fromSha256, error });
    }
  }

  /** @param {WebAssembly.Module} module @param {UpgradeSpec} upgrade @param {AbortSignal} signal */
  async #rebuild(module, upgrade, signal) {
    const { createWorker, silenceMs } = this.#options;
    throwIfAborted(signal);
    const channel = new Channel(createWorker('saguaro upgrade'), silenceMs);
    const hurry = () => channel.close(abortReason(signal));
    signal.addEventListener('abort', hurry, { once: true });
    try {
      await this.#fill(channel, module, upgrade, signal);
      await this.#keep(channel, signal);
    } finally {
      signal.removeEventListener('abort', hurry);
      channel.close(new FamilyError('asleep', OWN_CODES.asleep));
    }
  }

  /** @param {Channel} channel @param {WebAssembly.Module} engine @param {UpgradeSpec} upgrade @param {AbortSignal} signal */
  async #fill(channel, engine, upgrade, signal) {
    const { manifest, source } = this.#options;
    const { id, bytes, sha256 } = this.#spec;
    await fillWorker(channel, {
      ...{ id, engine, numerics: manifest.numerics, onWritten: () => undefined },
      file: { bytes, sha256 },
      base: { bytes: upgrade.from_bytes, sha256: upgrade.from_sha256 },
      streams: { base: source.readKept(upgrade.from_parts, signal), patch: source.read(upgrade.delivery.parts, signal) },
    });
  }

  /** @param {Channel} channel whose worker holds the new base @param {AbortSignal} signal */
  async #keep(channel, signal) {
    let offset = 0;
    for (const part of this.#spec.delivery.parts) {
      const bytes = await channel.request('copy', { offset, bytes: part.bytes });
      await this.#options.source.keep(part, new Uint8Array(bytes), signal);
      offset += part.bytes;
    }
  }

  /** @param {UpgradeSpec['delivery']['parts']} parts */
  #missingBytes(parts) {
    return parts.reduce((sum, { bytes }) => sum + bytes, 0) - this.#options.source.receivedBytes(parts);
  }
}
