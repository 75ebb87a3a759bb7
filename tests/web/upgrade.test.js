// A visitor who comes back after a release with another base.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { openFamily } from '../../web/family/index.js';
import { ROOT, SHORT_MS, faults, hex, makeCaches, makeNetwork, makeOptions, makeSite, makeWorkers, noise, quotaExceeded, upgradeFrom } from './fakes.js';

const OLD = makeSite();
const PATCH_BYTES = 250;
const alone = () => ({ request: async (name, options, action) => action(), query: async () => ({ held: [] }) });
const script = (more = {}) => ({ router: { logs: [-1, -3, -4] }, base: { text: 'hello' }, upgrade: { file: NEW.base }, ...more });

/** The second release, whose base differs in every part. */
function makeNew({ patch = noise(77, PATCH_BYTES), change = () => undefined } = {}) {
  const { patch: bytes, ...upgrade } = upgradeFrom(OLD, patch);
  const site = makeSite({ salt: 100, change: (m) => (m.base.upgrades = [upgrade], change(m)) });
  site.files.set(upgrade.delivery.parts[0].path, bytes);
  return site;
}
const NEW = makeNew();
const PATCH = NEW.manifest.base.upgrades[0].delivery.parts[0];

/** What a visit of the first release has left: its base, all but `without`, and a patch. */
async function keptFromOld() {
  const caches = makeCaches();
  const family = await openFamily(`${ROOT}family.json`, makeOptions({ network: makeNetwork(OLD), caches }));
  await family.prefetch('media');
  family.close();
  return caches;
}

async function comeBack({ site = NEW, locks = alone(), plan = script(), caches: given, ...more } = {}) {
  const caches = given ?? (await keptFromOld());
  const network = makeNetwork(site);
  const workers = makeWorkers(plan);
  const events = [];
  const options = makeOptions({ network, caches, workers, onEvent: (event) => events.push(event), ...more });
  options.host.locks = locks;
  const family = await openFamily(`${ROOT}family.json`, options);
  const kept = async () => (await family.list()).map(({ sha256 }) => sha256).sort();
  const status = (id) => family.members.find((member) => member.id === id);
  const upgrades = () => events.filter(({ type }) => type === 'upgrade');
  const fetched = (parts) => parts.filter(({ path }) => network.requests.includes(path)).length;
  return { family, network, workers, caches, kept, status, upgrades, fetched };
}

const NEW_PARTS = NEW.manifest.base.delivery.parts;
const OLD_PARTS = OLD.manifest.base.delivery.parts;
const hashes = (...parts) => parts.map(({ sha256 }) => sha256).sort();

test('who has the earlier base downloads the patch and nothing else for the base', async () => {
  const { family, workers, kept, upgrades, fetched } = await comeBack();
  assert.equal((await family.respond(['hi'])).envelope.text, 'hello');
  assert.deepEqual([fetched(NEW_PARTS), fetched(OLD_PARTS), fetched([PATCH])], [0, 0, 1]);
  assert.deepEqual(workers.born, ['upgrade', 'router', 'base']);
  assert.equal(workers.alive.size, 2, 'the worker that rebuilt it has ended');
  assert.deepEqual(upgrades(), [{ type: 'upgrade', fromSha256: OLD.manifest.base.sha256, error: null }]);
  const { engine, router } = NEW.manifest;
  assert.deepEqual(await kept(), hashes(engine, ...NEW_PARTS, ...router.delivery.parts), 'the earlier release is gone');
});

test('until then the earlier release stays, and the base says what it costs', async () => {
  const { family, kept, status } = await comeBack();
  const { engine, base, specialists } = OLD.manifest;
  assert.deepEqual(await kept(), hashes(engine, ...base.delivery.parts, ...specialists[1].delivery.parts));
  const { kind, downloadBytes, haveBytes, state } = status('base');
  assert.deepEqual({ kind, downloadBytes, haveBytes, state }, { kind: 'patch', downloadBytes: PATCH_BYTES, haveBytes: 0, state: 'absent' });
  const users = Object.fromEntries((await family.list()).map(({ sha256, usedBy }) => [sha256, usedBy]));
  assert.deepEqual(OLD_PARTS.map(({ sha256 }) => users[sha256]), [['base'], ['base']]);
  await family.removeOld();
  assert.deepEqual(await kept(), hashes(engine, ...OLD_PARTS), 'what an upgrade starts from is not old');
  await family.prefetch('base');
  const after = status('base');
  assert.deepEqual([after.kind, after.downloadBytes, after.haveBytes, after.state], ['whole', 4500, 4500, 'stored']);
  assert.deepEqual(await kept(), hashes(engine, ...NEW_PARTS));
});

