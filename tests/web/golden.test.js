// The cases that Python and JavaScript share (tests/golden/prompts.json).
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';

import { readAnswer } from '../../web/family/envelope.js';
import { candidateCalls, cleanConversation, cleanTurn, fixedPart, promptChoices } from '../../web/family/prompts.js';
import { chooseCandidate } from '../../web/family/router.js';

const CASES = JSON.parse(readFileSync(new URL('../golden/prompts.json', import.meta.url), 'utf8'));

/** One test per case; a section that is missing or empty fails. */
function each(section, check) {
  describe(section, () => {
    assert.ok(CASES[section]?.length > 0, `no cases in ${section}`);
    CASES[section].forEach((given, i) => test(given.name ?? String(i), () => check(given)));
  });
}

each('clean', ({ turn, cleaned }) => assert.equal(cleanTurn(turn), cleaned));

each('conversations', ({ turns, query, earlier }) => assert.deepEqual(cleanConversation(turns), { query, earlier }));

each('prompts', ({ prompt, turns, fixed, texts }) => {
  assert.deepEqual(promptChoices(prompt, cleanConversation(turns)), texts);
  assert.equal(fixedPart(prompt), fixed);
});

each('calls', ({ ids, texts }) => assert.deepEqual(candidateCalls(ids), texts));

each('routes', ({ log_probabilities: logs, scores, selected }) => {
  assert.deepEqual(chooseCandidate(logs), { scores, selected });
});

each('answers', ({ text, stop_reason: stopReason, expected }) => {
  const generation = { text, tokenIds: [], promptTokens: 3, stopReason, confidence: 0.5, prefillMs: 0, decodeMs: 0, memoryBytes: 0, logitsSha256: [] };
  const envelope = readAnswer(generation, 'base', 'exact');
  assert.equal(envelope.confidence, 0.5);
  for (const [field, value] of Object.entries(expected)) assert.deepEqual(envelope[field], value, field);
});
