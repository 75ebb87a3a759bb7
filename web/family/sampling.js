/**
 * How ids are drawn: what a caller may ask for.
 *
 * Owns: the defaults (greedy) and the range of each field, those of docs/numerics.md. Knows nothing of: the draw itself.
 */

/** @import { Sampling } from './types.d.ts' */

import { FamilyError } from './errors.js';

/** @type {Readonly<Sampling>} */
const GREEDY = Object.freeze({ temperature: 0, top_p: 1, top_k: 0, seed: 0 });
/** The least that is not 0 as a 32-bit float, which the engine takes. */
const TOP_P_MIN = 1e-45;

/** @param {unknown} value @param {number} low @param {number} high */
const isWithin = (value, low, high) => typeof value === 'number' && value >= low && value <= high;

/** Whether a value is good, and in words which are. @type {Record<string, [(value: unknown) => boolean, string]>} */
const FIELDS = {
  temperature: [(value) => isWithin(value, 0, 1e6), 'a number from 0 to 1e6'],
  top_p: [(value) => isWithin(value, TOP_P_MIN, 1), 'a number above 0, at most 1'],
  top_k: [(value) => Number.isInteger(value) && isWithin(value, 0, 2 ** 32 - 1), 'a whole number from 0 to 2^32 - 1'],
  seed: [
    (value) =>
      typeof value === 'bigint'
        ? BigInt.asUintN(64, value) === value
        : Number.isInteger(value) && isWithin(value, 0, Number.MAX_SAFE_INTEGER),
    'a whole number from 0 to 2^53 - 1, or a bigint below 2^64',
  ],
};

/** @param {Partial<Sampling> | undefined} given @returns {Sampling} throws `bad_argument`, naming the field */
export function completeSampling(given) {
  const complete = { ...GREEDY, ...given };
  for (const [name, value] of Object.entries(complete)) {
    const [isGood, allowed] = FIELDS[name] ?? [() => false, `one of ${Object.keys(FIELDS).join(', ')}`];
    if (!isGood(value)) throw new FamilyError('bad_argument', `sampling.${name}: is ${String(value)}, must be ${allowed}`);
  }
  return complete;
}
