// Which of the two engines a visitor takes.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { EngineFile } from '../../web/family/engine_file.js';
import { FamilyError } from '../../web/family/errors.js';
import { openFamily } from '../../web/family/index.js';
import { completeHost } from '../../web/family/host.js';
import { ROOT, faults, hex, makeCaches, makeNetwork, makeOptions, makeSite, makeWorkers, settle } from './fakes.js';

/** The smallest module but one: it compiles, and is another file. */
const RELAXED = Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, 0, 2, 1, 0x78);
const PART = { path: `engine.${hex(RELAXED).slice(0, 12)}.wasm`, bytes: RELAXED.length, sha256: hex(RELAXED) };

function makeRelaxed({ numerics = 'fast', bytes = RELAXED } = {}) {
  const relaxed = { path: `engine.${hex(bytes).slice(0, 12)}.wasm`, bytes: bytes.length, sha256: hex(bytes) };
  const site = makeSite({ change: (m) => (Object.assign(m.engine, { relaxed }), (m.numerics = numerics)) });
  site.files.set(relaxed.path, bytes);
  return site;
}

async function open({ site = makeRelaxed(), hasRelaxedSimd = true, caches = makeCaches() } = {}) {
  const network = makeNetwork(site);
  const options = makeOptions({ network, caches, workers: makeWorkers({ router: { logs: [-1, -3, -4] }, base: { text: 'hello' } }) });
  options.host.hasRelaxedSimd = hasRelaxedSimd;
  const family = await openFamily(`${ROOT}family.json`, options);
  const engines = () => network.requests.filter((path) => path.endsWith('.wasm'));
  const ask = async () => (await family.respond(['hi'])).envelope;
  const variant = () => [family.status().engine.variant, family.status().engine.error?.code ?? null];
  return { family, network, caches, engines, ask, variant, plain: site.manifest.engine.path };
}

test('the relaxed one alone, in fast, where the browser runs it', async () => {
  const { ask, engines, family, variant } = await open();
  assert.equal((await ask()).text, 'hello');
  assert.deepEqual([engines(), variant()], [[PART.path], ['relaxed', null]]);
  const { bytes, haveBytes } = family.status().engine;
  assert.deepEqual([bytes, haveBytes], [PART.bytes, PART.bytes]);
  assert.ok((await family.list()).some(({ sha256, usedBy }) => sha256 === PART.sha256 && usedBy[0] === 'engine'));
});

describe('the plain one alone', () => {
  const cases = {
    'in exact': { site: makeRelaxed({ numerics: 'exact' }) },
    'where the browser knows no relaxed SIMD': { hasRelaxedSimd: false },
    'where there is no other': { site: makeSite({ change: (m) => (m.numerics = 'fast') }) },
  };
  for (const [name, given] of Object.entries(cases)) {
    test(name, async () => {
      const { ask, engines, variant, plain } = await open(given);
      assert.equal((await ask()).text, 'hello');
      assert.deepEqual([engines(), variant()], [[plain], ['plain', null]]);
    });
  }
});

describe('the plain one instead', () => {
  const cases = {
    'when the other is missing': [faults.status(404), 'part_missing'],
    'when the other is damaged': [faults.flipped, 'part_hash_mismatch'],
    'when the host breaks there': [faults.status(500), 'server_error'],
    'when a web page comes instead': [faults.html, 'part_is_html'],
  };
  for (const [name, [fault, code]] of Object.entries(cases)) {
    test(name, async () => {
      const { ask, network, engines, variant, plain, family } = await open();
      network.faults.set(PART.path, Array(3).fill(fault));
      const seen = [];
      await family.respond(['hi'], { onProgress: (progress) => progress.phase === 'download' && seen.push(progress) });
      assert.deepEqual(variant(), ['plain', code]);
      assert.equal(engines().at(-1), plain);
      assert.equal(seen.at(-1).haveBytes, seen.at(-1).totalBytes);
      const count = engines().length;
      await ask();
      assert.equal(engines().length, count, 'and it stays with it');
    });
  }

  test('when the other does not compile', async () => {
    const { ask, engines, variant, plain } = await open({ site: makeRelaxed({ bytes: RELAXED.slice(0, 9) }) });
    assert.equal((await ask()).text, 'hello');
    assert.deepEqual([engines().at(-1), variant()], [plain, ['plain', 'engine_unsupported']]);
  });

  test('when a member is only fetched, too', async () => {
    const { family, network, engines, variant, plain } = await open();
    network.faults.set(PART.path, [faults.status(404)]);
    await family.prefetch('home');
    assert.deepEqual([engines(), variant()], [[PART.path, plain], ['plain', 'part_missing']]);
  });

  test('when it is the one that is kept, and there is no network', async () => {
    const caches = makeCaches();
    const first = await open({ caches, hasRelaxedSimd: false });
    await first.ask();
    const again = await open({ caches });
    again.network.isOnline = false;
    assert.equal((await again.ask()).text, 'hello');
    assert.deepEqual(again.variant(), ['plain', 'offline']);
  });
});

