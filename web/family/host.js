/**
 * What the library takes from the browser.
 *
 * Owns: the defaults, each of which may be missing (http:// origins, private windows, tests). Knows nothing of: families.
 */

/** @import { Host } from './types.d.ts' */

/** @param {Partial<Host>} [given] @returns {Host} */
export function completeHost(given = {}) {
  return {
    fetch: (input, init) => fetch(input, init),
    caches: offered(() => globalThis.caches),
    subtle: offered(() => globalThis.crypto?.subtle),
    locks: offered(() => globalThis.navigator?.locks),
    isOnline: () => globalThis.navigator?.onLine !== false,
    createWorker: (name) => new Worker(new URL('../worker/worker.js', import.meta.url), { type: 'module', name }),
    ...given,
  };
}

/** Some browsers throw where others have nothing. @template T @param {() => T | undefined} read */
function offered(read) {
  try {
    return read();
  } catch {
    return undefined;
  }
}
