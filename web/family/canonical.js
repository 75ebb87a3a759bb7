/**
 * Canonical JSON: one text, and so one hash, per document.
 *
 * Owns: the byte form over which `release` is taken; the same as builder/publish/canonical.py. Source:
 * docs/formats/manifest.md, "Canonical JSON". Knows nothing of: manifests.
 */

/** Beyond it a JavaScript number is not exact. */
const NUMBER_LIMIT = 2 ** 53;
const DECIMALS_MAX = 4;

/**
 * What `JSON.stringify` would write if the keys of every object were sorted by their UTF-16 units (an object itself cannot hold
 * keys like `10` and `9` in that order).
 * @param {unknown} value a value that came from `JSON.parse`
 * @returns {string} throws an Error for what languages write differently
 */
export function canonicalJson(value) {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join()}]`;
  if (typeof value !== 'object' || value === null) return scalar(value);
  const entries = Object.entries(value).sort(([left], [right]) => (left < right ? -1 : 1));
  return `{${entries.map(([key, item]) => `${scalar(key)}:${canonicalJson(item)}`).join()}}`;
}

/** @param {unknown} value */
function scalar(value) {
  if (typeof value === 'number' && !(Math.abs(value) <= NUMBER_LIMIT)) {
    throw new Error(`the number ${value} is not within 2^53 of zero`);
  }
  if (typeof value === 'number' && Number(value.toFixed(DECIMALS_MAX)) !== value) {
    throw new Error(`the number ${value} has more than ${DECIMALS_MAX} decimals`);
  }
  if (typeof value === 'string' && /\p{Surrogate}/u.test(value)) throw new Error('a text holds half a character');
  return JSON.stringify(value);
}
