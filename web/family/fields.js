/**
 * Fields of an untrusted document, one by one.
 *
 * Owns: the kinds of values that `family.json` has, and the sentence for what is none of them. Knows nothing of: what the
 * fields mean.
 */

import { FamilyError } from './errors.js';

/** Lists and objects within each other; what a parser takes beyond depends on the machine. */
export const DEPTH_MAX = 64;
export const PART_BYTES_MAX = 25 << 20;
export const ID = /^[a-z][a-z0-9_-]{0,31}$/;
export const SHA256 = /^[0-9a-f]{64}$/;

/** A rebuilt model must fit a 32-bit WebAssembly memory. */
const MODEL_BYTES_MAX = 2 ** 32 - 1;
const LINE_CHARACTERS_MAX = 200;
/** No control characters, none that turn the direction of the text around them. */
const LINE = /^[^\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]*$/;

/** @typedef {Record<string, unknown>} Fields */

/** @param {unknown} value @param {string} at @returns {Fields} */
export function record(value, at) {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return /** @type {Fields} */ (value);
  return fail(at, value, 'an object');
}

/** @param {unknown} value @param {string} at @param {number} [countMax] @returns {unknown[]} */
export function list(value, at, countMax = Infinity) {
  if (!Array.isArray(value)) return fail(at, value, 'a list');
  return value.length <= countMax ? value : fail(at, value.length, `at most ${countMax} entries`);
}

/** @param {unknown} value @param {string} at @param {number} charactersMax @returns {string} */
export function text_(value, at, charactersMax) {
  if (typeof value !== 'string') return fail(at, value, 'a text');
  return [...value].length <= charactersMax ? value : fail(at, value, `a text of at most ${charactersMax} characters`);
}

/** @param {unknown} value @param {string} at @param {RegExp} form @returns {string} */
export function matching(value, at, form) {
  return typeof value === 'string' && form.test(value) ? value : fail(at, value, `a text of the form ${form.source}`);
}

/** What a person reads. @param {unknown} value @param {string} at @param {0 | 1} [charactersMin] */
export function line(value, at, charactersMin = 0) {
  const text = matching(text_(value, at, LINE_CHARACTERS_MAX), at, LINE);
  return text.length >= charactersMin ? text : fail(at, text, 'a text');
}

/** @param {unknown} value @param {string} at */
export function size(value, at) {
  return whole(value, at, 1, MODEL_BYTES_MAX);
}

/** @param {unknown} value @param {string} at @param {number} low @param {number} high @returns {number} */
export function whole(value, at, low, high) {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= low && value <= high) return value;
  return fail(at, value, `a whole number from ${low} to ${high}`);
}

/** @param {string} at @param {unknown} found @param {string} allowed @returns {never} */
export function fail(at, found, allowed) {
  throw new FamilyError('manifest_invalid', `${at}: is ${show(found)}, must be ${allowed}`);
}

/** @param {unknown} value */
export function show(value) {
  const text = value === undefined ? 'absent' : JSON.stringify(value);
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}

/** Whether lists and objects go at most this deep. @param {unknown} value @param {number} depth @returns {boolean} */
export function isWithin(value, depth) {
  if (typeof value !== 'object' || value === null) return true;
  return depth > 0 && Object.values(value).every((item) => isWithin(item, depth - 1));
}
