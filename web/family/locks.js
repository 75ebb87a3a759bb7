/**
 * One at a time per name: across tabs with Web Locks, within this tab where the browser has none or refuses them.
 *
 * Owns: the queue of the second case. Knows nothing of: what is guarded.
 */

import { throwIfAborted } from './errors.js';

/** @typedef {<T>(name: string, signal: AbortSignal | undefined, action: () => Promise<T>) => Promise<T>} WithLock */

/** @param {LockManager | undefined} locks @returns {WithLock} */
export function createLocks(locks) {
  const withLocalLock = createLocalLocks();
  if (!locks) return withLocalLock;
  return async (name, signal, action) => {
    throwIfAborted(signal);
    let hasBegun = false;
    // The lock manager's types lose the action's result type; the variable keeps it.
    /** @type {Awaited<ReturnType<typeof action>> | undefined} */
    let result;
    try {
      await locks.request(name, signal ? { signal } : {}, async () => {
        hasBegun = true;
        result = await action();
      });
    } catch (error) {
      throwIfAborted(signal);
      if (hasBegun) throw error;
      return withLocalLock(name, signal, action);
    }
    return /** @type {Awaited<ReturnType<typeof action>>} */ (result);
  };
}

/** @returns {WithLock} */
function createLocalLocks() {
  /** @type {Map<string, Promise<unknown>>} */
  const tails = new Map();
  return async (name, signal, action) => {
    const before = tails.get(name) ?? Promise.resolve();
    const mine = before.then(() => {
      throwIfAborted(signal);
      return action();
    });
    const tail = mine.catch(() => undefined);
    tails.set(name, tail);
    try {
      return await mine;
    } finally {
      if (tails.get(name) === tail) tails.delete(name);
    }
  };
}
