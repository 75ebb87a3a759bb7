import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import v8 from 'node:v8';
import vm from 'node:vm';

import { Channel } from '../../web/family/channel.js';
import { SHORT_MS, faults, makeGate, makeSite, makeWorkers } from './fakes.js';
import { CALL, LOGS, baseAlone, open, turned } from './opening.js';

const route = (fields) => ({ overflow: fields.reason !== 'none', ids: ['base', 'home', 'media'], ...fields });

describe('who answers', () => {
  test('the base, when no specialist has positive evidence', async () => {
    const { family, states } = await open({ script: turned('base') });
    const answer = await family.respond(['hi']);
    assert.deepEqual(answer.route, route({ selected: 0, effective: 0, scores: [0, -2, -3], reason: 'none' }));
    assert.equal(answer.envelope.text, 'hello from the base');
    assert.deepEqual(states(), { base: 'ready', router: 'ready', home: 'absent', media: 'absent' });
  });

  test('the specialist that the router prefers, and only it is downloaded', async () => {
    const { family, states, network, site } = await open();
    const answer = await family.respond(['lights on']);
    assert.deepEqual(answer.route, route({ selected: 1, effective: 1, scores: [0, 2, -1], reason: 'none' }));
    assert.deepEqual(answer.envelope.function_calls, [{ name: 'set_light', arguments: { room: 'bedroom' } }]);
    assert.deepEqual(states(), { base: 'stored', router: 'ready', home: 'ready', media: 'absent' });
    const baseParts = site.manifest.base.delivery.parts.map(({ path }) => path);
    assert.deepEqual(network.requests.filter((path) => baseParts.includes(path)), baseParts, 'the base travels once');
  });

  test('members see the recent turns that the manifest grants them', async () => {
    const { family, workers } = await open();
    await family.respond(['one', 'two', 'three', 'four']);
    const [{ prompts }] = workers.prompts;
    assert.match(prompts[0], /<context>two\nthree<\/context>\nfour/);
    assert.equal(prompts.length, 3, 'and what to drop if that is too long');
  });

  test('the base alone, in a family without a router', async () => {
    const site = makeSite({ change: (m) => delete m.router });
    const { family, workers } = await open({ site });
    const answer = await family.respond(['hi']);
    assert.deepEqual(answer.route, route({ selected: 0, effective: 0, scores: [0, null, null], reason: 'none' }));
    assert.deepEqual(workers.born, ['base']);
  });

  test('nobody, when nothing was said', async () => {
    const { family, workers } = await open();
    const { envelope } = await family.respond(['hi', ' \n ']);
    assert.deepEqual([envelope.type, envelope.error_code], ['error', 'empty_turn']);
    assert.deepEqual(workers.born, []);
    assert.equal(family.telemetry.records.length, 0);
  });
});

describe('sampling that no engine could follow is named, and nothing is run', () => {
  const cases = [
    ['a seed that is no whole number', { seed: 1.5 }, /sampling\.seed: is 1\.5, must be a whole number/],
    ['a seed below zero', { seed: -1n }, /seed: is -1/],
    ['a seed beyond 64 bits', { seed: 2n ** 64n }, /seed: is 18446744073709551616, must be .* below 2\^64/],
    ['a seed beyond what a number holds', { seed: 2 ** 53 }, /seed/],
    ['a field without a value', { temperature: 1, seed: undefined }, /sampling\.seed: is undefined/],
    ['a temperature that is no number', { temperature: NaN }, /sampling\.temperature: is NaN, must be a number from 0 to 1e6/],
    ['a temperature as text', { temperature: '1' }, /temperature/],
    ['an infinite temperature', { temperature: Infinity }, /temperature/],
    ['a nucleus of nothing', { top_p: 0 }, /sampling\.top_p: is 0/],
    ['a nucleus that is nothing to the engine', { top_p: 1e-60 }, /top_p/],
    ['a part of a candidate', { top_k: 2.5 }, /sampling\.top_k: is 2\.5/],
    ['another spelling', { topP: 0.5 }, /sampling\.topP: is 0\.5, must be one of temperature, top_p, top_k, seed/],
  ];
  for (const [name, sampling, words] of cases) {
    test(name, async () => {
      const { family, workers } = await open();
      const { envelope, route: record } = await family.respond(['hi'], { sampling });
      assert.deepEqual([envelope.type, envelope.error_code, record.reason], ['error', 'bad_argument', 'none']);
      assert.match(envelope.error, words);
      assert.deepEqual([workers.born, family.telemetry.records], [[], []]);
    });
  }

  test('what is left out is greedy, and the ends of each range are good', async () => {
    const seen = [];
    const base = ({ sampling }) => (seen.push(sampling), { text: 'x' });
    const { family } = await open({ script: turned('base', { base }) });
    const most = { temperature: 1e6, top_p: 1e-45, top_k: 2 ** 32 - 1, seed: 2n ** 64n - 1n };
    for (const sampling of [undefined, {}, { seed: 7 }, most]) await family.respond(['hi'], { sampling });
    const greedy = { temperature: 0, top_p: 1, top_k: 0, seed: 0 };
    assert.deepEqual(seen, [greedy, greedy, { ...greedy, seed: 7 }, most]);
  });

  test('turns that are no texts too', async () => {
    const { family } = await open();
    for (const turns of ['hi', [1], undefined]) {
      assert.equal((await family.respond(turns)).envelope.error_code, 'bad_argument');
    }
  });
});

