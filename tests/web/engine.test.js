// What the engine's refusals say.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { STATUS } from '../../web/family/errors.js';
import { Engine } from '../../web/worker/engine.js';

/** An engine whose only export fails with this error struct. @param {number} status @param {string} field @param {bigint} offset */
function makeFailing(status, field, offset) {
  const memory = new WebAssembly.Memory({ initial: 1 });
  const at = { error: 16, field: 256 };
  const sg_grammar_open = () => {
    const view = new DataView(memory.buffer);
    new Uint8Array(memory.buffer).set(new TextEncoder().encode(`${field}\0`), at.field);
    view.setUint32(at.error + 4, at.field, true);
    view.setBigUint64(at.error + 8, offset, true);
    return status;
  };
  const exports = { memory, sg_reserve: () => at.error, sg_grammar_open };
  return new Engine(/** @type {WebAssembly.Instance} */ (/** @type {unknown} */ ({ exports })));
}

test('tools that are no JSON are refused with the byte, a schema with its path', () => {
  const message = (code, field, offset) => {
    try {
      makeFailing(STATUS[code], field, offset).check('sg_grammar_open');
    } catch (error) {
      return [error.code, error.message];
    }
  };
  assert.deepEqual(message('grammar_bad_json', 'tools', 17n), [
    'grammar_bad_json',
    'tools at byte 17: are not JSON, or have a key twice (grammar_bad_json)',
  ]);
  assert.deepEqual(message('grammar_limit', 't/parameters/items', 17n), [
    'grammar_limit',
    'tools: t/parameters/items: calls cannot be held to it (grammar_limit)',
  ]);
});
