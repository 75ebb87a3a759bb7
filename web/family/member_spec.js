/**
 * One member's entry in `family.json`: read with distrust.
 *
 * Owns: the check of its fields, its delivery and the base's upgrades. Source: docs/formats/manifest.md.
 * Knows nothing of: the rest of the document.
 */

/** @import { BaseSpec, Delivery, LossySpec, MemberSpec, Part, Piece, PromptSpec, UpgradeSpec } from './types.d.ts' */
/** @import { Fields } from './fields.js' */

import { DEPTH_MAX, ID, PART_BYTES_MAX, SHA256, fail, isWithin, line, list } from './fields.js';
import { matching, record, size, text_, whole } from './fields.js';

const CONTEXT_TURNS_MAX = 64;
const NEW_TOKENS_MAX = 65536;
const PROMPT_CHARACTERS_MAX = 256 << 10;
const UPGRADES_MAX = 16;
/** Of a gain, and of a relative error. */
const RATIO_MAX = 1000;

/** @param {Fields} fields @returns {BaseSpec} */
export function readBase(fields) {
  const base = readSpeaker(fields, 'base');
  if (base.delivery.kind !== 'whole') fail('base.delivery.kind', base.delivery.kind, '"whole"');
  const found = fields.upgrades === undefined ? [] : list(fields.upgrades, 'base.upgrades', UPGRADES_MAX);
  const seen = new Set([base.sha256]);
  const upgrades = found.map((item, i) => readUpgrade(item, `base.upgrades[${i}]`, base.bytes, seen));
  return { ...base, upgrades };
}

/**
 * @param {unknown} value @param {string} at @param {number} baseBytes
 * @param {Set<string>} seen hashes that it cannot start from; grows
 * @returns {UpgradeSpec}
 */
function readUpgrade(value, at, baseBytes, seen) {
  const fields = record(value, at);
  const sha256 = matching(fields.from_sha256, `${at}.from_sha256`, SHA256);
  if (seen.has(sha256)) fail(`${at}.from_sha256`, sha256, "no other upgrade's and not the base's own");
  seen.add(sha256);
  const bytes = size(fields.from_bytes, `${at}.from_bytes`);
  const pieces = list(fields.from_parts, `${at}.from_parts`).map((item, i) => readPiece(item, `${at}.from_parts[${i}]`));
  checkSum(bytes, sha256, pieces, `${at}.from_`);
  const delivery = readDelivery(fields.delivery, `${at}.delivery`);
  if (delivery.kind !== 'patch') return fail(`${at}.delivery.kind`, delivery.kind, '"patch"');
  if (delivery.bytes >= baseBytes) fail(`${at}.delivery.bytes`, delivery.bytes, `less than ${baseBytes}, the whole base`);
  return { from_sha256: sha256, from_bytes: bytes, from_parts: pieces, delivery };
}

/** @param {unknown} value @param {string} at @returns {MemberSpec} */
export function readSpecialist(value, at) {
  const fields = record(value, at);
  const share = fields.changed_codes;
  if (typeof share !== 'number' || share < 0 || share > 1) {
    return fail(`${at}.changed_codes`, share, 'a number from 0 to 1');
  }
  return { ...readSpeaker(fields, at), changed_codes: share, ...readLossy(fields.lossy, `${at}.lossy`) };
}

/** @param {unknown} value @returns {MemberSpec} */
export function readRouter(value) {
  const fields = record(value, 'router');
  return { ...readMember(fields, 'router'), ...readLossy(fields.lossy, 'router.lossy') };
}

/** @param {unknown} value @param {string} at @returns {{ lossy?: LossySpec }} */
function readLossy(value, at) {
  if (value == null) return {};
  const fields = record(value, at);
  const { mode } = fields;
  if (mode !== 'zero-residual' && mode !== 'rate-distortion') {
    return fail(`${at}.mode`, mode, '"zero-residual" or "rate-distortion"');
  }
  const gain = readRatio(fields.gain, `${at}.gain`);
  /** @type {LossySpec} */
  const lossy = { mode, gain, relative_error: readRatio(fields.relative_error, `${at}.relative_error`) };
  if (fields.budget_bytes == null) return { lossy };
  return { lossy: { ...lossy, budget_bytes: size(fields.budget_bytes, `${at}.budget_bytes`) } };
}

/** @param {unknown} value @param {string} at @returns {number} */
function readRatio(value, at) {
  if (typeof value === 'number' && value >= 0 && value <= RATIO_MAX) return value;
  return fail(at, value, `a number from 0 to ${RATIO_MAX}`);
}

