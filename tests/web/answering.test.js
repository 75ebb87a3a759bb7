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

const REQUEST = { prompts: ['hi'], tools: '', maxNewTokens: 50, sampling: null, trace: false };

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
  const { logProbabilities } = await score(model, { prompts: ['hi'], calls: ['a', 'b', 'c'] }, control);
  assert.equal(logProbabilities.length, 3);
  const calls = phases.filter(({ phase }) => phase === 'score');
  assert.deepEqual(calls, [1, 2, 3].map((doneCalls) => ({ phase: 'score', doneCalls, totalCalls: 3 })));
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
    assert.deepEqual(model.encoded, [8000], 'the longest that may fit is encoded');
  });

  test('lets messages in before the next one', async () => {
    const model = makeModel();
    let breaths = 0;
    const breathe = async () => void (breaths += 1);
    await assert.rejects(run(model, [huge, huge, huge], breathe, () => breaths === 2), { code: 'aborted' });
    assert.equal(breaths, 2);
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
