/**
 * What went wrong, in plain words, with a next step.
 *
 * Owns: one pair of sentences per error code of the library. Knows nothing of: how an error came about.
 */

/** @import { RouteReason, StorageNotice } from '../family/types.d.ts' */

/** @typedef {{ what: string, next: string }} Sentence */

/** @type {Record<string, Sentence>} */
const BY_CODE = {
  aborted: { what: 'Stopped.', next: 'Ask again whenever you like.' },
  closed: { what: 'This page was closed down.', next: 'Reload it to go on.' },
  context_full: { what: 'This message is too long for the model.', next: 'Shorten it and send it again.' },
  empty_turn: { what: 'There is no text in this message.', next: 'Type something first.' },
  engine_mismatch: { what: 'The page and its engine are of different versions.', next: 'Reload the page.' },
  engine_unsupported: {
    what: 'This browser cannot run the engine; it needs WebAssembly with SIMD.',
    next: 'Use a current version of Chrome, Edge, Firefox or Safari.',
  },
  file_hash_mismatch: { what: 'The files of this model do not fit together.', next: 'Try again; if it stays, the site must be packed again.' },
  manifest_damaged: { what: 'The list of models arrived damaged.', next: 'Try again.' },
  manifest_invalid: { what: 'The list of models is not in order.', next: 'The site must be packed again.' },
  manifest_missing: { what: 'The list of models is not at this address.', next: 'Check the address, or ask the owner of this site.' },
  manifest_version: { what: 'The site is newer than this page.', next: 'Reload the page.' },
  network: { what: 'The connection failed.', next: 'Check it and try again; what has arrived is kept.' },
  offline: { what: 'You are offline, and this model is not on the device yet.', next: 'Connect and try again; what has arrived is kept.' },
  out_of_memory: { what: 'There is not enough memory for this model.', next: 'Close other tabs and try again.' },
  over_budget: { what: 'This model does not fit into the memory for this page.', next: 'Use a device with more memory.' },
  part_hash_mismatch: { what: 'A download arrived damaged.', next: 'Try again; only the damaged piece is fetched.' },
  part_is_html: { what: 'The host sent a web page instead of a piece of the model.', next: 'Try again later; the site may be incomplete.' },
  part_is_lfs_pointer: { what: 'The host stores this model with Git LFS and does not deliver it.', next: 'The owner must upload the files themselves.' },
  part_missing: { what: 'A piece of the model is missing on the host.', next: 'Try again later; the site may be incomplete.' },
  part_too_long: { what: 'A download was longer than it should be.', next: 'Try again.' },
  part_too_short: { what: 'A download ended too early.', next: 'Try again; what has arrived is kept.' },
  patch_wrong_base: { what: 'This model belongs to another base.', next: 'The site must be packed again.' },
  protocol: { what: 'The page and its worker are of different versions.', next: 'Reload the page.' },
  release_changed: { what: 'The site was updated while this page was open.', next: 'Reload the page.' },
  server_error: { what: 'The host has trouble.', next: 'Try again in a moment.' },
  unknown_member: { what: 'There is no such model here.', next: 'Reload the page.' },
  worker_lost: { what: 'The model stopped working, maybe for lack of memory.', next: 'Try again; close other tabs if it happens often.' },
};

/** @param {string | null} code @returns {Sentence} */
export function sentenceFor(code) {
  const known = code ? BY_CODE[code] : undefined;
  if (known) return known;
  if (code?.startsWith('patch_')) return { what: 'The patch of this model is damaged.', next: 'Try again; if it stays, the site must be packed again.' };
  if (code?.startsWith('cact_')) return { what: 'The file of this model is damaged.', next: 'Try again; if it stays, the site must be packed again.' };
  return { what: 'The engine refused to go on.', next: 'Try again; if it stays, start a new chat.' };
}

/**
 * Why the base answered in the place of another model.
 * @param {RouteReason} reason
 * @param {string} title of the model that should have answered; empty if none was chosen
 * @param {string | null} code the cause, if one was thrown
 */
export function fallbackSentence(reason, title, code) {
  switch (reason) {
    case 'none':
      return '';
    case 'router_unavailable':
      return `nobody could choose; ${lower(sentenceFor(code).what)}`;
    case 'over_budget':
      return 'it does not fit into memory.';
    case 'context_full':
      return `the message is too long ${title ? 'for it' : 'to choose a specialist'}.`;
    case 'answer_truncated':
      return 'it did not come to an end.';
    case 'answer_malformed':
      return 'it gave no usable answer.';
    case 'worker_lost':
      return 'it stopped working.';
    case 'member_unavailable':
      return lower(sentenceFor(code).what);
    default:
      return /** @type {never} */ (reason);
  }
}

/** @param {StorageNotice} notice */
export function storageSentence(notice) {
  switch (notice) {
    case 'full':
      return 'Storage is full. New downloads stay in memory and are gone when this tab closes.';
    case 'denied':
      return 'This browser lets the page store nothing. Downloads stay in memory and are gone when this tab closes.';
    case 'insecure':
      return 'This address is not secure (no https), so nothing can be kept. Models are downloaded again next time.';
    default:
      return /** @type {never} */ (notice);
  }
}

/** @param {string} sentence */
function lower(sentence) {
  return sentence[0]?.toLowerCase() + sentence.slice(1);
}
