/**
 * `family.json`: read with distrust.
 *
 * Owns: the check of every field against docs/formats/manifest.md, of the sums and of `release`.
 * Knows nothing of: the network, storage, what the members are for.
 */

/** @import { BaseSpec, Delivery, EngineSpec, Manifest, MemberSpec, Part, Piece, PromptSpec } from './types.d.ts' */
/** @import { UpgradeSpec } from './types.d.ts' */
/** @import { Hash } from './hash.js' */

import { canonicalJson } from './canonical.js';
import { FamilyError } from './errors.js';

/** Must equal SG_ABI_VERSION in engine/include/saguaro.h. */
export const ABI_VERSION = 1;

const VERSION = 1;
const MANIFEST_BYTES_MAX = 1 << 20;
const PART_BYTES_MAX = 25 << 20;
/** A rebuilt model must fit a 32-bit WebAssembly memory. */
const MODEL_BYTES_MAX = 2 ** 32 - 1;
const CONTEXT_TURNS_MAX = 64;
const NEW_TOKENS_MAX = 65536;
const UPGRADES_MAX = 16;
const ID = /^[a-z][a-z0-9_-]{0,31}$/;
const SHA256 = /^[0-9a-f]{64}$/;

/** @typedef {Record<string, unknown>} Fields */

/**
 * The manifest, proved against its own hash.
 * @param {string} text
 * @param {Hash} hash
 * @returns {Promise<Manifest>} throws `manifest_invalid`, `manifest_version`, `manifest_damaged`, `manifest_missing`
 */
export async function readManifest(text, hash) {
  if (text.length > MANIFEST_BYTES_MAX) fail('length', text.length, `at most ${MANIFEST_BYTES_MAX} characters`);
  if (/^\s*</.test(text)) {
    throw new FamilyError('manifest_missing', 'family.json: the host answered with a web page; is the address right?');
  }
  const fields = record(parse(text), 'the document');
  if (fields.format !== 'saguaro-family') fail('format', fields.format, '"saguaro-family"');
  if (fields.version !== VERSION) {
    throw new FamilyError(
      'manifest_version',
      `family.json: version: is ${show(fields.version)}, must be ${VERSION}; reload the page to get a newer library`,
    );
  }
  await proveRelease(text, fields, hash);
  return readFields(fields);
}

/** @param {string} text @returns {unknown} */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    const words = 'family.json: is not JSON, it was cut or damaged on the way';
    throw new FamilyError('manifest_damaged', words, { cause: error });
  }
}

/**
 * Any flipped byte changes either the canonical text (and so the hash) or the text alone (a key that stands twice).
 * @param {string} text @param {Fields} fields @param {Hash} hash
 */
async function proveRelease(text, fields, hash) {
  const { release, ...rest } = fields;
  if (`${canonicalJson(fields)}\n` !== text) {
    throw new FamilyError('manifest_damaged', 'family.json: is not the canonical JSON that the packer writes');
  }
  const found = await hash(new TextEncoder().encode(canonicalJson(rest)));
  if (found !== release) {
    throw new FamilyError(
      'manifest_damaged',
      `family.json: release: is ${show(release)}, must be ${found}, the hash of the rest; the file was damaged on the way`,
    );
  }
}

/** @param {Fields} fields @returns {Manifest} */
function readFields(fields) {
  const container = record(fields.container, 'container');
  const numerics = fields.numerics;
  if (numerics !== 'exact' && numerics !== 'fast') return fail('numerics', numerics, '"exact" or "fast"');
  /** @type {Manifest} */
  const manifest = {
    format: 'saguaro-family',
    version: VERSION,
    name: text_(fields.name, 'name', ID),
    title: text_(fields.title, 'title'),
    release: text_(fields.release, 'release', SHA256),
    container: {
      tag: text_(container.tag, 'container.tag', /^0x[0-9a-f]{8}$/),
      generation: whole(container.generation, 'container.generation', 1, 255),
    },
    numerics,
    engine: readEngine(record(fields.engine, 'engine')),
    base: readBase(fields.base),
    specialists: list(fields.specialists, 'specialists').map((item, i) => readMember(item, `specialists[${i}]`)),
  };
  if (fields.router !== undefined) manifest.router = readMember(fields.router, 'router');
  if (fields.examples !== undefined) {
    manifest.examples = list(fields.examples, 'examples').map((item, i) => text_(item, `examples[${i}]`));
  }
  checkTogether(manifest);
  return manifest;
}

