/**
 * What the library takes from the browser.
 *
 * Owns: the defaults, each of which may be missing (http:// origins, private windows, tests). Knows nothing of: families.
 */

/** @import { Host } from './types.d.ts' */

const MEMORY_BUDGET_BYTES = 512 << 20;
/** On devices that say they have little: three full-size models. */
const SMALL_MEMORY_BUDGET_BYTES = 256 << 20;
const SMALL_DEVICE_GIB = 4;

/** @param {Partial<Host>} [given] @returns {Host} */
export function completeHost(given = {}) {
  return {
    fetch: (input, init) => fetch(input, init),
    caches: offered(() => globalThis.caches),
    subtle: offered(() => globalThis.crypto?.subtle),
    locks: offered(() => globalThis.navigator?.locks),
    memoryBudgetBytes: memoryBudget(),
    isOnline: () => globalThis.navigator?.onLine !== false,
    createWorker: (name) => new Worker(new URL('../worker/worker.js', import.meta.url), { type: 'module', name }),
    ...given,
  };
}

/** Only some browsers tell, rounded, and never more than 8 GiB. */
function memoryBudget() {
  const { deviceMemory = Infinity } = /** @type {{ deviceMemory?: number }} */ (globalThis.navigator ?? {});
  return deviceMemory <= SMALL_DEVICE_GIB ? SMALL_MEMORY_BUDGET_BYTES : MEMORY_BUDGET_BYTES;
}

/** Some browsers throw where others have nothing. @template T @param {() => T | undefined} read */
function offered(read) {
  try {
    return read();
  } catch {
    return undefined;
  }
}
