/**
 * A family of models on one page.
 *
 * Owns: opening (manifest, store, members), one response at a time, what is kept and what is removed, the events that a page
 * watches. Knows nothing of: the DOM, the numbers inside a model.
 */

/** @import { Answer, FamilyEvent, FamilyOptions, FamilyStatus, Host, Manifest } from './types.d.ts' */
/** @import { MemberRole, MemberSpec, RespondOptions, StoredFile } from './types.d.ts' */
/** @import { Team } from './dispatcher.js' */
/** @import { ManifestSource } from './manifest_source.js' */
/** @import { WorkProgress } from '../worker/types.d.ts' */

import { refuse, respond } from './dispatcher.js';
import { BaseFile } from './base_file.js';
import { EngineFile } from './engine_file.js';
import { FamilyError, anySignal, asFamilyError, throwIfAborted, untilAborted } from './errors.js';
import { createHash } from './hash.js';
import { completeHost } from './host.js';
import { KeptFiles } from './kept_files.js';
import { createLocks } from './locks.js';
import { membersOf } from './manifest.js';
import { fetchManifest, loadManifest } from './manifest_source.js';
import { Member } from './member.js';
import { PartSource } from './parts.js';
import { Pool } from './pool.js';
import { ReleaseClaim } from './release_claim.js';
import { Store, siteName } from './store.js';
import { RouteTelemetry } from './telemetry.js';

const DEFAULTS = { idleMs: 30_000, patienceMs: 5000, retryMs: 500, silenceMs: 15_000 };

/** @typedef {Awaited<ReturnType<typeof loadManifest>>} Loaded */

/**
 * @typedef {object} Foundations what a family stands on
 * @property {Loaded} loaded
 * @property {ManifestSource} manifestSource
 * @property {Store} store
 * @property {Host} host
 * @property {typeof DEFAULTS & FamilyOptions & { memoryBudgetBytes: number }} options
 */

export class Family {
  /** Routes of this session, without text. */
  telemetry = new RouteTelemetry();
  #loaded;
  #manifestSource;
  #store;
  #options;
  /** @type {Map<string, Member>} */
  #members;
  #source;
  #files;
  #engine;
  #base;
  #pool;
  #claim;
  /** The last response in the queue. @type {Promise<unknown>} */
  #tail = Promise.resolve();
  /** Called when bytes arrived. @type {Set<() => void>} */
  #watchers = new Set();
  #closing = new AbortController();

