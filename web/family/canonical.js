/**
 * Canonical JSON: one text, and so one hash, per document.
 *
 * Owns: the byte form over which `release` is taken; the same as builder/publish/canonical.py. Source:
 * docs/formats/manifest.md, "Canonical JSON". Knows nothing of: manifests.
 */

/**
 * What `JSON.stringify` writes when the keys of every object are sorted.
 * @param {unknown} value a value that came from `JSON.parse`
 * @returns {string}
 */
export function canonicalJson(value) {
  return JSON.stringify(sorted(value));
}

/** @param {unknown} value @returns {unknown} */
function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).map(([key, item]) => /** @type {[string, unknown]} */ ([key, sorted(item)]));
  entries.sort(([left], [right]) => (left < right ? -1 : 1));
  return Object.fromEntries(entries);
}
