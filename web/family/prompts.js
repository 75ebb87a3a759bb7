/**
 * From the user's turns to the texts that members are asked with.
 *
 * Owns: cleaning, the prompt's grammar, the calls that the router scores. Source: docs/dispatch.md, "Turns", "Prompts",
 * "Route". Knows nothing of: tokens (the worker counts them and takes the first prompt that fits).
 */

/** @import { PromptSpec } from './types.d.ts' */

/** @param {string} turn */
export function cleanTurn(turn) {
  return turn
    .replace(/\p{Surrogate}/gu, '\ufffd')
    .replace(/\r\n?/g, '\n')
    .trim();
}

/**
 * The query (empty if the last turn is) and the earlier turns that say something.
 * @param {readonly string[]} turns oldest first, the last one is the query
 */
export function cleanConversation(turns) {
  const cleaned = turns.map(cleanTurn);
  const query = cleaned.pop() ?? '';
  return { query, earlier: cleaned.filter((turn) => turn !== '') };
}

/**
 * The prompt with all its context turns, then with ever fewer, oldest dropped first.
 * @param {PromptSpec} spec
 * @param {{ query: string, earlier: readonly string[] }} conversation
 */
export function promptChoices(spec, { query, earlier }) {
  const countMax = Math.min(spec.context_turns, earlier.length);
  return Array.from({ length: countMax + 1 }, (_, dropped) => {
    const context = earlier.slice(earlier.length - countMax + dropped);
    return renderPrompt(spec, context, query);
  });
}

/** How every prompt begins, whatever the turns: system text and tools. @param {PromptSpec} spec */
export function fixedPart({ system, tools }) {
  const before = system && `<|im_start|>system\n${system}<|im_end|>\n`;
  return `${before}<|im_start|>user${tools && `\n<tools>${tools}</tools>`}`;
}

/** @param {PromptSpec} spec @param {readonly string[]} context @param {string} query */
function renderPrompt(spec, context, query) {
  const recent = context.length > 0 ? `<context>${context.join('\n')}</context>\n` : '';
  return `${fixedPart(spec)}\n${recent}${query}<|im_end|>\n<|im_start|>assistant\n`;
}

/** The empty call, then the call of each specialist. @param {readonly string[]} ids */
export function candidateCalls(ids) {
  return ['', ...ids.map((id) => `{"name":"${id}","arguments":{}}`)].map((call) => `<tool_call>[${call}]</tool_call>`);
}
