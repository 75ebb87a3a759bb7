import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { generate, score } from '../../web/worker/answering.js';

/** A model of 200-token prompts that never ends by itself. Keeps what it was given. */
function makeModel() {
  const appended = [];
  return {
    appended,
    memoryBytes: 0,
    info: { bos_id: 1, eos_id: 2, im_end_id: 3, tool_call_close_id: 4, max_seq_len: 1024 },
    longestPieceBytes: 8,
    encoded: [],
    encode(text) {
      this.encoded.push(text.length);
      return Array.from({ length: 199 }, () => 9);
    },
    openSession: () => {},
    startSampling: () => {},
    append: (ids) => appended.push(ids.length),
    sample: () => 9,
    accept: () => {},
    detokenize: () => 'a',
    flushText: () => '',
  };
}

const REQUEST = { fixed: '', prompts: ['hi'], tools: '', maxNewTokens: 50, sampling: null, trace: false };

/** What a worker that aborts after `breaths` looks at its messages has done. */
async function abortedAfter(breaths) {
  const model = makeModel();
  const phases = [];
  let breathed = 0;
  const breathe = async () => void (breathed += 1);
  const control = { report: (phase) => phases.push(phase), breathe, isAborted: () => breathed > breaths };
  const answer = await generate(model, REQUEST, control);
  return { appended: model.appended, doneTokens: phases.at(-1).doneTokens, answer };
}

test('scoring gives a sign of life after every call', async () => {
  const phases = [];
  const model = { ...makeModel(), score: (ids) => -ids.length };
  const control = { report: (progress) => phases.push(progress), breathe: async () => undefined, isAborted: () => false };
  const { logProbabilities } = await score(model, { fixed: '', prompts: ['hi'], calls: ['a', 'b', 'c'] }, control);
  assert.equal(logProbabilities.length, 3);
  const calls = phases.filter(({ phase }) => phase === 'score');
  assert.deepEqual(calls, [1, 2, 3].map((doneCalls) => ({ phase: 'score', doneCalls, totalCalls: 3 })));
});

test('an answer is held to its tools, in the room that is left', async () => {
  const seen = { rooms: [], accepted: [] };
  const ids = [10, 20, 11];
  const model = {
    ...makeModel(),
    openSession: (_capacity, { tools }) => void (seen.tools = tools),
    sample: (room) => (seen.rooms.push(room), ids[seen.accepted.length]),
    accept: (id) => void seen.accepted.push(id),
  };
  model.info = { ...model.info, tool_call_close_id: 11 };
  const control = { report: () => undefined, breathe: async () => undefined, isAborted: () => false };
  const { stopReason, tokenIds } = await generate(model, { ...REQUEST, tools: '[]', maxNewTokens: 9 }, control);
  assert.deepEqual(seen, { tools: '[]', rooms: [9, 8, 7], accepted: ids });
  assert.deepEqual({ stopReason, tokenIds }, { stopReason: 'stop', tokenIds: ids });
});

describe('a text that is longer than any that fits', () => {
  const [huge, long] = ['x'.repeat(1e7), 'y'.repeat(8000)];
  const run = async (model, prompts, breathe = async () => undefined, isAborted = () => false) =>
    generate(model, { ...REQUEST, prompts, maxNewTokens: 24 }, { report: () => undefined, breathe, isAborted });

  test('is refused before it is encoded', async () => {
    const model = makeModel();
    const words = /takes at least 1250000 tokens, the model can take 1000/;
    await assert.rejects(run(model, [huge, huge]), { code: 'context_full', message: words });
    assert.deepEqual(model.encoded, []);
  });

  test('gives way to a prompt with less context', async () => {
    const model = { ...makeModel(), sample: () => 2 };
    assert.equal((await run(model, [huge, long, 'hi'])).stopReason, 'stop');
    assert.deepEqual(model.encoded, [8000, 0], 'the longest that may fit is encoded, then the fixed part');
  });

  test('lets messages in before the next one', async () => {
    const model = makeModel();
    let breaths = 0;
    const breathe = async () => void (breaths += 1);
    await assert.rejects(run(model, [huge, huge, huge], breathe, () => breaths === 2), { code: 'aborted' });
    assert.equal(breaths, 2);
  });

  test('and what is too long at last is that, whoever stops it', async () => {
    const breathe = async () => assert.fail('there is no next prompt');
    await assert.rejects(run(makeModel(), [huge], breathe, () => true), { code: 'context_full' });
  });
});