/** @param {Manifest} manifest */
function checkTogether(manifest) {
  const members = membersOf(manifest);
  const ids = members.map((member) => member.id);
  const twice = ids.find((id, i) => ids.indexOf(id) !== i);
  if (twice !== undefined) fail('id', twice, 'different for every member');
  for (const member of members) {
    if (member !== manifest.router && member.max_new_tokens === undefined) {
      fail(`${member.id}.max_new_tokens`, undefined, 'a whole number');
    }
  }
}

/** Every member: base, router if there is one, specialists in order. @param {Manifest} manifest */
export function membersOf(manifest) {
  return [manifest.base, ...(manifest.router ? [manifest.router] : []), ...manifest.specialists];
}

/** @param {Fields} fields @returns {EngineSpec} */
function readEngine(fields) {
  const sha256 = text_(fields.sha256, 'engine.sha256', SHA256);
  const path = text_(fields.path, 'engine.path');
  if (path !== `engine.${sha256.slice(0, 12)}.wasm`) fail('engine.path', path, 'engine.<first 12 of its hash>.wasm');
  const abi = whole(fields.abi, 'engine.abi', 0, Number.MAX_SAFE_INTEGER);
  if (abi !== ABI_VERSION) {
    throw new FamilyError(
      'engine_mismatch',
      `family.json: engine.abi: is ${abi}, must be ${ABI_VERSION}; reload the page to get the matching library`,
    );
  }
  return { path, sha256, abi, bytes: size(fields.bytes, 'engine.bytes') };
}

/** @param {unknown} value @returns {BaseSpec} */
function readBase(value) {
  const member = readMember(value, 'base');
  const { bytes, delivery, sha256 } = member;
  if (delivery.kind !== 'whole') fail('base.delivery.kind', delivery.kind, '"whole"');
  const { upgrades: found = [] } = record(value, 'base');
  const upgrades = list(found, 'base.upgrades').map((item, i) => readUpgrade(item, `base.upgrades[${i}]`));
  if (upgrades.length > UPGRADES_MAX) fail('base.upgrades', upgrades.length, `at most ${UPGRADES_MAX} upgrades`);
  const hashes = [sha256, ...upgrades.map(({ from_sha256: from }) => from)];
  const twice = hashes.find((hash, i) => hashes.indexOf(hash) !== i);
  if (twice !== undefined) fail('base.upgrades[].from_sha256', twice, "different for each, and not the base's own");
  const large = upgrades.find((upgrade) => upgrade.delivery.bytes >= bytes);
  if (large) fail('base.upgrades[].delivery.bytes', large.delivery.bytes, `less than ${bytes}, the whole base`);
  return { ...member, upgrades };
}

/** @param {unknown} value @param {string} at @returns {UpgradeSpec} */
function readUpgrade(value, at) {
  const fields = record(value, at);
  const sha256 = text_(fields.from_sha256, `${at}.from_sha256`, SHA256);
  const bytes = size(fields.from_bytes, `${at}.from_bytes`);
  const pieces = list(fields.from_parts, `${at}.from_parts`).map((item, i) => readPiece(item, `${at}.from_parts[${i}]`));
  const sum = pieces.reduce((total, piece) => total + piece.bytes, 0);
  if (sum !== bytes) fail(`${at}.from_bytes`, bytes, `${sum}, the sum of its parts`);
  if (pieces.length === 1 && pieces[0]?.sha256 !== sha256) {
    fail(`${at}.from_parts[0].sha256`, pieces[0]?.sha256, `${sha256}, since it is alone`);
  }
  const delivery = readDelivery(fields.delivery, `${at}.delivery`);
  if (delivery.kind !== 'patch') return fail(`${at}.delivery.kind`, delivery.kind, '"patch"');
  return { from_sha256: sha256, from_bytes: bytes, from_parts: pieces, delivery };
}

/** @param {unknown} value @param {string} at @returns {Piece} */
function readPiece(value, at) {
  const fields = record(value, at);
  const sha256 = text_(fields.sha256, `${at}.sha256`, SHA256);
  return { sha256, bytes: whole(fields.bytes, `${at}.bytes`, 1, PART_BYTES_MAX) };
}

