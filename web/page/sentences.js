/**
 * What went wrong, in plain words, with a next step.
 *
 * Owns: one pair of sentences per error code of the library. Knows nothing of: how an error came about.
 */

/** @import { RouteReason, StorageNotice } from '../family/types.d.ts' */

/** @typedef {{ what: string, next: string }} Sentence */

const PACK_AGAIN = 'Try again; if it stays, the site must be packed again.';

/** What happened, and what to do. @type {Record<string, readonly [string, string]>} */
const BY_CODE = {
  aborted: ['Stopped.', 'Ask again whenever you like.'],
  asleep: ['This model was put to sleep while it worked.', 'Ask again to wake it.'],
  closed: ['This page was closed down.', 'Reload it to go on.'],
  context_full: ['This message is too long for the model.', 'Shorten it and send it again.'],
  empty_turn: ['There is no text in this message.', 'Type something first.'],
  engine_mismatch: ['The page and its engine are of different versions.', 'Reload the page.'],
  engine_unsupported: [
    'This browser cannot run the engine; it needs WebAssembly with SIMD.',
    'Use a current version of Chrome, Edge, Firefox or Safari.',
  ],
  file_hash_mismatch: ['The files of this model do not fit together.', PACK_AGAIN],
  manifest_damaged: ['The list of models arrived damaged.', 'Try again.'],
  manifest_invalid: ['The list of models is not in order.', 'The site must be packed again.'],
  manifest_missing: [
    'The list of models is not at this address.',
    'Check the address, or ask the owner of this site.',
  ],
  manifest_version: ['The site is newer than this page.', 'Reload the page.'],
  network: ['The connection failed.', 'Check it and try again; what has arrived is kept.'],
  offline: [
    'You are offline, and this model is not on the device yet.',
    'Connect and try again; what has arrived is kept.',
  ],
  out_of_memory: ['There is not enough memory for this model.', 'Close other tabs and try again.'],
  over_budget: ['This model does not fit into the memory for this page.', 'Use a device with more memory.'],
  part_hash_mismatch: ['A download arrived damaged.', 'Try again; only the damaged piece is fetched.'],
  part_is_html: [
    'The host sent a web page instead of a piece of the model.',
    'Try again later; the site may be incomplete.',
  ],
  part_is_lfs_pointer: [
    'The host stores this model with Git LFS and does not deliver it.',
    'The owner must upload the files themselves.',
  ],
  part_missing: [
    'A piece of the model is missing on the host.',
    'Try again later; the site may be incomplete.',
  ],
  part_too_long: ['A download was longer than it should be.', 'Try again.'],
  part_too_short: ['A download ended too early.', 'Try again; what has arrived is kept.'],
  patch_wrong_base: ['This model belongs to another base.', 'The site must be packed again.'],
  protocol: ['The page and its worker are of different versions.', 'Reload the page.'],
  release_changed: ['The site was updated while this page was open.', 'Reload the page.'],
  server_error: ['The host has trouble.', 'Try again in a moment.'],
  unknown_member: ['There is no such model here.', 'Reload the page.'],
  worker_lost: [
    'The model stopped working, maybe for lack of memory.',
    'Try again; close other tabs if it happens often.',
  ],
};

/** @param {string | null} code @returns {Sentence} */
export function sentenceFor(code) {
  const [what, next] = (code && BY_CODE[code]) || byFamilyOf(code ?? '');
  return { what, next };
}

/** The engine tells many causes apart that are one to a visitor. @param {string} code @returns {readonly [string, string]} */
function byFamilyOf(code) {
  if (code.startsWith('patch_')) return ['The patch of this model is damaged.', PACK_AGAIN];
  if (code.startsWith('cact_')) return ['The file of this model is damaged.', PACK_AGAIN];
  return ['The engine refused to go on.', 'Try again; if it stays, start a new chat.'];
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