  /**
   * Use `Family.open`.
   * @param {Foundations} foundations
   */
  constructor({ loaded, manifestSource, store, host, options }) {
    this.#loaded = loaded;
    this.#manifestSource = manifestSource;
    this.#store = store;
    this.#options = options;
    const { hash, url } = manifestSource;
    const root = new URL('.', url);
    const site = siteName(url);
    const withLock = createLocks(host.locks);
    const { idleMs, retryMs, silenceMs } = options;
    const onChange = () => this.#changed();
    this.#source = new PartSource({ root, site, store, host, hash, withLock, idleMs, retryMs, onChange });
    const { manifest } = loaded;
    this.#engine = new EngineFile(manifest, this.#source, host, this.#closing.signal);
    const { createWorker } = host;
    const rest = { manifest, source: this.#source, engine: this.#engine, createWorker, silenceMs };
    const emit = (/** @type {FamilyEvent} */ event) => this.#emit(event);
    const base = new BaseFile({ site, withLock, emit, ...rest });
    this.#base = base;
    this.#files = new KeptFiles(manifest, store, this.#source, base);
    const members = membersOf(manifest).map(
      (spec) => new Member({ spec, role: roleOf(manifest, spec), base, onChange, ...rest }),
    );
    this.#members = new Map(members.map((member) => [member.spec.id, member]));
    this.#pool = new Pool(this.#member(manifest.base.id), options.memoryBudgetBytes);
    this.#claim = new ReleaseClaim(host.locks, site, manifest.release);
  }

  /**
   * Reads the manifest and looks at what is stored; downloads no model.
   * @param {string | URL} manifestUrl
   * @param {FamilyOptions} [options]
   * @returns {Promise<Family>} rejects with a `FamilyError` if there is no good manifest, not even from an earlier visit
   */
  static async open(manifestUrl, options = {}) {
    const host = completeHost(options.host);
    const complete = { ...DEFAULTS, memoryBudgetBytes: host.memoryBudgetBytes, ...options };
    const url = new URL(manifestUrl, globalThis.location?.href);
    const store = await Store.open(host, url, (notice) => options.onEvent?.({ type: 'storage', notice }));
    const { idleMs, patienceMs } = complete;
    const manifestSource = { url, host, store, hash: createHash(host.subtle), signal: options.signal, idleMs };
    const loaded = await loadManifest(manifestSource, patienceMs);
    const family = new Family({ loaded, manifestSource, store, host, options: complete });
    await family.#source.refresh();
    // What an upgrade could start from stays, and with it all of its release, until the new base is here.
    if (loaded.from === 'network' && !family.#base.upgrade) await family.#removeOldIfAlone();
    return family;
  }

  /** @returns {Readonly<Manifest>} */
  get manifest() {
    return this.#loaded.manifest;
  }

  /** One status per member: base, router, specialists in order. */
  get members() {
    return [...this.#members.values()].map((member) => member.status);
  }

  /** @returns {FamilyStatus} */
  status() {
    const { manifest, from, error } = this.#loaded;
    const { name, title, release, numerics } = manifest;
    return {
      ...{ name, title, release, numerics },
      manifestFrom: from,
      manifestError: error,
      storage: { kind: this.#store.kind, notice: this.#store.notice },
      memory: { usedBytes: this.#pool.usedBytes, budgetBytes: this.#pool.budgetBytes },
      engine: this.#engine.status,
      members: this.members,
    };
  }

  /**
   * Answers the last of the user's turns. Responses wait for each other.
   * @param {readonly string[]} turns oldest first
   * @param {RespondOptions} [options]
   * @returns {Promise<Answer>} rejects only with `aborted` or `closed`; every other failure is an envelope
   */
  async respond(turns, options = {}) {
    const mine = untilAborted(this.#tail, options.signal).then(async () => {
      throwIfAborted(this.#untilClosed(options.signal));
      const refusal = refuse(this.manifest, turns, options);
      if (refusal) return refusal;
      const answer = await respond(this.manifest, this.#team, turns, options);
      this.#remember(answer);
      return answer;
    });
    // The next response waits for this one and for those before it, even if this one gives up waiting.
    this.#tail = Promise.allSettled([this.#tail, mine]).then(() => undefined);
    return mine;
  }

  /**
   * Downloads what a member needs, and does not open it.
   * @param {string} id
   * @param {{ signal?: AbortSignal }} [options]
   */
  async prefetch(id, { signal } = {}) {
    const mine = this.#untilClosed(signal);
    const member = this.#member(id);
    await this.#watching(member, undefined, () => member.fetch(mine).catch((error) => this.#explained(error, mine)));
  }

  /** Looks at the store again, which another tab may have changed. */
  async refresh() {
    await this.#source.refresh();
  }

  /** Every file that is kept, with its size and who needs it. @returns {Promise<StoredFile[]>} */
  async list() {
    return this.#files.list();
  }

  /** Deletes what only this member needs, puts it to sleep and ends downloads of its files. @param {string} id */
  async remove(id) {
    const member = this.#member(id);
    const [first] = member.spec.delivery.parts;
    for (const other of this.#members.values()) if (other.parts.some((part) => part === first)) other.stopFetching();
    this.#pool.sleep(member);
    await this.#files.removeMember(member.spec);
  }

  /** Deletes files of older releases. @returns {Promise<number>} how many bytes that were */
  async removeOld() {
    return this.#files.removeOld();
  }

  /** Deletes every file of the family and ends its workers. The family stays usable. */
  async removeAll() {
    for (const member of this.#members.values()) member.stopFetching();
    this.#pool.sleepAll();
    this.#engine.forget();
    await this.#files.removeAll();
  }

  /** Ends all workers; later calls are refused. */
  close() {
    this.#closing.abort(new FamilyError('closed', 'the family was closed'));
    this.#pool.sleepAll('closed');
    this.#claim.release();
  }

  /** @returns {Team} */
  get #team() {
    return {
      score: (spec, work, options) =>
        this.#use(spec, options, (member) => {
          options.onProgress?.({ phase: 'route' });
          return member.score(work, { signal: options.signal });
        }),
      generate: (spec, work, options) =>
        this.#use(spec, options, (member) => {
          options.onProgress?.({ phase: 'answer', member: spec.id });
          const onProgress = (/** @type {WorkProgress} */ progress) => forward(progress, spec, options);
          return member.generate(work, { signal: options.signal, onProgress });
        }),
    };
  }

  /**
   * @template T
   * @param {MemberSpec} spec
   * @param {RespondOptions} options
   * @param {(member: Member) => Promise<T>} action
   * @returns {Promise<T>}
   */
  async #use(spec, options, action) {
    const member = this.#member(spec.id);
    const signal = this.#untilClosed(options.signal);
    const onWritten = (/** @type {number} */ writtenBytes) =>
      options.onProgress?.({ phase: 'open', member: spec.id, writtenBytes, totalBytes: spec.bytes });
    try {
      return await this.#pool.use(member, { signal, onWritten }, () => action(member), (open) =>
        this.#watching(member, options, open),
      );
    } catch (error) {
      return this.#explained(error, signal);
    }
  }

  /**
   * Reports the download of what a member needs while `action` runs, if anything is missing.
   * @param {Member} member
   * @param {RespondOptions | undefined} options
   * @param {() => Promise<void>} action
   */
  async #watching(member, options, action) {
    const upgrade = this.#base.upgrade;
    const count = () => {
      const parts = [this.#engine.part, ...member.partsAfter(this.#base.partsBy(upgrade))];
      const totalBytes = parts.reduce((sum, { bytes }) => sum + bytes, 0);
      return { member: member.spec.id, haveBytes: this.#source.receivedBytes(parts), totalBytes };
    };
    const report = () => {
      options?.onProgress?.({ phase: 'download', ...count() });
      this.#emit({ type: 'download', ...count() });
    };
    const { haveBytes, totalBytes } = count();
    if (!upgrade && haveBytes === totalBytes) return action();
    report();
    this.#watchers.add(report);
    try {
      await action();
    } finally {
      this.#watchers.delete(report);
    }
    // Only what is on the disk may take the place of what is on the disk.
    if (upgrade && this.#base.isComplete && this.#store.kind === 'cache') await this.#removeOldIfAlone();
  }

  /** Deletes files of older releases that no tab has open. */
  async #removeOldIfAlone() {
    if (await this.#claim.isAlone()) await this.removeOld();
  }

  /**
   * A part that is gone may mean that the site has moved on.
   * @param {unknown} error
   * @param {AbortSignal} signal
   * @returns {Promise<never>}
   */
  async #explained(error, signal) {
    const known = asFamilyError(error, 'worker_lost');
    if (known.code !== 'part_missing' && known.code !== 'part_is_html') throw known;
    const source = { ...this.#manifestSource, signal, idleMs: this.#options.patienceMs };
    const now = await fetchManifest(source).catch(() => null);
    throwIfAborted(signal);
    if (!now || now.manifest.release === this.manifest.release) throw known;
    throw new FamilyError('release_changed', 'the site was updated while this page was open; reload it', { cause: known });
  }

  /** @param {string} id */
  #member(id) {
    const member = this.#members.get(id);
    if (member) return member;
    const known = [...this.#members.keys()].join(', ');
    throw new FamilyError('unknown_member', `id: is ${JSON.stringify(id)}, must be one of ${known}`);
  }

  /** @param {Answer} answer */
  #remember({ route }) {
    this.telemetry.record(route);
    this.#emit({ type: 'route', record: structuredClone(route) });
  }

  #changed() {
    for (const report of this.#watchers) report();
    this.#emit({ type: 'members' });
  }

  /** @param {FamilyEvent} event */
  #emit(event) {
    this.#options.onEvent?.(event);
  }

  /** The signal of one request; refuses if the family was closed. @param {AbortSignal | undefined} signal */
  #untilClosed(signal) {
    throwIfAborted(this.#closing.signal);
    return anySignal(this.#closing.signal, signal);
  }
}

/** @param {Manifest} manifest @param {MemberSpec} spec @returns {MemberRole} */
function roleOf(manifest, spec) {
  if (spec === manifest.base) return 'base';
  return spec === manifest.router ? 'router' : 'specialist';
}

/**
 * @param {WorkProgress} progress
 * @param {MemberSpec} spec
 * @param {RespondOptions} options
 */
function forward(progress, spec, options) {
  if (progress.phase === 'text') {
    options.onToken?.({ member: spec.id, text: progress.text, tokenCount: progress.tokenCount });
  } else if (progress.phase === 'prefill') {
    const { doneTokens, totalTokens } = progress;
    options.onProgress?.({ phase: 'prefill', member: spec.id, doneTokens, totalTokens });
  }
}