/** @param {unknown} value @param {string} at @returns {MemberSpec} */
function readMember(value, at) {
  const fields = record(value, at);
  /** @type {MemberSpec} */
  const member = {
    id: text_(fields.id, `${at}.id`, ID),
    title: text_(fields.title, `${at}.title`),
    about: text_(fields.about, `${at}.about`),
    bytes: size(fields.bytes, `${at}.bytes`),
    sha256: text_(fields.sha256, `${at}.sha256`, SHA256),
    delivery: readDelivery(fields.delivery, `${at}.delivery`),
    prompt: readPrompt(fields.prompt, `${at}.prompt`),
  };
  if (member.delivery.kind === 'whole' && member.delivery.bytes !== member.bytes) {
    fail(`${at}.delivery.bytes`, member.delivery.bytes, `${member.bytes}, the size of the member`);
  }
  if (fields.max_new_tokens !== undefined) {
    member.max_new_tokens = whole(fields.max_new_tokens, `${at}.max_new_tokens`, 1, NEW_TOKENS_MAX);
  }
  if (typeof fields.changed_codes === 'number') member.changed_codes = fields.changed_codes;
  return member;
}

/** @param {unknown} value @param {string} at @returns {PromptSpec} */
function readPrompt(value, at) {
  const fields = record(value, at);
  return {
    system: text_(fields.system, `${at}.system`),
    tools: text_(fields.tools, `${at}.tools`),
    context_turns: whole(fields.context_turns, `${at}.context_turns`, 0, CONTEXT_TURNS_MAX),
  };
}

/** @param {unknown} value @param {string} at @returns {Delivery} */
function readDelivery(value, at) {
  const fields = record(value, at);
  const bytes = size(fields.bytes, `${at}.bytes`);
  const parts = list(fields.parts, `${at}.parts`).map((item, i) => readPart(item, `${at}.parts[${i}]`));
  const sum = parts.reduce((total, part) => total + part.bytes, 0);
  if (sum !== bytes || parts.length === 0) fail(`${at}.bytes`, bytes, `${sum}, the sum of its parts, at least one`);
  if (fields.kind === 'whole') return { kind: 'whole', bytes, parts };
  if (fields.kind === 'patch') {
    return { kind: 'patch', bytes, parts, sha256: text_(fields.sha256, `${at}.sha256`, SHA256) };
  }
  return fail(`${at}.kind`, fields.kind, '"whole" or "patch"');
}

/** @param {unknown} value @param {string} at @returns {Part} */
function readPart(value, at) {
  const piece = readPiece(value, at);
  const path = text_(record(value, at).path, `${at}.path`);
  if (path !== `parts/${piece.sha256}.bin`) fail(`${at}.path`, path, 'parts/<its hash>.bin');
  return { path, ...piece };
}

/** @param {unknown} value @param {string} at @returns {Fields} */
function record(value, at) {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return /** @type {Fields} */ (value);
  return fail(at, value, 'an object');
}

/** @param {unknown} value @param {string} at @returns {unknown[]} */
function list(value, at) {
  return Array.isArray(value) ? value : fail(at, value, 'a list');
}

/** @param {unknown} value @param {string} at @param {RegExp} [form] @returns {string} */
function text_(value, at, form) {
  if (typeof value === 'string' && (!form || form.test(value))) return value;
  return fail(at, value, form ? `a text of the form ${form.source}` : 'a text');
}

/** @param {unknown} value @param {string} at */
function size(value, at) {
  return whole(value, at, 1, MODEL_BYTES_MAX);
}

/** @param {unknown} value @param {string} at @param {number} low @param {number} high @returns {number} */
function whole(value, at, low, high) {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= low && value <= high) return value;
  return fail(at, value, `a whole number from ${low} to ${high}`);
}

/** @param {string} at @param {unknown} found @param {string} allowed @returns {never} */
function fail(at, found, allowed) {
  throw new FamilyError('manifest_invalid', `family.json: ${at}: is ${show(found)}, must be ${allowed}`);
}

/** @param {unknown} value */
function show(value) {
  const text = value === undefined ? 'absent' : JSON.stringify(value);
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}