describe('an abort', () => {
  for (const blocks of [0, 1, 6]) {
    test(`after ${blocks} blocks of prefill lets no further block begin`, async () => {
      const { appended, doneTokens, answer } = await abortedAfter(blocks);
      assert.deepEqual([appended, doneTokens], [Array.from({ length: blocks }, () => 32), 32 * blocks]);
      assert.deepEqual([answer.stopReason, answer.tokenIds], ['aborted', []]);
    });
  }

  test('while it decodes lets no further token begin', async () => {
    const { appended, answer } = await abortedAfter(7 + 2);
    assert.deepEqual(appended.slice(6), [8, 1, 1]);
    assert.deepEqual([answer.stopReason, answer.tokenIds], ['aborted', [9, 9, 9]]);
  });
});

describe('the confidence head', () => {
  /** A model that says `ids`, with a head that says how many ids it heard. */
  const saying = (ids, hasConfidence = true) => {
    const model = { ...makeModel(), hasConfidence, isJudged: null };
    return Object.assign(model, {
      sample: () => ids.shift() ?? 3,
      openSession: (capacity, { isJudged }) => Object.assign(model, { isJudged }),
      confidence: () => model.appended.reduce((sum, count) => sum + count, 0),
    });
  };
  const control = { report: () => undefined, breathe: async () => undefined, isAborted: () => false };

  test('hears the prompt and the whole answer, its last id included', async () => {
    assert.equal((await generate(saying([9, 9, 4]), REQUEST, control)).confidence, 200 + 3);
    assert.equal((await generate(saying([9, 9]), REQUEST, control)).confidence, 200 + 2);
  });

  test('says nothing about an answer that has no end', async () => {
    const cut = await generate(saying([9, 9, 9]), { ...REQUEST, maxNewTokens: 2 }, control);
    assert.deepEqual([cut.stopReason, cut.confidence], ['length', null]);
    const aborted = await generate(saying([9, 9, 9]), REQUEST, { ...control, isAborted: () => true });
    assert.deepEqual([aborted.stopReason, aborted.confidence], ['aborted', null]);
  });

  test('does not listen where the model has none, or to a router', async () => {
    const without = saying([9, 4], false);
    assert.equal((await generate(without, REQUEST, control)).confidence, null);
    assert.deepEqual([without.isJudged, without.appended.at(-1)], [false, 1]);
    const router = { ...saying([]), score: () => -1 };
    let isListening = null;
    router.openSession = (capacity, { isJudged = false }) => void (isListening = isJudged);
    await score(router, { fixed: '', prompts: ['hi'], calls: ['a'] }, control);
    assert.equal(isListening, false);
  });
});

test('the tokens that a prompt shares with its fixed part are pinned', async () => {
  const model = { ...makeModel(), hasConfidence: false };
  const ids = { fixed: [5, 6, 7], prompt: [5, 6, 8, 9] };
  model.encode = (text) => ids[text];
  model.sample = () => 3;
  model.openSession = (capacity, { pinnedTokens }) => void (model.pinned = pinnedTokens);
  const control = { report: () => undefined, breathe: async () => undefined, isAborted: () => false };
  await generate(model, { ...REQUEST, fixed: 'fixed', prompts: ['prompt'] }, control);
  assert.equal(model.pinned, 1 + 2, 'BOS and what is equal');
  ids.fixed = [5, 6];
  await generate(model, { ...REQUEST, fixed: 'fixed', prompts: ['prompt'] }, control);
  assert.equal(model.pinned, 1 + 2);
});
