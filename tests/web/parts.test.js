import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { createHash } from '../../web/family/hash.js';
import { completeHost } from '../../web/family/host.js';
import { createLocks } from '../../web/family/locks.js';
import { PartSource } from '../../web/family/parts.js';
import { Store } from '../../web/family/store.js';
import { ROOT, SHORT_MS, blockedLocks, faults, hex, makeCaches, makeNetwork, makeOptions, makeSite, quotaExceeded } from './fakes.js';

async function makeSource({ site = makeSite(), caches = makeCaches(), ...more } = {}) {
  const network = makeNetwork(site);
  const { host: given, idleMs, retryMs } = makeOptions({ network, caches, ...more });
  const host = completeHost(given);
  const notices = [];
  const store = await Store.open(host, new URL(`${ROOT}family.json`), (notice) => notices.push(notice));
  const seen = { highest: 0 };
  const source = new PartSource({
    ...{ root: new URL(ROOT), site: ROOT, store, host, idleMs, retryMs },
    hash: createHash(crypto.subtle),
    withLock: createLocks(undefined),
    onChange: () => (seen.highest = Math.max(seen.highest, source?.receivedBytes([part]) ?? 0)),
  });
  const part = site.manifest.base.delivery.parts[0];
  return { network, caches, store, source, part, site, notices, seen };
}

test('a part is fetched once and then comes from the store', async () => {
  const { network, source, part } = await makeSource();
  for (let i = 0; i < 2; i += 1) assert.equal(hex(await source.obtain(part)), part.sha256);
  assert.deepEqual(network.requests, [part.path]);
});

test('two who want the same part at once cause one download', async () => {
  const { network, source, part } = await makeSource();
  const both = await Promise.all([source.obtain(part), source.obtain(part)]);
  assert.deepEqual(both.map(hex), [part.sha256, part.sha256]);
  assert.notEqual(both[0].buffer, both[1].buffer, 'each owns its buffer');
  assert.equal(network.requests.length, 1);
});

test('what rotted in the store is evicted and fetched again', async () => {
  const { caches, network, source, store, part } = await makeSource();
  await source.obtain(part);
  const [entries] = caches.stores.values();
  const [url] = entries.keys();
  for (const rot of [new Uint8Array(part.bytes), new Uint8Array(3)]) {
    entries.set(url, new Response(rot));
    assert.equal(hex(await source.obtain(part)), part.sha256);
    assert.equal(hex(await store.get(part.sha256)), part.sha256);
  }
  assert.equal(network.requests.length, 3);
});

const SILENT = { silence: faults.silent, 'no answer': faults.mute };

describe('what passes by itself is tried again', { concurrency: true }, () => {
  const passing = {
    'status 500': faults.status(500),
    'status 429': faults.status(429),
    'a refused connection': faults.refused,
    'a short body': faults.short,
    'a flipped bit': faults.flipped,
    ...SILENT,
  };
  for (const [name, fault] of Object.entries(passing)) {
    test(name, async () => {
      const { network, source, part, seen } = await makeSource(name in SILENT ? { idleMs: SHORT_MS } : {});
      network.faults.set(part.path, [fault, fault]);
      assert.equal(hex(await source.obtain(part)), part.sha256);
      assert.equal(network.requests.length, 3);
      assert.equal(seen.highest, part.bytes, 'progress ends at 100 % and not above');
    });
  }
});

describe('what stays wrong has a code and leaves nothing behind', { concurrency: true }, () => {
  const lasting = [
    ['a web page', faults.html, 'part_is_html', 1],
    ['a Git LFS pointer', faults.lfs, 'part_is_lfs_pointer', 1],
    ['status 404', faults.status(404), 'part_missing', 1],
    ['too many bytes', faults.long, 'part_too_long', 1],
    ['status 503', faults.status(503), 'server_error', 3],
    ['half of the bytes', faults.short, 'part_too_short', 3],
    ['flipped bits', faults.flipped, 'part_hash_mismatch', 3],
    ['no connection', faults.refused, 'network', 3],
    ['silence', faults.silent, 'network', 3],
  ];
  for (const [name, fault, code, requestCount] of lasting) {
    test(name, async () => {
      const { network, source, store, part } = await makeSource(name in SILENT ? { idleMs: SHORT_MS } : {});
      network.faults.set(part.path, Array(requestCount).fill(fault));
      await assert.rejects(source.obtain(part), { code });
      assert.equal(network.requests.length, requestCount);
      assert.equal(source.receivedBytes([part]), 0);
      assert.deepEqual(await store.list(), []);
      assert.equal(hex(await source.obtain(part)), part.sha256, 'the next try works');
    });
  }
});

