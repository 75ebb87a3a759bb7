/**
 * Generation and scoring on one model.
 *
 * Owns: which prompt fits, prefill in blocks, when an answer stops; after each block and each token the worker looks at its
 * messages, so that an abort takes hold. Source: docs/dispatch.md, "Prompts", "Route", "Generation".
 * Knows nothing of: messages themselves, what a text means.
 */

/** @import { Generation, Scoring, StopReason } from '../family/types.d.ts' */
/** @import { Model } from './model.js' */
/** @import { GenerateRequest, ScoreRequest, WorkProgress } from './types.d.ts' */

import { FamilyError } from '../family/errors.js';
import { CHARACTER_BYTES } from './model.js';

const BLOCK_TOKENS = 32;
const LINE_END = '\n';

/**
 * @typedef {object} Control
 * @property {(progress: WorkProgress) => void} report
 * @property {() => Promise<void>} breathe lets messages in
 * @property {() => boolean} isAborted
 */

/**
 * @param {Model} model
 * @param {Pick<GenerateRequest, 'fixed' | 'prompts' | 'tools' | 'maxNewTokens' | 'sampling' | 'trace'>} request
 * @param {Control} control
 * @returns {Promise<Generation>}
 */
export async function generate(model, { fixed, prompts, tools, maxNewTokens, sampling, trace }, control) {
  const prompt = await fit(model, prompts, maxNewTokens, control);
  const start = performance.now();
  const [pinnedTokens, isJudged] = [countFixed(model, fixed, prompt), model.hasConfidence];
  model.openSession(prompt.length + maxNewTokens, { pinnedTokens, isJudged, tools });
  model.startSampling(sampling);
  const answer = { text: '', tokenIds: /** @type {number[]} */ ([]), logitsSha256: /** @type {string[]} */ ([]) };
  const isFilled = await prefill(model, prompt, control);
  const prefilled = performance.now();
  const stopReason = isFilled ? await decode(model, maxNewTokens, trace, answer, control) : 'aborted';
  const decoded = performance.now();
  const rest = model.flushText();
  if (rest !== '') control.report({ phase: 'text', text: rest, tokenCount: answer.tokenIds.length });
  return {
    ...answer,
    text: answer.text + rest,
    promptTokens: prompt.length,
    stopReason,
    confidence: stopReason === 'stop' && model.hasConfidence ? model.confidence() : null,
    prefillMs: prefilled - start,
    decodeMs: decoded - prefilled,
    memoryBytes: model.memoryBytes,
  };
}

/**
 * @param {Model} model
 * @param {number} maxNewTokens
 * @param {boolean} trace
 * @param {Pick<Generation, 'text' | 'tokenIds' | 'logitsSha256'>} answer grows
 * @param {Control} control
 * @returns {Promise<StopReason>}
 */
async function decode(model, maxNewTokens, trace, answer, control) {
  const { eos_id: eos, im_end_id: imEnd, tool_call_close_id: callClose } = model.info;
  for (;;) {
    if (trace) answer.logitsSha256.push(model.logitsSha256());
    const id = model.sample(maxNewTokens - answer.tokenIds.length);
    if (id === eos || id === imEnd) return 'stop';
    model.accept(id);
    answer.tokenIds.push(id);
    const text = model.detokenize(id);
    answer.text += text;
    control.report({ phase: 'text', text, tokenCount: answer.tokenIds.length });
    if (id === callClose) {
      if (model.hasConfidence) model.append([id]); // the head hears the whole answer
      return 'stop';
    }
    if (answer.tokenIds.length === maxNewTokens) return 'length';
    await control.breathe();
    if (control.isAborted()) return 'aborted';
    model.append([id]);
  }
}

/**
 * @param {Model} model
 * @param {Pick<ScoreRequest, 'fixed' | 'prompts' | 'calls'>} request
 * @param {Control} control
 * @returns {Promise<Scoring>}
 */
export async function score(model, { fixed, prompts, calls }, control) {
  const callIds = calls.map((call) => idsAfterLineEnd(model, call));
  const roomTokens = Math.max(...callIds.map((ids) => ids.length));
  const prompt = await fit(model, prompts, roomTokens, control);
  model.openSession(prompt.length + roomTokens, { pinnedTokens: countFixed(model, fixed, prompt) });
  const logProbabilities = [];
  let isGoingOn = await prefill(model, prompt, control);
  for (const ids of isGoingOn ? callIds : []) {
    logProbabilities.push(model.score(ids));
    control.report({ phase: 'score', doneCalls: logProbabilities.length, totalCalls: calls.length });
    await control.breathe();
    isGoingOn &&= !control.isAborted();
    if (!isGoingOn) break;
  }
  if (!isGoingOn) throw new FamilyError('aborted', 'stopped');
  return { logProbabilities, promptTokens: prompt.length, memoryBytes: model.memoryBytes };
}

/** A tokenizer with a dummy prefix must add none in the middle of a text. @param {Model} model @param {string} text */
function idsAfterLineEnd(model, text) {
  return model.encode(LINE_END + text).slice(model.encode(LINE_END).length);
}

/**
 * How many of the prompt's ids are those of its fixed part.
 * @param {Model} model @param {string} fixed @param {readonly number[]} prompt
 */
function countFixed(model, fixed, prompt) {
  const ids = [model.info.bos_id, ...model.encode(fixed)];
  const end = ids.findIndex((id, i) => id !== prompt[i]);
  return end < 0 ? ids.length : end;
}

/**
 * BOS and the ids of the first prompt that leaves room for `roomTokens` more.
 * @param {Model} model
 * @param {readonly string[]} prompts
 * @param {number} roomTokens
 * @param {Control} control
 */
async function fit(model, prompts, roomTokens, control) {
  const limit = model.info.max_seq_len - roomTokens;
  let found = '';
  for (const [i, prompt] of prompts.entries()) {
    if (i > 0) await control.breathe();
    if (i > 0 && control.isAborted()) throw new FamilyError('aborted', 'stopped');
    const leastTokens = leastTokensOf(model, prompt, limit);
    if (leastTokens > limit) {
      found = `at least ${leastTokens}`;
    } else {
      const ids = [model.info.bos_id, ...model.encode(prompt)];
      if (ids.length <= limit) return ids;
      found = String(ids.length);
    }
    control.report({ phase: 'prefill', doneTokens: 0, totalTokens: Math.max(limit, 0) });
  }
  throw new FamilyError(
    'context_full',
    `the message is too long: its prompt takes ${found} tokens, the model can take ${Math.max(limit, 0)}; shorten it`,
  );
}

/**
 * How many tokens a text takes if every id covers as much as any can, or 0 if it is short: a huge one is refused without the
 * time and the memory that encoding it takes.
 * @param {Model} model @param {string} text @param {number} limit
 */
function leastTokensOf(model, text, limit) {
  // No longest piece is shorter than a character, so most texts need not ask.
  return text.length > limit * CHARACTER_BYTES ? Math.ceil(text.length / model.longestPieceBytes) : 0;
}

/** False if it was aborted. @param {Model} model @param {number[]} prompt @param {Control} control */
async function prefill(model, prompt, control) {
  for (let at = 0; at < prompt.length; at += BLOCK_TOKENS) {
    control.report({ phase: 'prefill', doneTokens: at, totalTokens: prompt.length });
    await control.breathe();
    if (control.isAborted()) return false;
    model.append(prompt.slice(at, at + BLOCK_TOKENS));
  }
  return true;
}
