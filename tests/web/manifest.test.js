import assert from 'node:assert/strict';
import { createHash as nodeHash } from 'node:crypto';
import { describe, test } from 'node:test';

import { createHash, sha256 } from '../../web/family/hash.js';
import { readManifest } from '../../web/family/manifest.js';
import { makeSite, noise, seal } from './fakes.js';

const hash = createHash(crypto.subtle);
const textOf = (site) => new TextDecoder().decode(site.files.get('family.json'));
const refused = (text, code, words) => assert.rejects(readManifest(text, hash), (error) => {
  assert.equal(error.code, code, error.message);
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
  const manifest = await readManifest(textOf(site), hash);
  assert.deepEqual(manifest.specialists.map(({ id }) => id), ['home', 'media']);
  assert.equal('colour' in manifest, false);
});

test('a family may have no router and no specialists', async () => {
  const site = makeSite({ change: (m) => Object.assign(m, { router: undefined, specialists: [] }) });
  const manifest = await readManifest(textOf(site), hash);
  assert.equal(manifest.router, undefined);
});

test('every flipped bit of every byte is refused', async () => {
  const site = makeSite();
  const good = site.files.get('family.json');
  for (let at = 0; at < good.length; at += 1) {
    const bad = good.slice();
    bad[at] ^= 1 << at % 8;
    await assert.rejects(readManifest(new TextDecoder().decode(bad), hash), `byte ${at}`);
  }
});

test('a cut manifest is refused at every length', async () => {
  const good = textOf(makeSite());
  for (let length = 0; length < good.length; length += 7) {
    await assert.rejects(readManifest(good.slice(0, length), hash), `length ${length}`);
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
  const { base } = await readManifest(textOf(makeSite({ change: upgraded() })), hash);
  assert.deepEqual(base.upgrades.map((one) => [one.from_bytes, one.from_parts.length, one.delivery.bytes]), [[900, 2, 80], [900, 2, 80]]);
  assert.equal('path' in base.upgrades[0].from_parts[0], false);
  assert.deepEqual((await readManifest(textOf(makeSite()), hash)).base.upgrades, []);
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
    ['an upgrade from the base itself', upgraded((one, m) => (one.from_sha256 = m.base.sha256)), 'manifest_invalid', /upgrades\[\]\.from_sha256/],
    ['an upgrade twice', upgraded((one, m) => m.base.upgrades.push(one)), 'manifest_invalid', /upgrades\[\]\.from_sha256/],
    ['an upgrade from no pieces', upgraded((one) => (one.from_parts = [])), 'manifest_invalid', /upgrades\[0\]\.from_bytes: is 900, must be 0/],
    ['an upgrade from pieces of another size', upgraded((one) => (one.from_bytes = 901)), 'manifest_invalid', /upgrades\[0\]\.from_bytes: is 901, must be 900/],
    ['an upgrade from one piece of another hash', upgraded((one) => (one.from_parts = [{ ...one.from_parts[0], bytes: 900 }])), 'manifest_invalid', /from_parts\[0\]\.sha256/],
    ['an upgrade that travels whole', upgraded((one) => (one.delivery.kind = 'whole')), 'manifest_invalid', /upgrades\[0\]\.delivery\.kind: is "whole"/],
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

test('a hash of something else is refused', () => {
  const { manifest } = makeSite();
  return refused(seal({ ...manifest }).replace(/"release":"./, '"release":"x'), 'manifest_damaged', /release/);
});