test('without a connection the device is offline, at once', async () => {
  const { network, source, part } = await makeSource();
  network.isOnline = false;
  await assert.rejects(source.obtain(part), { code: 'offline' });
  assert.equal(network.requests.length, 1);
});

test('an abort ends a download and its pauses', async () => {
  for (const fault of [faults.silent, faults.refused]) {
    const { network, source, part } = await makeSource();
    network.faults.set(part.path, [fault]);
    const controller = new AbortController();
    const download = source.obtain(part, controller.signal);
    setImmediate(() => controller.abort());
    await assert.rejects(download, { code: 'aborted' });
    assert.equal(hex(await source.obtain(part)), part.sha256);
  }
});

test('parts are read in order, one ahead', async () => {
  const { network, source, site } = await makeSource();
  const { parts } = site.manifest.base.delivery;
  const reader = source.read(parts);
  assert.equal(hex((await reader.next()).value), parts[0].sha256);
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(network.requests, parts.map(({ path }) => path));
  assert.equal(hex((await reader.next()).value), parts[1].sha256);
  assert.equal((await reader.next()).done, true);
});

describe('locks that the browser refuses are replaced by this tab’s own', () => {
  for (const [how, locks] of Object.entries(blockedLocks)) {
    test(how, async () => {
      const withLock = createLocks(locks);
      const log = [];
      const action = (name) => async () => {
        log.push(`${name} begins`);
        await new Promise((resolve) => setImmediate(resolve));
        log.push(`${name} ends`);
        return name;
      };
      const both = [withLock('part', undefined, action('a')), withLock('part', undefined, action('b'))];
      assert.deepEqual(await Promise.all(both), ['a', 'b']);
      assert.deepEqual(log, ['a begins', 'a ends', 'b begins', 'b ends']);
      await assert.rejects(withLock('part', AbortSignal.abort(), action('c')), { code: 'aborted' });
    });
  }

  test('but an action that fails by itself does not run twice', async () => {
    const withLock = createLocks({ request: async (name, options, action) => action() });
    let count = 0;
    const action = async () => {
      count += 1;
      throw new Error('its own');
    };
    await assert.rejects(withLock('part', undefined, action), /its own/);
    assert.equal(count, 1);
  });

  test('and an abort in the queue is an abort', async () => {
    const controller = new AbortController();
    const queue = (name, { signal }) =>
      new Promise((_, reject) => signal.addEventListener('abort', () => reject(new DOMException('', 'AbortError'))));
    const waiting = createLocks({ request: queue })('part', controller.signal, async () => assert.fail('must not run'));
    controller.abort();
    await assert.rejects(waiting, { code: 'aborted' });
  });
});

describe('storage that refuses is replaced by memory, and says so', () => {
  const cases = [
    ['full', { refuse: quotaExceeded() }, 'full'],
    ['denied at the first write', { refuse: new DOMException('no', 'SecurityError') }, 'denied'],
    ['denied when it is opened', { denied: true }, 'denied'],
  ];
  for (const [name, trouble, notice] of cases) {
    test(name, async () => {
      const { network, source, store, part, notices } = await makeSource({ caches: makeCaches(trouble) });
      for (let i = 0; i < 2; i += 1) assert.equal(hex(await source.obtain(part)), part.sha256);
      assert.equal(network.requests.length, 1);
      assert.deepEqual(notices, [notice]);
      assert.deepEqual([store.kind, store.notice], ['memory', notice]);
      await source.remove(part.sha256);
      assert.deepEqual(await store.list(), []);
    });
  }
});