test('what cannot be sent to a worker fails at once, and nobody waits for its reply', async () => {
  const posted = [];
  const worker = { postMessage: (request, transfer) => posted.push(structuredClone(request, { transfer })), terminate: () => undefined };
  const channel = new Channel(worker, 50);
  await assert.rejects(channel.request('generate', { sampling: () => undefined }), { code: 'bad_argument' });
  const next = channel.request('hello', {});
  worker.onmessage({ data: { type: 'done', id: posted[0].id, of: 'hello', result: 1 } });
  assert.equal(await next, 1);
});

describe('the exact base answers whenever', () => {
  const fail = (code) => () => Promise.reject(Object.assign(new Error(code), { code }));
  const cases = [
    ['the specialist is cut off', { home: { text: 'on and on', stopReason: 'length' } }, 'answer_truncated', 1],
    ['the specialist writes no valid call', { home: { text: '<tool_call>[{]</tool_call>' } }, 'answer_malformed', 1],
    ['the prompt is too long for the specialist', { home: fail('context_full') }, 'context_full', 1],
    ['the specialist takes too much memory', { home: fail('out_of_memory') }, 'over_budget', 1],
    ['the specialist refuses its file', { home: fail('cact_bad_header') }, 'member_unavailable', 1],
    ['the router breaks', { router: fail('cact_bad_value') }, 'router_unavailable', 0],
    ['the prompt is too long for the router', { router: fail('context_full') }, 'context_full', 0],
  ];
  for (const [name, more, reason, selected] of cases) {
    test(name, async () => {
      const { family } = await open({ script: turned('home', more) });
      const { envelope, route: record } = await family.respond(['lights on']);
      assert.deepEqual(envelope, await baseAlone(['lights on']));
      assert.deepEqual([record.selected, record.effective, record.reason, record.overflow], [selected, 0, reason, true]);
    });
  }

  for (const [name, fault] of [['missing', faults.status(404)], ['a web page', faults.html], ['damaged', faults.flipped]]) {
    test(`the specialist's patch is ${name}, and the next try works`, async () => {
      const { family, network, site, states } = await open();
      const [part] = site.manifest.specialists[0].delivery.parts;
      network.faults.set(part.path, Array(name === 'damaged' ? 3 : 1).fill(fault));
      const first = await family.respond(['lights on']);
      assert.deepEqual(first.envelope, await baseAlone(['lights on']));
      assert.equal(first.route.reason, 'member_unavailable');
      assert.match(first.cause.code, /^part_/);
      assert.equal(states().home, 'failed');
      const second = await family.respond(['lights on']);
      assert.equal(second.envelope.member, 'home');
    });
  }

  test('what the specialist streamed is called void before the base starts', async () => {
    const { family } = await open({ script: turned('home', { home: { text: 'too long', stopReason: 'length' } }) });
    const log = [];
    await family.respond(['lights on'], {
      onToken: ({ member, text }) => log.push(`${member}: ${text}`),
      onProgress: ({ phase, member }) => ['answer', 'fallback'].includes(phase) && log.push(`${phase} ${member}`),
    });
    assert.deepEqual(log.slice(0, 5), ['answer home', 'home: too ', 'home: long', 'fallback base', 'answer base']);
  });
});

test('when nothing can answer there is an error envelope, and the next try works', async () => {
  const { family, network } = await open({ script: turned('base') });
  network.isOnline = false;
  const { envelope } = await family.respond(['hi']);
  assert.deepEqual([envelope.type, envelope.error_code, envelope.success], ['error', 'offline', false]);
  network.isOnline = true;
  assert.equal((await family.respond(['hi'])).envelope.text, 'hello from the base');
});

