import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { openFamily } from '../../web/family/index.js';
import { ROOT, blockedLocks, faults, makeCaches, makeGate, makeNetwork, makeOptions, makeSite, makeWorkers, settle } from './fakes.js';
import { open, turned } from './opening.js';

describe('the store', () => {
  test('serves a second visit without the network', async () => {
    const caches = makeCaches();
    const first = await open({ caches });
    await first.family.respond(['lights on']);
    first.family.close();
    const network = makeNetwork(first.site);
    network.isOnline = false;
    const options = makeOptions({ network, caches, workers: makeWorkers(turned('home')) });
    const family = await openFamily(`${ROOT}family.json`, options);
    assert.equal(family.status().manifestFrom, 'saved');
    assert.equal(family.status().manifestError.code, 'offline');
    assert.equal((await family.respond(['lights on'])).envelope.member, 'home');
  });

  for (const [how, locks] of Object.entries(blockedLocks)) {
    test(`answers from memory where site data is blocked, locks too (${how})`, async () => {
      const network = makeNetwork(makeSite());
      const options = makeOptions({ network, caches: makeCaches({ denied: true }), workers: makeWorkers(turned('home')) });
      options.host.locks = locks;
      const family = await openFamily(`${ROOT}family.json`, options);
      assert.equal((await family.respond(['lights on'])).envelope.member, 'home');
      assert.deepEqual(family.status().storage, { kind: 'memory', notice: 'denied' });
      family.close();
    });
  }

  test('lists, removes one member, removes all', async () => {
    const { family, states } = await open();
    await family.prefetch('home');
    assert.deepEqual(states(), { base: 'stored', router: 'absent', home: 'stored', media: 'absent' });
    assert.equal(family.status().engine.haveBytes, 8);
    const users = (await family.list()).flatMap(({ usedBy }) => usedBy).sort();
    assert.deepEqual(users, ['base', 'base', 'engine', 'home', 'home']);
    await family.remove('home');
    assert.equal(states().home, 'absent');
    await family.removeAll();
    assert.deepEqual(await family.list(), []);
    assert.equal(family.status().engine.haveBytes, 0);
    assert.equal((await family.respond(['lights on'])).envelope.member, 'home');
  });

  test('keeps the manifest when everything is removed, so that the family opens offline', async () => {
    const caches = makeCaches();
    const { family, network, options } = await open({ caches });
    await family.prefetch('base');
    await family.removeAll();
    family.close();
    network.isOnline = false;
    const later = await openFamily(`${ROOT}family.json`, options);
    assert.equal(later.status().manifestFrom, 'saved');
    assert.deepEqual(await later.list(), []);
  });

  test('is one per manifest, wherever that lies: another with the same path shares nothing', async () => {
    const caches = makeCaches();
    const first = await open({ caches });
    await first.family.prefetch('home');
    const site = makeSite({ salt: 100 });
    const names = [];
    const locks = { request: async (name, options, action) => (names.push(name), action(null)), query: async () => ({ held: [] }) };
    for (const url of ['https://example.com/models/family.json', 'https://example.org/models/other.json']) {
      const network = makeNetwork(site);
      const answer = network.fetch;
      network.fetch = (input, init) => answer(String(input).replace(/^.*models.(other|family).json/, `${ROOT}family.json`), init);
      const options = makeOptions({ network, caches });
      options.host.locks = locks;
      const family = await openFamily(url, options);
      assert.deepEqual(await family.list(), []);
      assert.ok(names.pop().includes(url));
    }
    assert.equal((await first.family.list()).length, 5, 'and deletes nothing as old');
  });

  test('takes over what earlier versions kept by the path alone', async () => {
    const caches = makeCaches();
    const first = await open({ caches });
    await first.family.prefetch('home');
    const [[name, entries]] = caches.stores;
    caches.stores.delete(name);
    caches.stores.set('saguaro-parts /models/', entries);
    const { family, network } = await open({ caches });
    assert.deepEqual([...caches.stores.keys()], [name]);
    await family.prefetch('home');
    assert.deepEqual(network.requests, ['family.json']);
  });

  describe('does not get back what is deleted while it arrives', () => {
    const engine = ({ manifest }) => manifest.engine.path;
    const first = (member) => ({ manifest }) => [manifest.base, ...manifest.specialists].find(({ id }) => id === member).delivery.parts[0].path;
    const all = (family) => family.removeAll();
    const cases = [
      ['a specialist', first('home'), (family) => family.remove('home')],
      ['the base, for a specialist', first('base'), (family) => family.remove('base')],
      ['everything', first('base'), all],
      ['the engine', engine, all],
    ];
    for (const [name, path, remove] of cases) {
      test(`${name}: a download`, async () => {
        const gate = makeGate();
        const { family, network, site, states } = await open();
        network.faults.set(path(site), [faults.held(gate)]);
        const fetching = family.prefetch('home');
        await gate.begun;
        const removing = remove(family);
        gate.open();
        await assert.rejects(fetching, { code: 'asleep' });
        await removing;
        const kept = (await family.list()).map(({ sha256 }) => sha256);
        assert.equal(kept.some((sha256) => path(site).includes(sha256.slice(0, 12))), false);
        assert.deepEqual([states().home, family.members[2].error], ['absent', null]);
        await family.prefetch('home');
        assert.equal(states().home, 'stored');
      });
    }

    test('a specialist: a write', async () => {
      const gate = makeGate();
      const site = makeSite();
      const last = site.manifest.specialists[0].delivery.parts.at(-1);
      const caches = makeCaches({ writing: (url) => (url.endsWith(last.sha256) ? gate.pass() : undefined) });
      const { family, states } = await open({ site, caches });
      const fetching = family.prefetch('home');
      await gate.begun;
      const removing = family.remove('home');
      await settle();
      gate.open();
      await Promise.allSettled([fetching, removing]);
      assert.equal((await family.list()).some(({ sha256 }) => sha256 === last.sha256), false);
      assert.equal(states().home, 'absent');
    });
  });

  test('loses the files of older releases when no tab needs them', async () => {
    const caches = makeCaches();
    const locks = { request: async (name, options, action) => action(), query: async () => ({ held: [] }) };
    const old = await open({ caches });
    await old.family.prefetch('media');
    const site = makeSite({ salt: 100 });
    const network = makeNetwork(site);
    const options = makeOptions({ network, caches });
    options.host.locks = locks;
    const family = await openFamily(`${ROOT}family.json`, options);
    assert.deepEqual(await family.list(), [{ ...{ sha256: site.manifest.engine.sha256, bytes: 8 }, usedBy: ['engine'] }]);
  });

  test('keeps them while another tab has the older release open', async () => {
    const caches = makeCaches();
    const held = [{ name: `saguaro-release ${ROOT}family.json ${'0'.repeat(64)}` }];
    const old = await open({ caches });
    await old.family.prefetch('media');
    const options = makeOptions({ network: makeNetwork(makeSite({ salt: 100 })), caches });
    options.host.locks = { request: async (name, _, action) => action(), query: async () => ({ held }) };
    const family = await openFamily(`${ROOT}family.json`, options);
    assert.ok((await family.list()).length > 1);
    assert.ok((await family.removeOld()) > 4500, 'until somebody asks');
  });
});
