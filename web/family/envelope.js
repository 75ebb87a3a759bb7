/**
 * The answer in the form that the official engine gives it.
 *
 * Owns: reading reasoning and tool calls out of a generated text. Source: docs/dispatch.md, "The answer".
 * Knows nothing of: how the text came about.
 */

/** @import { Envelope, FunctionCall, Generation, Manifest, StopReason } from './types.d.ts' */
/** @import { FamilyError } from './errors.js' */

import { cleanTurn } from './prompts.js';

const THINK_OPEN = '<think>';
const THINK_CLOSE = '</think>';
const CALL_OPEN = '<tool_call>';
const CALL_CLOSE = '</tool_call>';

/**
 * @param {Generation} generation
 * @param {string} member
 * @param {Manifest['numerics']} numerics
 * @returns {Envelope}
 */
export function readAnswer(generation, member, numerics) {
  const { text, tokenIds, promptTokens, stopReason, confidence, prefillMs, decodeMs, memoryBytes } = generation;
  const { reasoning, rest } = splitReasoning(text);
  const payload = after(rest, CALL_OPEN);
  const calls = payload === null ? [] : readCalls(payload);
  const failure = calls ? null : callFailure(stopReason, payload?.endsWith(CALL_CLOSE) === true);
  return {
    type: payload === null ? 'respond' : 'call',
    success: failure === null,
    error: failure?.error ?? null,
    error_code: failure?.code ?? null,
    reason: null,
    function_calls: calls ?? [],
    suppressed_calls: [],
    reasoning,
    confidence,
    prefill_tps: perSecond(promptTokens, prefillMs),
    decode_tps: perSecond(tokenIds.length, decodeMs),
    peak_ram_mb: oneDecimal(memoryBytes / 1e6),
    text,
    token_ids: tokenIds,
    prompt_tokens: promptTokens,
    stop_reason: stopReason,
    numerics,
    member,
  };
}

/**
 * @param {FamilyError} error
 * @param {string} member
 * @param {Manifest['numerics']} numerics
 * @returns {Envelope}
 */
export function errorAnswer(error, member, numerics) {
  return {
    ...{ type: 'error', success: false, error: error.message, error_code: error.code, reason: 'runtime_failure' },
    ...{ function_calls: [], suppressed_calls: [], reasoning: null, confidence: null },
    ...{ prefill_tps: 0, decode_tps: 0, peak_ram_mb: 0, text: '', token_ids: [], prompt_tokens: 0 },
    ...{ stop_reason: null, numerics, member },
  };
}

/** @param {StopReason} stopReason @param {boolean} isClosed */
function callFailure(stopReason, isClosed) {
  return stopReason === 'length' && !isClosed
    ? { code: 'truncated', error: 'the tool call was cut off at the token limit' }
    : { code: 'malformed', error: 'the tool call is not valid JSON' };
}

/**
 * What a person reads of a plain answer: the text without its reasoning.
 * @param {string} text
 */
export function visibleText(text) {
  return cleanTurn(splitReasoning(text).rest);
}

/** Reasoning counts only at the start of an answer. @param {string} text */
function splitReasoning(text) {
  const thought = cleanTurn(text).startsWith(THINK_OPEN) ? after(text, THINK_OPEN) : null;
  if (thought === null) return { reasoning: null, rest: text };
  const end = thought.indexOf(THINK_CLOSE);
  if (end < 0) return { reasoning: cleanTurn(thought), rest: '' };
  return { reasoning: cleanTurn(thought.slice(0, end)), rest: thought.slice(end + THINK_CLOSE.length) };
}

/** What follows the first `marker`, or null. @param {string} text @param {string} marker */
function after(text, marker) {
  const at = text.indexOf(marker);
  return at < 0 ? null : text.slice(at + marker.length);
}

/**
 * The calls, or null if the payload is anything but a closed list of calls.
 * @param {string} payload what follows the opening marker, to the end of the text
 * @returns {FunctionCall[] | null}
 */
function readCalls(payload) {
  if (!payload.endsWith(CALL_CLOSE)) return null;
  try {
    /** @type {unknown} */
    const value = JSON.parse(payload.slice(0, -CALL_CLOSE.length));
    return Array.isArray(value) && value.every(isCall) ? value : null;
  } catch {
    return null;
  }
}

/** @param {unknown} value @returns {value is FunctionCall} */
function isCall(value) {
  return isObject(value) && typeof value.name === 'string' && isObject(value.arguments);
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** @param {number} count @param {number} ms */
function perSecond(count, ms) {
  return ms > 0 ? oneDecimal((count * 1000) / ms) : 0;
}

/** @param {number} value */
function oneDecimal(value) {
  return Math.round(value * 10) / 10;
}
