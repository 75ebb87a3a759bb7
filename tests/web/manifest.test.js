import assert from 'node:assert/strict';
import { createHash as nodeHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';

import { canonicalJson } from '../../web/family/canonical.js';
import { FamilyError } from '../../web/family/errors.js';
import { createHash, sha256 } from '../../web/family/hash.js';
import { readManifest } from '../../web/family/manifest.js';
import { makeSite, noise, seal } from './fakes.js';

const hash = createHash(crypto.subtle);
const NAME = 'https://example.org/models/small.json';
const TABLE = JSON.parse(readFileSync(new URL('../golden/manifests.json', import.meta.url), 'utf8'));
const bytesOf = (text) => new TextEncoder().encode(text);
const textOf = (site) => new TextDecoder().decode(site.files.get('family.json'));
const read = (text) => readManifest(bytesOf(text), hash, NAME);
const refused = (text, code, words) => assert.rejects(read(text), (error) => {
  assert.equal(error.code, code, error.message);
  assert.ok(error.message.startsWith(`${NAME}: `), error.message);
  assert.match(error.message, words);
  return true;
});

test('plain SHA-256 gives what node gives, for every length around two blocks', () => {
  for (let length = 0; length < 140; length += 1) {
    const bytes = noise(length, length);
    assert.equal(sha256(bytes), nodeHash('sha256').update(bytes).digest('hex'), `length ${length}`);
  }
});

test('a good manifest is read, its unknown fields ignored', async () => {
  const site = makeSite({ change: (m) => (m.colour = 'green') });
  const manifest = await read(textOf(site));
  assert.deepEqual(manifest.specialists.map(({ id }) => id), ['home', 'media']);
  assert.equal('colour' in manifest, false);
});

test('a family may have no router and no specialists', async () => {
  const site = makeSite({ change: (m) => Object.assign(m, { router: undefined, specialists: [] }) });
  const manifest = await read(textOf(site));
  assert.equal(manifest.router, undefined);
});

test('every flipped bit of every byte is refused', async () => {
  const site = makeSite();
  const good = site.files.get('family.json');
  for (let at = 0; at < good.length; at += 1) {
    const bad = good.slice();
    bad[at] ^= 1 << at % 8;
    await assert.rejects(readManifest(bad, hash, NAME), FamilyError, `byte ${at}`);
  }
});

test('a cut manifest is refused at every length', async () => {
  const good = textOf(makeSite());
  for (let length = 0; length < good.length; length += 7) {
    await assert.rejects(read(good.slice(0, length)), FamilyError, `length ${length}`);
  }
});

test('a key that stands twice is refused', () => {
  const twice = textOf(makeSite()).replace('"name":"test"', '"name":"first","name":"test"');
  return refused(twice, 'manifest_damaged', /canonical/);
});

test('a web page in its place is called one', () => refused('\n<!doctype html>', 'manifest_missing', /web page/));

/** A manifest with two upgrades, broken by `change`. */
function upgraded(change = () => undefined) {
  const piece = (seed, bytes) => ({ bytes, sha256: sha256(noise(seed, 9)) });
  const upgrade = (seed) => {
    const part = piece(seed, 80);
    return {
      ...{ from_sha256: sha256(noise(seed + 1, 9)), from_bytes: 900, from_parts: [piece(seed + 2, 600), piece(seed + 3, 300)] },
      delivery: { kind: 'patch', bytes: 80, sha256: part.sha256, parts: [{ path: `parts/${part.sha256}.bin`, ...part }] },
    };
  };
  return (m) => {
    m.base.upgrades = [upgrade(40), upgrade(50)];
    change(m.base.upgrades[0], m);
  };
}

test('upgrades are read; a base without any has none', async () => {
  const { base } = await read(textOf(makeSite({ change: upgraded() })));
  assert.deepEqual(base.upgrades.map((one) => [one.from_bytes, one.from_parts.length, one.delivery.bytes]), [[900, 2, 80], [900, 2, 80]]);
  assert.equal('path' in base.upgrades[0].from_parts[0], false);
  assert.deepEqual((await read(textOf(makeSite()))).base.upgrades, []);
});

describe('each broken field has a sentence', () => {
  const cases = [
    ['another format', (m) => (m.format = 'x'), 'manifest_invalid', /format: is "x"/],
    ['a later version', (m) => (m.version = 2), 'manifest_version', /reload/],
    ['another engine interface', (m) => (m.engine.abi = 9), 'engine_mismatch', /reload/],
    ['an unknown delivery', (m) => (m.base.delivery.kind = 'torrent'), 'manifest_invalid', /base\.delivery\.kind: is "torrent"/],
    ['a patch for a base', (m) => Object.assign(m.base.delivery, { kind: 'patch', sha256: m.base.sha256 }), 'manifest_invalid', /"whole"/],
    ['an id twice', (m) => (m.specialists[1].id = 'home'), 'manifest_invalid', /"home", must be different/],
    ['an id with a capital', (m) => (m.specialists[0].id = 'Home'), 'manifest_invalid', /specialists\[0\]\.id: is "Home"/],
    ['a path that leads out', (m) => (m.base.delivery.parts[0].path = '../x.bin'), 'manifest_invalid', /parts\[0\]\.path/],
    ['a part of another host', (m) => (m.base.delivery.parts[0].path = 'https://x/y'), 'manifest_invalid', /parts\[0\]\.path/],
    ['an engine of another name', (m) => (m.engine.path = 'engine.wasm'), 'manifest_invalid', /engine\.path/],
    ['a sum that is wrong', (m) => (m.base.delivery.bytes += 1), 'manifest_invalid', /the sum of its parts/],
    ['a size that is negative', (m) => (m.base.bytes = -1), 'manifest_invalid', /base\.bytes: is -1/],
    ['a part that is too large', (m) => (m.base.delivery.parts[0].bytes = 26 << 20), 'manifest_invalid', /parts\[0\]\.bytes/],
    ['no limit for an answer', (m) => delete m.base.max_new_tokens, 'manifest_invalid', /base\.max_new_tokens/],
    ['tools that are no text', (m) => (m.base.prompt.tools = []), 'manifest_invalid', /prompt\.tools/],
    ['a missing base', (m) => delete m.base, 'manifest_invalid', /base: is absent/],
    ['an upgrade from the base itself', upgraded((one, m) => (one.from_sha256 = m.base.sha256)), 'manifest_invalid', /upgrades\[0\]\.from_sha256/],
    ['an upgrade twice', upgraded((one, m) => m.base.upgrades.push(one)), 'manifest_invalid', /upgrades\[2\]\.from_sha256/],
    ['an upgrade from no pieces', upgraded((one) => (one.from_parts = [])), 'manifest_invalid', /upgrades\[0\]\.from_bytes: is 900, must be 0/],
    ['an upgrade from pieces of another size', upgraded((one) => (one.from_bytes = 901)), 'manifest_invalid', /upgrades\[0\]\.from_bytes: is 901, must be 900/],
    ['an upgrade from one piece of another hash', upgraded((one) => (one.from_parts = [{ ...one.from_parts[0], bytes: 900 }])), 'manifest_invalid', /from_parts\[0\]\.sha256/],
    ['an upgrade that travels whole', upgraded((one) => Object.assign(one.delivery, { kind: 'whole', sha256: null })), 'manifest_invalid', /upgrades\[0\]\.delivery\.kind: is "whole"/],
    ['an upgrade without a hash', upgraded((one) => delete one.delivery.sha256), 'manifest_invalid', /upgrades\[0\]\.delivery\.sha256/],
    ['an upgrade as large as the base', upgraded((one) => (one.delivery.bytes = one.delivery.parts[0].bytes = 4500)), 'manifest_invalid', /delivery\.bytes: is 4500, must be less than 4500/],
    ['seventeen upgrades', upgraded((one, m) => (m.base.upgrades = Array(17).fill(one))), 'manifest_invalid', /base\.upgrades: is 17/],
    ['upgrades that are null', upgraded((one, m) => (m.base.upgrades = null)), 'manifest_invalid', /base\.upgrades: is null/],
    ['upgrades that are no list', upgraded((one, m) => (m.base.upgrades = one)), 'manifest_invalid', /base\.upgrades: is/],
    ['unknown numerics', (m) => (m.numerics = 'vague'), 'manifest_invalid', /numerics/],
  ];
  for (const [name, change, code, words] of cases) {
    test(name, () => refused(textOf(makeSite({ change })), code, words));
  }
});

/** A case's value; `{repeat, times, after}` is a long text, `{nest}` that many lists within one. */
function valueOf({ value }) {
  if (typeof value?.repeat === 'string') return value.repeat.repeat(value.times) + (value.after ?? '');
  if (!value?.nest) return value;
  return Array.from({ length: value.nest - 1 }).reduce((inner) => [inner], []);
}

function documentOf(given) {
  const document = structuredClone({ format: 'saguaro-family', version: 1, ...TABLE.fields });
  const target = given.path.slice(0, -1).reduce((found, step) => found[step], document);
  target[given.path.at(-1)] = valueOf(given);
  return document;
}

/** The same with a true release, by cutting texts: no writer of JSON has a hand in it. */
function sealText(text) {
  const rest = text.replace('"release":"",', '').replace(/\n$/, '');
  return text.replace('"release":""', `"release":"${nodeHash('sha256').update(rest).digest('hex')}"`);
}

describe('the table that Python reads too', () => {
  const good = `${canonicalJson({ format: 'saguaro-family', version: 1, release: '', ...TABLE.fields })}\n`;
  // What is not canonical has no text of its own here; how it is refused is the text cases' matter.
  const isWritable = ({ value }) => typeof value !== 'number' || Number(value.toFixed(4)) === value && value <= 2 ** 53;
  for (const given of TABLE.wrong.filter(isWritable)) {
    test(`wrong: ${given.name}`, async () => {
      await assert.rejects(read(seal(documentOf(given))), FamilyError);
    });
  }
  for (const given of TABLE.good) test(`good: ${given.name}`, () => read(seal(documentOf(given))));
  for (const { name, from, to, good: isGood } of TABLE.texts) {
    test(`text: ${name}`, async () => {
      assert.ok(good.includes(from));
      const reading = read(sealText(good.replace(from, () => to)));
      await (isGood ? reading : assert.rejects(reading, FamilyError));
    });
  }
});

test('bytes that are no UTF-8 are refused, and one byte too many', async () => {
  const bytes = makeSite().files.get('family.json');
  const bad = bytes.slice();
  bad[bytes.indexOf(0x54)] = 0xff;
  await assert.rejects(readManifest(bad, hash, NAME), { code: 'manifest_damaged' });
  await assert.rejects(readManifest(new Uint8Array((1 << 20) + 1), hash, NAME), { code: 'manifest_invalid', message: /size: is 1048577/ });
});

test('nesting that would fill the stack is damage', () => refused(`{"a":${'['.repeat(1e5)}${']'.repeat(1e5)}}`, 'manifest_damaged', /nested too deeply/));

test('a hash of something else is refused', () => {
  const { manifest } = makeSite();
  return refused(seal({ ...manifest }).replace(/"release":"./, '"release":"x'), 'manifest_damaged', /release/);
});