test('progress counts what really travels, and never falls', async () => {
  const { family } = await comeBack();
  const seen = [];
  await family.respond(['hi'], { onProgress: (progress) => progress.phase === 'download' && seen.push(progress) });
  const { router, engine } = NEW.manifest;
  const total = engine.bytes + PATCH_BYTES + router.delivery.bytes;
  assert.deepEqual([...new Set(seen.map(({ totalBytes }) => totalBytes))], [total]);
  assert.deepEqual(seen.map(({ haveBytes }) => haveBytes), seen.map(({ haveBytes }) => haveBytes).sort((a, b) => a - b));
  assert.equal(seen.at(-1).haveBytes, total);
});

describe('the whole base is downloaded, and the answer is the same, when', () => {
  const fail = (code) => ({ upgrade: () => Promise.reject(Object.assign(new Error(code), { code })) });
  const rot = (caches) => {
    const [entries] = caches.stores.values();
    const url = [...entries.keys()].find((key) => key.endsWith(OLD_PARTS[1].sha256));
    entries.set(url, new Response(new Uint8Array(OLD_PARTS[1].bytes), { headers: { 'content-length': String(OLD_PARTS[1].bytes) } }));
  };
  const cases = {
    'the patch is missing': { fault: faults.status(404), code: 'part_missing' },
    'the patch is a web page': { fault: faults.html, code: 'part_is_html' },
    'the patch is damaged': { fault: faults.flipped, code: 'part_hash_mismatch' },
    'the host breaks at the patch': { fault: faults.status(500), code: 'server_error' },
    'the kept base has rotted': { spoil: rot, code: 'part_missing' },
    'the engine refuses the patch': { plan: fail('patch_corrupt'), code: 'patch_corrupt' },
    'the worker runs out of memory': { plan: fail('out_of_memory'), code: 'out_of_memory' },
    'something else comes out': { plan: { upgrade: { file: noise(3, 4500) } }, code: 'file_hash_mismatch' },
  };
  for (const [name, { fault, spoil, plan, code }] of Object.entries(cases)) {
    test(name, async () => {
      const caches = await keptFromOld();
      const { family, network, kept, upgrades, fetched, status } = await comeBack({ caches, plan: script(plan) });
      if (fault) network.faults.set(PATCH.path, Array(3).fill(fault));
      spoil?.(caches);
      const seen = [];
      const { envelope } = await family.respond(['hi'], { onProgress: (progress) => progress.phase === 'download' && seen.push(progress) });
      assert.equal(envelope.text, 'hello');
      assert.equal(fetched(NEW_PARTS), 2);
      assert.deepEqual(upgrades().map(({ error }) => error.code), [code]);
      assert.equal(status('base').error, null);
      const router = seen.filter(({ member }) => member === 'router');
      assert.equal(router.at(-1).totalBytes, 8 + 4500 + NEW.manifest.router.delivery.bytes);
      assert.equal(router.at(-1).haveBytes, router.at(-1).totalBytes);
      const here = await kept();
      assert.deepEqual(hashes(...NEW_PARTS).every((hash) => here.includes(hash)), true);
      assert.deepEqual(hashes(...OLD_PARTS).some((hash) => here.includes(hash)), false);
    });
  }

  test('the worker falls silent', async () => {
    const visit = await comeBack({ silenceMs: SHORT_MS });
    visit.workers.deaths = { upgrade: 1 };
    assert.equal((await visit.family.respond(['hi'])).envelope.text, 'hello');
    assert.deepEqual([visit.fetched(NEW_PARTS), visit.upgrades()[0].error.code], [2, 'worker_lost']);
    assert.equal(visit.workers.alive.size, 2);
  });

  test('the earlier base is not complete', async () => {
    const caches = await keptFromOld();
    const [entries] = caches.stores.values();
    entries.delete([...entries.keys()].find((key) => key.endsWith(OLD_PARTS[0].sha256)));
    const { family, kept, upgrades, fetched } = await comeBack({ caches });
    assert.deepEqual(await kept(), hashes(NEW.manifest.engine), 'what is left of it goes at once');
    await family.respond(['hi']);
    assert.deepEqual([fetched(NEW_PARTS), fetched([PATCH]), upgrades()], [2, 0, []]);
  });

  test('less than the patch is missing of it', async () => {
    const site = makeNew({ patch: noise(78, 2000) });
    const caches = await keptFromOld();
    const first = await comeBack({ site, caches });
    const [part] = NEW_PARTS;
    const [entries] = caches.stores.values();
    const bytes = site.files.get(part.path);
    entries.set(`${ROOT}stored/${part.sha256}`, new Response(bytes, { headers: { 'content-length': String(bytes.length) } }));
    await first.family.refresh();
    assert.equal(first.status('base').downloadBytes, 4500);
    await first.family.respond(['hi']);
    assert.deepEqual([first.fetched(NEW_PARTS), first.upgrades()], [1, []]);
  });
});

