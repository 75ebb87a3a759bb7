/**
 * Who may be awake: the memory budget over all workers.
 *
 * Owns: eviction of the least recently used member, one restart after a worker died. The base is let in whatever the budget
 * says, for somebody must answer. Knows nothing of: routes, prompts, downloads.
 */

/** @import { Member, OnWritten } from './member.js' */

import { FamilyError } from './errors.js';

const TRY_COUNT = 2;

export class Pool {
  #budgetBytes;
  #base;
  /** Awake members, the least recently used first. @type {Set<Member>} */
  #awake = new Set();

  /** @param {Member} base @param {number} budgetBytes */
  constructor(base, budgetBytes) {
    this.#base = base;
    this.#budgetBytes = budgetBytes;
  }

  get budgetBytes() {
    return this.#budgetBytes;
  }

  get usedBytes() {
    return [...this.#awake].reduce((sum, member) => sum + member.memoryBytes, 0);
  }

  /**
   * Runs `action` on an open member. A worker that dies is replaced once, and `action` starts again.
   * @template T
   * @param {Member} member
   * @param {{ signal: AbortSignal, onWritten: OnWritten }} options
   * @param {() => Promise<T>} action
   * @param {(open: () => Promise<void>) => Promise<void>} [around] runs the opening, and may watch it
   * @returns {Promise<T>} rejects with `over_budget`, `worker_lost` and whatever opening or `action` throws
   */
  async use(member, { signal, onWritten }, action, around = (open) => open()) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        if (!member.isReady) {
          this.#makeRoom(member, member.expectedMemoryBytes);
          await around(() => member.open(signal, onWritten));
        }
        return await action();
      } catch (error) {
        const code = error instanceof FamilyError ? error.code : null;
        if (code === 'worker_lost') member.sleep();
        if (code === 'out_of_memory') this.sleepAll();
        if ((code !== 'worker_lost' && code !== 'out_of_memory') || attempt === TRY_COUNT) throw error;
      } finally {
        // What the request made the worker take stays taken, whether it succeeded or not.
        if (member.isReady) this.#makeRoom(member, member.memoryBytes);
      }
    }
  }

  /** Ends one worker. @param {Member} member @param {'asleep' | 'closed'} [code] */
  sleep(member, code) {
    this.#awake.delete(member);
    member.sleep(code);
  }

  /** Ends all workers. @param {'asleep' | 'closed'} [code] */
  sleepAll(code) {
    for (const member of [...this.#awake]) this.sleep(member, code);
  }

  /** @param {Member} member @param {number} neededBytes */
  #makeRoom(member, neededBytes) {
    this.#touch(member);
    for (const other of [...this.#awake]) {
      const usedBytes = this.usedBytes - member.memoryBytes;
      if (usedBytes + neededBytes <= this.#budgetBytes) return;
      if (other !== member) this.sleep(other);
    }
    if (neededBytes > this.#budgetBytes && member !== this.#base && !member.isReady) {
      this.#awake.delete(member);
      throw new FamilyError(
        'over_budget',
        `${member.spec.id}: needs ${neededBytes} bytes of memory, must be at most ${this.#budgetBytes}`,
      );
    }
  }

  /** @param {Member} member */
  #touch(member) {
    this.#awake.delete(member);
    this.#awake.add(member);
  }
}