describe('workers', () => {
  test('one that falls silent is replaced once, without a word to the user', async () => {
    const { family, workers } = await open({ silenceMs: SHORT_MS });
    workers.deaths = { home: 1 };
    const { route: record } = await family.respond(['lights on']);
    assert.deepEqual([record.effective, record.reason], [1, 'none']);
    assert.deepEqual(workers.born, ['router', 'home', 'home']);
    await family.respond(['lights on']);
    assert.equal(workers.born.length, 3, 'and later requests do not load it again');
  });

  test('one that dies twice leaves the answer to the base', async () => {
    const { family, workers } = await open({ silenceMs: SHORT_MS });
    workers.deaths = { home: 2 };
    const { envelope, route: record } = await family.respond(['lights on']);
    assert.deepEqual(envelope, await baseAlone(['lights on']));
    assert.equal(record.reason, 'worker_lost');
    assert.equal((await family.respond(['lights on'])).envelope.member, 'home');
  });

  test('an idle one that was killed is replaced', async () => {
    const { family, workers } = await open({ silenceMs: SHORT_MS });
    await family.respond(['lights on']);
    for (const worker of workers.alive) worker.isDead = true;
    assert.equal((await family.respond(['lights on'])).envelope.member, 'home');
  });

  test('a script that does not load is a lost worker', async () => {
    const workers = makeWorkers(turned('base'));
    const create = workers.create;
    workers.create = (name) => {
      const worker = create(name);
      worker.isDead = true;
      queueMicrotask(() => worker.onerror({ message: 'script error', preventDefault: () => undefined }));
      return worker;
    };
    const { family } = await open({ workers });
    const { envelope } = await family.respond(['hi']);
    assert.equal(envelope.error_code, 'worker_lost');
    assert.match(envelope.error, /script error/);
  });

  test('the least recently used sleep when the budget is full', async () => {
    const script = turned('home', { router: ({ prompts }) => ({ logs: LOGS[/media/.test(prompts[0]) ? 'media' : 'home'] }) });
    const { family, workers, states } = await open({ script, memoryBytes: 40 << 20, memoryBudgetBytes: 100 << 20 });
    for (const turn of ['home', 'media', 'home']) assert.equal((await family.respond([turn])).envelope.member, turn);
    assert.deepEqual(workers.born, ['router', 'home', 'media', 'home']);
    assert.equal(workers.alive.size, 2);
    assert.deepEqual(states(), { base: 'stored', router: 'ready', home: 'ready', media: 'stored' });
    assert.equal(family.status().memory.usedBytes, 80 << 20);
  });

  test('what a failed request made a worker take counts, and others sleep for it', async () => {
    const grown = { code: 'context_full', memoryBytes: 90 << 20 };
    const script = turned('home', { home: () => Promise.reject(Object.assign(new Error('too long'), grown)) });
    const { family, states } = await open({ script, memoryBytes: 20 << 20, memoryBudgetBytes: 100 << 20 });
    const used = [];
    const { route: record } = await family.respond(['lights on'], {
      onProgress: ({ phase }) => phase === 'fallback' && used.push(family.status().memory.usedBytes, states().router),
    });
    assert.equal(record.reason, 'context_full');
    assert.deepEqual(used, [90 << 20, 'stored']);
  });

  test('fifty switches leave no worker behind', async () => {
    const script = turned('home', { router: ({ prompts }) => ({ logs: LOGS[/even/.test(prompts[0]) ? 'home' : 'base'] }) });
    const { family, workers } = await open({ script, memoryBytes: 40 << 20, memoryBudgetBytes: 100 << 20 });
    for (let i = 0; i < 50; i += 1) await family.respond([i % 2 ? 'odd' : 'even']);
    assert.equal(workers.alive.size, 2);
    assert.ok(family.status().memory.usedBytes <= 100 << 20);
  });

  test('a specialist larger than the budget leaves the answer to the base, which is let in', async () => {
    const { family } = await open({ memoryBudgetBytes: 1 << 20 });
    const { envelope, route: record } = await family.respond(['lights on']);
    assert.deepEqual([envelope.member, record.reason], ['base', 'router_unavailable']);
  });
});