test('without a connection there is no base, and the next try upgrades', async () => {
  const { family, network, upgrades, fetched } = await comeBack();
  network.isOnline = false;
  assert.equal((await family.respond(['hi'])).envelope.error_code, 'offline');
  network.isOnline = true;
  assert.equal((await family.respond(['hi'])).envelope.text, 'hello');
  assert.deepEqual([fetched(NEW_PARTS), upgrades().length], [0, 1]);
});

test('an engine that cannot be had is no fault of the upgrade', async () => {
  const { engine } = NEW.manifest;
  const caches = await keptFromOld();
  const [entries] = caches.stores.values();
  entries.delete([...entries.keys()].find((key) => key.endsWith(engine.sha256)));
  const { family, network, upgrades, fetched } = await comeBack({ caches });
  network.faults.set(engine.path, Array(6).fill(faults.status(404)));
  assert.equal((await family.respond(['hi'])).envelope.error_code, 'part_missing');
  assert.deepEqual([fetched(NEW_PARTS), upgrades()], [0, []]);
  network.faults.clear();
  assert.equal((await family.respond(['hi'])).envelope.text, 'hello');
  assert.deepEqual([fetched(NEW_PARTS), fetched([PATCH])], [0, 1]);
});

test('an abort while the patch arrives is an abort, and the next try upgrades', async () => {
  const { family, network, fetched } = await comeBack();
  network.faults.set(PATCH.path, [faults.silent]);
  const controller = new AbortController();
  const onProgress = ({ haveBytes }) => haveBytes > 8 && controller.abort();
  await assert.rejects(family.respond(['hi'], { signal: controller.signal, onProgress }), { code: 'aborted' });
  assert.equal((await family.respond(['hi'])).envelope.text, 'hello');
  assert.equal(fetched(NEW_PARTS), 0);
});

test('a tab that has the earlier release open keeps its files', async () => {
  const held = [{ name: `saguaro-release ${ROOT}family.json ${'0'.repeat(64)}` }];
  const locks = { ...alone(), query: async () => ({ held }) };
  const { family, kept } = await comeBack({ locks });
  await family.respond(['hi']);
  const here = await kept();
  assert.ok(hashes(...OLD_PARTS, ...NEW_PARTS).every((hash) => here.includes(hash)));
});

test('a full disk keeps the earlier base, since the new one is only in memory', async () => {
  const visit = await comeBack();
  visit.caches.refuse = quotaExceeded();
  assert.equal((await visit.family.respond(['hi'])).envelope.text, 'hello');
  assert.equal(visit.family.status().storage.notice, 'full');
  const here = await visit.kept();
  assert.ok(hashes(...OLD_PARTS, ...NEW_PARTS).every((hash) => here.includes(hash)));
});

test('several who need the base at once cause one upgrade', async () => {
  const { family, workers, fetched, network } = await comeBack({ locks: null });
  await Promise.all([family.respond(['hi']), family.prefetch('home'), family.prefetch('base')]);
  assert.deepEqual(workers.born.filter((id) => id === 'upgrade'), ['upgrade']);
  assert.deepEqual([fetched(NEW_PARTS), network.requests.filter((path) => path === PATCH.path).length], [0, 1]);
});

test('a base that is deleted takes along what it would have been made from', async () => {
  const { family, kept, fetched } = await comeBack();
  await family.remove('base');
  const { engine, specialists } = OLD.manifest;
  assert.deepEqual(await kept(), hashes(engine, ...specialists[1].delivery.parts));
  await family.respond(['hi']);
  assert.deepEqual([fetched(NEW_PARTS), fetched([PATCH])], [2, 0]);
});

test('of several upgrades the cheapest that can be done is taken', async () => {
  const change = (m) => {
    const other = structuredClone(m.base.upgrades[0]);
    const bytes = noise(79, 100);
    Object.assign(other, { from_sha256: hex(noise(80, 9)), from_parts: [{ bytes: 4500, sha256: hex(noise(80, 9)) }] });
    other.delivery = { kind: 'patch', bytes: 100, sha256: hex(bytes), parts: [{ path: `parts/${hex(bytes)}.bin`, bytes: 100, sha256: hex(bytes) }] };
    m.base.upgrades.unshift(other);
  };
  const { family, fetched } = await comeBack({ site: makeNew({ change }) });
  await family.respond(['hi']);
  assert.deepEqual([fetched(NEW_PARTS), fetched([PATCH])], [0, 1]);
});
