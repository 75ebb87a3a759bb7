import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { openFamily } from '../../web/family/index.js';
import { ROOT, faults, makeCaches, makeGate, makeNetwork, makeOptions, makeSite, settle } from './fakes.js';
import { open } from './opening.js';

describe('the manifest', () => {
  test('is asked for again when it comes damaged', async () => {
    const network = makeNetwork(makeSite());
    network.faults.set('family.json', [faults.flipped]);
    const family = await openFamily(`${ROOT}family.json`, makeOptions({ network }));
    assert.equal(family.status().manifestFrom, 'network');
  });

  test('is the one of the last visit when it stays damaged', async () => {
    const caches = makeCaches();
    const { site } = await open({ caches });
    const network = makeNetwork(site);
    network.faults.set('family.json', [faults.flipped, faults.flipped]);
    const family = await openFamily(`${ROOT}family.json`, makeOptions({ network, caches }));
    const { manifestFrom, manifestError } = family.status();
    assert.deepEqual([manifestFrom, manifestError.code], ['saved', 'manifest_damaged']);
  });

  /** A visit whose network says nothing, seen by a clock that the test moves. */
  async function silentVisit(t, caches, answer) {
    const network = makeNetwork(makeSite());
    const gate = makeGate();
    network.faults.set('family.json', [(bytes, signal) => (gate.pass(), answer(bytes, signal))]);
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const options = makeOptions({ network, caches, idleMs: 30_000 });
    const visit = { isOver: false, opening: openFamily(`${ROOT}family.json`, options) };
    const end = () => void (visit.isOver = true);
    visit.opening.then(end, end);
    await gate.begun;
    return visit;
  }

  test('is the one of the last visit after five seconds without a byte', async (t) => {
    const caches = makeCaches();
    await open({ caches });
    const visit = await silentVisit(t, caches, faults.mute);
    t.mock.timers.tick(4999);
    await settle();
    assert.equal(visit.isOver, false);
    t.mock.timers.tick(1);
    const { manifestFrom, manifestError } = (await visit.opening).status();
    assert.deepEqual([manifestFrom, manifestError.code], ['saved', 'network']);
    assert.match(manifestError.message, /no byte arrived for 5 s/);
  });

  test('is waited for while bytes arrive', async (t) => {
    const caches = makeCaches();
    await open({ caches });
    let controller;
    const visit = await silentVisit(t, caches, () => new Response(new ReadableStream({ start: (given) => (controller = given) })));
    const bytes = makeSite().files.get('family.json');
    for (const chunk of [bytes.slice(0, 9), bytes.slice(9)]) {
      t.mock.timers.tick(4999);
      controller.enqueue(chunk);
      await settle();
    }
    controller.close();
    assert.equal((await visit.opening).status().manifestFrom, 'network');
  });

  test('is given up after the time of a download on a first visit', async (t) => {
    const visit = await silentVisit(t, makeCaches(), faults.mute);
    t.mock.timers.tick(29_999);
    await settle();
    assert.equal(visit.isOver, false);
    t.mock.timers.tick(1);
    await assert.rejects(visit.opening, { code: 'network' });
  });

  test('is named as it was asked for', async () => {
    const options = makeOptions({ network: makeNetwork(makeSite()) });
    await assert.rejects(openFamily(`${ROOT}nope.json?x`, options), { code: 'manifest_missing', message: /^https:\/\/example\.org\/models\/nope\.json\?x: / });
    const network = makeNetwork(makeSite({ change: (m) => (m.numerics = 'vague') }));
    await assert.rejects(openFamily(`${ROOT}family.json`, makeOptions({ network })), { message: /^https:\/\/example\.org\/models\/family\.json: numerics/ });
  });

  for (const [name, fault, code] of [
    ['damaged', faults.flipped, 'manifest_damaged'],
    ['a web page', faults.html, 'manifest_missing'],
    ['missing', faults.status(404), 'manifest_missing'],
    ['out of order', faults.status(500), 'server_error'],
    ['out of reach', faults.refused, 'network'],
  ]) {
    test(`has a code when it is ${name} on a first visit`, async () => {
      const network = makeNetwork(makeSite());
      network.faults.set('family.json', [fault, fault]);
      await assert.rejects(openFamily(`${ROOT}family.json`, makeOptions({ network })), { code });
    });
  }

  test('that changed on the site explains a missing part', async () => {
    const { family, network } = await open();
    const later = makeSite({ salt: 50 });
    network.site = later;
    const { envelope } = await family.respond(['hi']);
    assert.equal(envelope.error_code, 'release_changed');
  });
});