describe('a member that is deleted while it works', () => {
  const held = (gate) => () => gate.pass().then(() => ({ text: CALL }));

  test('leaves the answer to the exact base, and has not failed', async () => {
    const gate = makeGate();
    const { family, workers, states } = await open({ script: turned('home', { home: held(gate) }) });
    const response = family.respond(['lights on']);
    await gate.begun;
    await family.remove('home');
    const { envelope, route: record, cause } = await response;
    assert.deepEqual(envelope, await baseAlone(['lights on']));
    assert.deepEqual([record.selected, record.effective, record.reason, cause.code], [1, 0, 'member_unavailable', 'asleep']);
    assert.deepEqual([states().home, workers.born], ['absent', ['router', 'home', 'base']]);
  });

  test('may be the router, and with it all others', async () => {
    const gate = makeGate();
    const { family } = await open({ script: turned('home', { router: held(gate) }) });
    const response = family.respond(['lights on']);
    await gate.begun;
    await family.removeAll();
    const { envelope, route: record, cause } = await response;
    assert.deepEqual(envelope, await baseAlone(['lights on']));
    assert.deepEqual([record.reason, cause.code], ['router_unavailable', 'asleep']);
  });

  test('may be the base: that is an error envelope, and the next try works', async () => {
    const gate = makeGate();
    const { family } = await open({ script: turned('base', { base: held(gate) }) });
    const response = family.respond(['hi']);
    await gate.begun;
    await family.remove('base');
    assert.equal((await response).envelope.error_code, 'asleep');
    gate.open();
    assert.equal((await family.respond(['hi'])).envelope.success, true);
  });

  test('gets no worker if it had none yet', async () => {
    const gate = makeGate();
    const { family, network, site, workers } = await open();
    network.faults.set(site.manifest.engine.path, [faults.held(gate)]);
    const response = family.respond(['lights on']);
    await gate.begun;
    await family.remove('router');
    gate.open();
    const { route: record, cause } = await response;
    assert.deepEqual([record.reason, cause.code], ['router_unavailable', 'asleep']);
    assert.deepEqual(workers.born, ['base']);
  });

  test('gets no worker if that was about to be born', async () => {
    let opened = null;
    opened = await open({ onEvent: () => opened?.states().home === 'opening' && void opened.family.remove('home') });
    const { route: record, cause } = await opened.family.respond(['lights on']);
    assert.deepEqual([record.reason, cause.code], ['member_unavailable', 'asleep']);
    assert.deepEqual(opened.workers.born, ['router', 'base']);
  });
});

describe('an abort', () => {
  test('in the middle of an answer keeps what was said', async () => {
    const { family } = await open({ script: turned('base', { base: { text: 'one two three four five six' } }) });
    const controller = new AbortController();
    const { envelope } = await family.respond(['hi'], {
      signal: controller.signal,
      onToken: ({ tokenCount }) => tokenCount === 2 && controller.abort(),
    });
    assert.equal(envelope.stop_reason, 'aborted');
    assert.match(envelope.text, /^one two/);
    assert.ok(envelope.token_ids.length < 6);
  });

  test('in a download rejects, and the next request gives the normal answer', async () => {
    const { family, network, site } = await open({ idleMs: SHORT_MS });
    network.faults.set(site.manifest.base.delivery.parts[0].path, [faults.silent]);
    const controller = new AbortController();
    const response = family.respond(['lights on'], { signal: controller.signal, onProgress: ({ phase }) => phase === 'download' && setImmediate(() => controller.abort()) });
    await assert.rejects(response, { code: 'aborted' });
    assert.equal((await family.respond(['lights on'])).envelope.member, 'home');
  });

  test('while it waits for another rejects at once, and keeps the order', async () => {
    const { family } = await open({ script: turned('base', { base: { text: 'a b c d' } }) });
    const log = [];
    const first = family.respond(['one'], { onToken: () => log.push(1) });
    const controller = new AbortController();
    const second = family.respond(['two'], { signal: controller.signal });
    const third = family.respond(['three'], { onToken: () => log.push(3) });
    controller.abort();
    await assert.rejects(second, { code: 'aborted' });
    assert.deepEqual(log, []);
    await Promise.all([first, third]);
    assert.deepEqual(log, [1, 1, 1, 1, 3, 3, 3, 3]);
  });

  test('before it starts rejects', async () => {
    const { family } = await open();
    await assert.rejects(family.respond(['hi'], { signal: AbortSignal.abort() }), { code: 'aborted' });
  });
});

test('responses wait for each other', async () => {
  const { family } = await open({ script: turned('base', { base: ({ prompts }) => ({ text: /first/.test(prompts[0]) ? 'a b c' : 'd e' }) }) });
  const log = [];
  const ask = (turn) => family.respond([turn], { onToken: ({ text }) => log.push(text) });
  await Promise.all([ask('first'), ask('second')]);
  assert.equal(log.join(''), 'a b cd e');
});

