// What C, Python and JavaScript spell the same.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { OWN_CODES, STATUS, statusCode } from '../../web/family/errors.js';
import { ABI_VERSION } from '../../web/family/manifest.js';
import { fallbackSentence, sentenceFor, storageSentence } from '../../web/page/sentences.js';
import { PROTOCOL_VERSION } from '../../web/worker/protocol.js';

const read = (path) => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');

test('status names and values are those of sg_status.h', () => {
  const found = [...read('engine/include/sg_status.h').matchAll(/^\s+X\((\w+), (\d+)\)/gm)];
  assert.ok(found.length > 30);
  assert.deepEqual({ ...STATUS }, Object.fromEntries(found.map(([, name, value]) => [name.toLowerCase(), Number(value)])));
  for (const [name, value] of Object.entries(STATUS)) assert.equal(statusCode(value), name);
  assert.equal(statusCode(9999), 'engine_mismatch');
});

test('the interface version is that of saguaro.h', () => {
  assert.equal(ABI_VERSION, Number(/#define SG_ABI_VERSION (\d+)u/.exec(read('engine/include/saguaro.h'))[1]));
});

test('the document of the messages names this protocol version', () => {
  assert.match(read('docs/protocol.md'), new RegExp(`Protocol version ${PROTOCOL_VERSION}\\b`));
});

test('every code has a sentence with a next step, and no code is spelt twice', () => {
  const vague = sentenceFor('bad_argument');
  for (const code of Object.keys(OWN_CODES)) {
    const { what, next } = sentenceFor(code);
    assert.ok(what.endsWith('.') && next.endsWith('.'), code);
    assert.notDeepEqual({ what, next }, vague, `${code} has no words of its own`);
    assert.equal(code in STATUS, false, code);
  }
  for (const code of Object.keys(STATUS)) assert.ok(sentenceFor(code).what, code);
});

test('every reason of a route record and every storage notice has words', () => {
  const reasons = [...read('web/family/types.d.ts').matchAll(/^ {2}\| '(\w+)'/gm)].map(([, reason]) => reason);
  assert.ok(reasons.includes('answer_malformed'));
  for (const reason of reasons.filter((name) => name !== 'none')) {
    assert.match(fallbackSentence(reason, 'Home', 'offline'), /\.$/, reason);
    assert.ok(read('docs/dispatch.md').includes(`\`${reason}\``), `docs/dispatch.md does not know ${reason}`);
  }
  for (const notice of ['full', 'denied', 'insecure']) assert.match(storageSentence(notice), /\.$/);
});
