/**
 * The library's front door.
 *
 *     import { openFamily } from './app/<hash>/family/index.js';
 *     const family = await openFamily('family.json');
 *     const { envelope, route } = await family.respond(['turn on the bedroom light']);
 *
 * Owns: what is public. docs/web.md is its manual. Knows nothing of: the DOM.
 */

/** @import { FamilyOptions } from './types.d.ts' */

import { Family } from './family.js';

export { visibleText } from './envelope.js';
export { FamilyError, OWN_CODES, STATUS } from './errors.js';
export { Family } from './family.js';

/**
 * @param {string | URL} manifestUrl of `family.json`; everything else is found relative to it
 * @param {FamilyOptions} [options]
 */
export async function openFamily(manifestUrl, options) {
  return Family.open(manifestUrl, options);
}