/** A member that answers, which the router does not. @param {Fields} fields @param {string} at @returns {MemberSpec} */
function readSpeaker(fields, at) {
  const member = readMember(fields, at);
  return { ...member, max_new_tokens: whole(fields.max_new_tokens, `${at}.max_new_tokens`, 1, NEW_TOKENS_MAX) };
}

/** @param {Fields} fields @param {string} at @returns {MemberSpec} */
function readMember(fields, at) {
  const member = {
    id: matching(fields.id, `${at}.id`, ID),
    title: line(fields.title, `${at}.title`, 1),
    about: line(fields.about, `${at}.about`),
    bytes: size(fields.bytes, `${at}.bytes`),
    sha256: matching(fields.sha256, `${at}.sha256`, SHA256),
    delivery: readDelivery(fields.delivery, `${at}.delivery`),
    prompt: readPrompt(record(fields.prompt, `${at}.prompt`), `${at}.prompt`),
  };
  const { kind, parts } = member.delivery;
  if (kind === 'whole') checkSum(member.bytes, member.sha256, parts, `${at}.delivery.`);
  return member;
}

/** @param {Fields} fields @param {string} at @returns {PromptSpec} */
function readPrompt(fields, at) {
  const tools = text_(fields.tools, `${at}.tools`, PROMPT_CHARACTERS_MAX);
  if (tools !== '' && !isToolList(tools)) fail(`${at}.tools`, tools, 'empty or the text of a JSON list');
  return {
    system: text_(fields.system, `${at}.system`, PROMPT_CHARACTERS_MAX),
    tools,
    context_turns: whole(fields.context_turns, `${at}.context_turns`, 0, CONTEXT_TURNS_MAX),
  };
}

/** Whether every language reads the same list here: no key twice, no number beyond a double. @param {string} text */
function isToolList(text) {
  try {
    const value = /** @type {unknown} */ (JSON.parse(text));
    if (!Array.isArray(value) || !isWithin(value, DEPTH_MAX)) return false;
    // A key that stands twice is read once.
    const written = [...text.matchAll(/"(?:[^"\\]|\\.)*"(\s*:)?/g)].filter(([, colon]) => colon).length;
    return keyCount(value) === written;
  } catch {
    return false;
  }
}

/** How many keys all objects have together; NaN if a number is infinite. @param {unknown} value @returns {number} */
function keyCount(value) {
  if (typeof value === 'number' && !Number.isFinite(value)) return NaN;
  if (typeof value !== 'object' || value === null) return 0;
  const items = Object.values(value);
  return items.reduce((sum, item) => sum + keyCount(item), Array.isArray(value) ? 0 : items.length);
}

/** @param {unknown} value @param {string} at @returns {Delivery} */
function readDelivery(value, at) {
  const fields = record(value, at);
  const bytes = size(fields.bytes, `${at}.bytes`);
  const parts = list(fields.parts, `${at}.parts`).map((item, i) => readPart(item, `${at}.parts[${i}]`));
  if (fields.kind === 'whole') {
    if (fields.sha256 != null) fail(`${at}.sha256`, fields.sha256, 'absent from a whole file');
    checkSum(bytes, null, parts, `${at}.`);
    return { kind: 'whole', bytes, parts };
  }
  if (fields.kind !== 'patch') return fail(`${at}.kind`, fields.kind, '"whole" or "patch"');
  const sha256 = matching(fields.sha256, `${at}.sha256`, SHA256);
  checkSum(bytes, sha256, parts, `${at}.`);
  return { kind: 'patch', bytes, parts, sha256 };
}

/**
 * A file is as long as its parts; if there is one, that has its hash.
 * @param {number} bytes @param {string | null} sha256 @param {Piece[]} parts @param {string} prefix of the fields
 */
function checkSum(bytes, sha256, parts, prefix) {
  const sum = parts.reduce((total, part) => total + part.bytes, 0);
  if (sum !== bytes) fail(`${prefix}bytes`, bytes, `${sum}, the sum of its parts`);
  const [only, second] = parts;
  if (sha256 !== null && only && !second && only.sha256 !== sha256) fail(`${prefix}parts[0].sha256`, only.sha256, sha256);
}

/** @param {unknown} value @param {string} at @returns {Part} */
function readPart(value, at) {
  const piece = readPiece(value, at);
  const path = `parts/${piece.sha256}.bin`;
  const found = record(value, at).path;
  if (found !== path) fail(`${at}.path`, found, 'parts/<its hash>.bin');
  return { path, ...piece };
}

/** @param {unknown} value @param {string} at @returns {Piece} */
function readPiece(value, at) {
  const fields = record(value, at);
  return {
    sha256: matching(fields.sha256, `${at}.sha256`, SHA256),
    bytes: whole(fields.bytes, `${at}.bytes`, 1, PART_BYTES_MAX),
  };
}
