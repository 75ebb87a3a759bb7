/**
 * `family.json`: read with distrust.
 *
 * Owns: the check of the document against docs/formats/manifest.md and of its `release`; exactly what builder/publish/manifest.py
 * takes is taken (tests/golden/manifests.json). Knows nothing of: the network, storage, what the members are for.
 */

/** @import { EngineSpec, Manifest, Part } from './types.d.ts' */
/** @import { Fields } from './fields.js' */
/** @import { Hash } from './hash.js' */

import { canonicalJson } from './canonical.js';
import { FamilyError, asFamilyError } from './errors.js';
import { DEPTH_MAX, ID, PART_BYTES_MAX, SHA256, fail, isWithin, line, list, matching } from './fields.js';
import { record, show, whole } from './fields.js';
import { readBase, readRouter, readSpecialist } from './member_spec.js';

/** Must equal SG_ABI_VERSION in engine/include/saguaro.h. */
export const ABI_VERSION = 2;

export const MANIFEST_BYTES_MAX = 1 << 20;

const VERSION = 1;
/** The empty module. */
const ENGINE_BYTES_MIN = 8;
const EXAMPLES_MAX = 12;

/**
 * The manifest, proved against its own hash.
 * @param {Uint8Array} bytes
 * @param {Hash} hash
 * @param {string} name where the bytes come from, for sentences
 * @returns {Promise<Manifest>} throws `manifest_invalid`, `manifest_version`, `manifest_damaged`, `manifest_missing`,
 *   `engine_mismatch`
 */
export async function readManifest(bytes, hash, name) {
  try {
    return await readBytes(bytes, hash);
  } catch (error) {
    const { code, message } = asFamilyError(error, 'manifest_damaged');
    throw new FamilyError(code, `${name}: ${message}`, { cause: error });
  }
}

/** @param {Uint8Array} bytes @param {Hash} hash */
async function readBytes(bytes, hash) {
  if (bytes.length > MANIFEST_BYTES_MAX) fail('size', bytes.length, `at most ${MANIFEST_BYTES_MAX} bytes`);
  const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  if (/^\s*</.test(text)) {
    throw new FamilyError('manifest_missing', 'the host answered with a web page; is the address right?');
  }
  const fields = record(parse(text), 'the document');
  if (fields.format !== 'saguaro-family') fail('format', fields.format, '"saguaro-family"');
  if (fields.version !== VERSION) {
    throw new FamilyError(
      'manifest_version',
      `version: is ${show(fields.version)}, must be ${VERSION}; reload the page to get a newer library`,
    );
  }
  await proveRelease(text, fields, hash);
  return readFields(fields);
}

/** @param {string} text @returns {unknown} */
function parse(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new FamilyError('manifest_damaged', 'is not JSON, it was cut or damaged on the way', { cause: error });
  }
  if (isWithin(value, DEPTH_MAX)) return value;
  throw new FamilyError('manifest_damaged', `is nested too deeply, must be at most ${DEPTH_MAX} levels deep`);
}

/**
 * Any flipped byte changes either the canonical text (and so the hash) or the text alone (a key that stands twice).
 * @param {string} text @param {Fields} fields @param {Hash} hash
 */
async function proveRelease(text, fields, hash) {
  const { release, ...rest } = fields;
  if (`${canonicalJson(fields)}\n` !== text) {
    throw new FamilyError('manifest_damaged', 'is not the canonical JSON that the packer writes');
  }
  const found = await hash(new TextEncoder().encode(canonicalJson(rest)));
  if (found !== release) {
    throw new FamilyError(
      'manifest_damaged',
      `release: is ${show(release)}, must be ${found}, the hash of the rest; the file was damaged on the way`,
    );
  }
}

/** @param {Fields} fields @returns {Manifest} */
function readFields(fields) {
  const container = record(fields.container, 'container');
  const numerics = fields.numerics;
  if (numerics !== 'exact' && numerics !== 'fast') return fail('numerics', numerics, '"exact" or "fast"');
  checkApp(record(fields.app, 'app'));
  /** @type {Manifest} */
  const manifest = {
    format: 'saguaro-family',
    version: VERSION,
    name: matching(fields.name, 'name', ID),
    title: line(fields.title, 'title', 1),
    release: matching(fields.release, 'release', SHA256),
    container: {
      tag: matching(container.tag, 'container.tag', /^0x[0-9a-f]{8}$/),
      generation: whole(container.generation, 'container.generation', 2, 3),
    },
    numerics,
    engine: readEngine(record(fields.engine, 'engine')),
    base: readBase(record(fields.base, 'base')),
    specialists: list(fields.specialists, 'specialists').map((item, i) => readSpecialist(item, `specialists[${i}]`)),
  };
  if (fields.router != null) manifest.router = readRouter(fields.router);
  if (fields.examples !== undefined) {
    manifest.examples = list(fields.examples, 'examples', EXAMPLES_MAX).map((item, i) => line(item, `examples[${i}]`));
  }
  checkIds(manifest);
  return manifest;
}

/** @param {Manifest} manifest */
function checkIds(manifest) {
  const ids = membersOf(manifest).map(({ id }) => id);
  const twice = ids.find((id, i) => ids.indexOf(id) !== i);
  if (twice !== undefined) fail('id', twice, 'different for every member');
}

/** Every member: base, router if there is one, specialists in order. @param {Manifest} manifest */
export function membersOf(manifest) {
  return [manifest.base, ...(manifest.router ? [manifest.router] : []), ...manifest.specialists];
}

/** @param {Fields} fields */
function checkApp(fields) {
  const sha256 = matching(fields.sha256, 'app.sha256', SHA256);
  if (fields.path !== `app/${sha256.slice(0, 12)}`) fail('app.path', fields.path, 'app/<first 12 of its hash>');
}

/** @param {Fields} fields @returns {EngineSpec} */
function readEngine(fields) {
  const plain = readModule(fields, 'engine');
  const abi = whole(fields.abi, 'engine.abi', 1, 2 ** 32 - 1);
  if (abi !== ABI_VERSION) {
    throw new FamilyError(
      'engine_mismatch',
      `engine.abi: is ${abi}, must be ${ABI_VERSION}; reload the page to get the matching library`,
    );
  }
  if (fields.relaxed == null) return { ...plain, abi };
  return { ...plain, abi, relaxed: readModule(record(fields.relaxed, 'engine.relaxed'), 'engine.relaxed') };
}

/** @param {Fields} fields @param {string} at @returns {Part} */
function readModule(fields, at) {
  const sha256 = matching(fields.sha256, `${at}.sha256`, SHA256);
  const path = `engine.${sha256.slice(0, 12)}.wasm`;
  if (fields.path !== path) fail(`${at}.path`, fields.path, 'engine.<first 12 of its hash>.wasm');
  return { path, sha256, bytes: whole(fields.bytes, `${at}.bytes`, ENGINE_BYTES_MIN, PART_BYTES_MAX) };
}