test('progress of a download is monotone and ends at its total, from the manifest', async () => {
  const { family, site } = await open();
  const seen = [];
  await family.respond(['lights on'], { onProgress: (progress) => progress.phase === 'download' && seen.push(progress) });
  const router = seen.filter(({ member }) => member === 'router');
  const { base, router: spec, engine } = site.manifest;
  assert.equal(router.at(-1).totalBytes, base.bytes + spec.delivery.bytes + engine.bytes);
  assert.equal(router.at(-1).haveBytes, router.at(-1).totalBytes);
  for (let i = 1; i < router.length; i += 1) assert.ok(router[i].haveBytes >= router[i - 1].haveBytes);
});

test('a request that is stopped does not wait for the site to explain a missing part', async () => {
  const gate = makeGate();
  const { family, network, site } = await open({ script: turned('base') });
  network.faults.set(site.manifest.router.delivery.parts[0].path, [faults.status(404)]);
  network.faults.set('family.json', [(_, signal) => (gate.pass(), faults.mute(_, signal))]);
  const controller = new AbortController();
  const response = family.respond(['hi'], { signal: controller.signal });
  await gate.begun;
  controller.abort();
  await assert.rejects(response, { code: 'aborted' });
});

test('a silent network explains a missing part no longer than a saved manifest is waited for', async () => {
  const { family, network, site } = await open({ script: turned('base'), patienceMs: 5, idleMs: 60_000 });
  network.faults.set(site.manifest.router.delivery.parts[0].path, [faults.status(404)]);
  network.faults.set('family.json', [faults.mute]);
  const { route: record, cause } = await family.respond(['hi']);
  assert.deepEqual([record.reason, cause.code], ['router_unavailable', 'part_missing']);
});

test('a download that fails is told in the row of its member, also if it was the engine', async () => {
  const { family, network, site, states } = await open();
  network.faults.set(site.manifest.engine.path, [faults.status(404)]);
  await assert.rejects(family.prefetch('home'), { code: 'part_missing' });
  assert.deepEqual([states().home, family.members[2].error.code], ['failed', 'part_missing']);
  await family.prefetch('home');
  assert.deepEqual([states().home, family.members[2].error], ['stored', null]);
});

test('telemetry holds routes, bounded, and no text', async () => {
  const { family } = await open();
  for (let i = 0; i < 300; i += 1) await family.respond([`secret ${i}`]);
  const { records } = family.telemetry;
  assert.equal(records.length, 256);
  assert.deepEqual(Object.keys(records[0]).sort(), ['effective', 'ids', 'overflow', 'reason', 'scores', 'selected']);
  assert.doesNotMatch(JSON.stringify(records), /secret|set_light/);
  assert.deepEqual(family.telemetry.summarize(), { response_count: 256, anchor_count: 0, specialist_count: 256, overflow_count: 0 });
});

test('an answer that was given is not kept alive', async () => {
  v8.setFlagsFromString('--expose-gc');
  const collect = vm.runInNewContext('gc');
  const { family } = await open();
  const ask = async () => new WeakRef(await family.respond(['lights on']));
  const answers = [await ask(), await ask()];
  const kept = () => answers.filter((answer) => answer.deref()).length;
  for (let round = 0; round < 20; round += 1) {
    await new Promise((resolve) => setImmediate(resolve));
    collect();
    if (kept() === 0) break;
  }
  assert.equal(kept(), 0);
});

test('a closed family ends its workers and refuses', async () => {
  const { family, workers } = await open();
  await family.respond(['lights on']);
  family.close();
  assert.equal(workers.alive.size, 0);
  await assert.rejects(family.respond(['hi']), { code: 'closed' });
  await assert.rejects(family.prefetch('home'), { code: 'closed' });
});

test('a family that is closed in the middle of an answer says so, and no worker is born afterwards', async () => {
  const answering = makeGate();
  const { family, workers } = await open({ script: turned('home', { home: () => answering.pass() }) });
  const response = family.respond(['lights on']);
  await answering.begun;
  family.close();
  await assert.rejects(response, { code: 'closed' });

  const fetching = makeGate();
  const second = await open({ site: makeSite(), workers });
  second.network.faults.set(second.site.manifest.engine.path, [faults.held(fetching)]);
  const unborn = second.family.respond(['lights on']);
  await fetching.begun;
  second.family.close();
  fetching.open();
  await assert.rejects(unborn, { code: 'closed' });
  assert.deepEqual([workers.born, workers.alive.size], [['router', 'home'], 0]);
});

test('an unknown member is named with those that are known', async () => {
  const { family } = await open();
  await assert.rejects(family.prefetch('garden'), { code: 'unknown_member', message: /"garden", must be one of base, router, home, media/ });
});