test('the relaxed one works without a network when it is kept', async () => {
  const caches = makeCaches();
  const first = await open({ caches });
  await first.ask();
  const again = await open({ caches });
  again.network.isOnline = false;
  assert.equal((await again.ask()).text, 'hello');
  assert.deepEqual([again.engines(), again.variant()], [[], ['relaxed', null]]);
});

test('with neither there is an error, and the next try begins with the relaxed one', async () => {
  const { ask, network, variant } = await open();
  network.isOnline = false;
  assert.equal((await ask()).error_code, 'offline');
  network.isOnline = true;
  assert.equal((await ask()).text, 'hello');
  assert.deepEqual(variant(), ['relaxed', null]);
});

describe('a download and a compilation whose first file fails for both', () => {
  const relaxed = { path: 'relaxed', bytes: 2, sha256: '' };
  const manifest = { numerics: 'fast', engine: { path: 'plain', bytes: 1, sha256: '', relaxed } };

  /** Both at once; `answers` are for the plain file, in the order of asking, and settled by the test. */
  function start() {
    const [moment, answers] = [Promise.withResolvers(), []];
    const obtain = async ({ path }) => {
      await moment.promise;
      if (path === 'relaxed') throw new FamilyError('part_missing', path);
      answers.push(Promise.withResolvers());
      return answers.at(-1).promise;
    };
    const { signal } = new AbortController();
    const file = new EngineFile(manifest, { obtain, receivedBytes: () => 0 }, { hasRelaxedSimd: true }, signal);
    const tries = [file.fetch(signal), file.compiled()];
    const settled = tries.map((one) => one.then(() => 'done', ({ message }) => message));
    moment.resolve();
    return { file, settled, answers };
  }

  const said = ({ part, status }) => [part.path, status.variant, status.error?.code ?? null];
  const arrive = (answer) => answer.resolve(RELAXED);
  const fail = (answer) => answer.reject(new FamilyError('offline', 'no network'));

  test('and the second, too: the next try begins with the first', async () => {
    const { file, settled, answers } = start();
    await settle();
    answers.forEach(fail);
    assert.deepEqual(await Promise.all(settled), ['no network', 'no network']);
    assert.deepEqual(said(file), ['relaxed', 'relaxed', null]);
  });

  for (const first of [0, 1]) {
    test(`and the second file for the download alone, which ends ${['first', 'last'][first]}`, async () => {
      const { file, settled, answers } = start();
      await settle();
      const ends = [() => fail(answers[0]), () => arrive(answers[1])];
      for (const at of [first, 1 - first]) {
        ends[at]();
        await settled[at];
      }
      assert.deepEqual(await Promise.all(settled), ['no network', 'done']);
      assert.deepEqual(said(file), ['plain', 'plain', 'part_missing']);
    });
  }
});

test('the feature test asks for the instruction itself', () => {
  let asked = null;
  const { validate } = WebAssembly;
  WebAssembly.validate = (bytes) => validate((asked = bytes));
  try {
    assert.equal(completeHost({}).hasRelaxedSimd, true);
  } finally {
    WebAssembly.validate = validate;
  }
  const at = asked.lastIndexOf(0xfd);
  assert.deepEqual([...asked.slice(at, at + 3)], [0xfd, 0x93, 0x02]);
  assert.equal(validate(asked.with(at + 2, 0x7f)), false, 'an instruction that does not exist');
});
