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
