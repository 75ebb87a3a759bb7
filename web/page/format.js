/**
 * Numbers as people read them.
 *
 * Owns: units and rounding. Knows nothing of: where the numbers stand.
 */

/** Decimal units, as browsers' own storage pages use; a number and its unit stay on one line. @param {number} bytes */
export function formatBytes(bytes) {
  if (bytes < 1000) return `${bytes}\u00a0B`;
  if (bytes < 999_500) return `${Math.round(bytes / 1000)}\u00a0KB`;
  const mega = bytes / 1e6;
  return `${mega < 99.95 ? mega.toFixed(1) : Math.round(mega)}\u00a0MB`;
}

/** A router score with its sign. @param {number} score */
export function formatScore(score) {
  const digits = Math.abs(score).toFixed(1);
  return score < 0 ? `\u2212${digits}` : `+${digits}`;
}

/** Whole percent, never 100 before it is all there. @param {number} have @param {number} total */
export function formatPercent(have, total) {
  return `${total > 0 ? Math.floor((100 * have) / total) : 100} %`;
}

/** @param {number} perSecond */
export function formatRate(perSecond) {
  return `${Math.round(perSecond).toLocaleString('en')} tokens/s`;
}

/** `one`, `one and two`, `one, two and three`. @param {readonly string[]} words */
export function formatList(words) {
  if (words.length < 2) return words.join('');
  return `${words.slice(0, -1).join(', ')} and ${words.at(-1)}`;
}

/** `set_light` as a person would write it. @param {string} name */
export function humanName(name) {
  const words = name.replaceAll(/[_-]+/g, ' ').trim();
  return words === '' ? name : words[0]?.toUpperCase() + words.slice(1);
}
