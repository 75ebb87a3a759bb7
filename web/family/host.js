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

/**
 * A module with one function: `unreachable`, `i32x4.relaxed_dot_i8x16_i7x16_add_s`, `drop`. After `unreachable` the operands need
 * not be there; the instruction must be known all the same.
 */
const RELAXED_DOT = Uint8Array.of(
  ...[0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00], // magic, version
  ...[0x01, 0x04, 0x01, 0x60, 0x00, 0x00], // types, 4 bytes: one, () -> ()
  ...[0x03, 0x02, 0x01, 0x00], // functions, 2 bytes: one, of type 0
  ...[0x0a, 0x09, 0x01, 0x07, 0x00], // code, 9 bytes: one body of 7 bytes, no locals
  ...[0x00, 0xfd, 0x93, 0x02, 0x1a, 0x0b], // unreachable; SIMD 0x113, the relaxed dot product; drop; end
);

/** @param {Partial<Host>} [given] @returns {Host} */
export function completeHost(given = {}) {
  return {
    fetch: (input, init) => fetch(input, init),
    caches: offered(() => globalThis.caches),
    subtle: offered(() => globalThis.crypto?.subtle),
    locks: offered(() => globalThis.navigator?.locks),
    memoryBudgetBytes: memoryBudget(),
    hasRelaxedSimd: WebAssembly.validate(RELAXED_DOT),
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
