/**
 * One answer on the page, from the first sign of life to the last word.
 *
 * Owns: its elements. While it grows it is marked busy, so that a screen reader reads it once, complete.
 * Knows nothing of: how answers are made.
 */

/** @import { Answer, Envelope, MemberStatus } from '../family/types.d.ts' */

import { visibleText } from '../family/index.js';
import { h } from './dom.js';
import { routeNote } from './route_note.js';
import { sentenceFor } from './sentences.js';
import { pendingCard, toolCard } from './tool_card.js';

const CALL_OPEN = '<tool_call>';

export class AnswerView {
  #phase = h('p', { class: 'phase' });
  #body = h('div', { class: 'body' });
  #text = '';
  #onRetry;
  element;

  /** @param {() => void} onRetry */
  constructor(onRetry) {
    this.#onRetry = onRetry;
    this.element = h('li', { class: 'answer', 'aria-busy': 'true' }, this.#phase, this.#body);
  }

  /** What is going on while there is nothing to read. @param {string} words */
  setPhase(words) {
    this.#phase.textContent = words;
  }

  /** A member starts to answer; what stood here is void. */
  begin() {
    this.#text = '';
    this.#body.replaceChildren();
  }

  /** @param {string} text */
  append(text) {
    this.#text += text;
    const { plain, hasCall } = split(this.#text);
    if (plain !== '' || hasCall) this.#phase.textContent = '';
    this.#body.replaceChildren(...(plain ? [h('p', {}, plain)] : []), ...(hasCall ? [pendingCard()] : []));
  }

  /** @param {Answer} answer @param {readonly MemberStatus[]} members */
  finish(answer, members) {
    if (answer.envelope.type === 'error') {
      this.fail(answer.envelope.error_code, answer.envelope.error ?? '');
      return;
    }
    this.#body.replaceChildren(...answerParts(answer.envelope));
    const note = routeNote(answer, members);
    // Who reads the answer of another than was chosen should know it before.
    if (answer.route.overflow) this.element.prepend(note);
    else this.element.append(note);
    this.#close();
  }

  /** @param {string | null} code @param {string} detail the library's own words */
  fail(code, detail) {
    if (code === 'aborted') {
      this.#body.replaceChildren(h('p', { class: 'fine' }, 'Stopped before there was an answer.'));
      this.#close();
      return;
    }
    const { what, next } = sentenceFor(code);
    this.#body.replaceChildren(
      h(
        'div',
        { class: 'trouble', role: 'alert' },
        h('p', {}, h('strong', {}, what), ` ${next}`),
        h('div', { class: 'trouble-actions' }, h('button', { type: 'button', onclick: this.#onRetry }, 'Try again')),
        h('details', {}, h('summary', {}, 'Details'), h('code', {}, detail)),
      ),
    );
    this.#close();
  }

  #close() {
    this.#phase.remove();
    this.element.removeAttribute('aria-busy');
  }
}

/** @param {Envelope} envelope @returns {Node[]} */
function answerParts({ type, success, text, function_calls: calls, stop_reason: stopReason }) {
  const { plain } = split(text);
  const parts = [...(plain ? [h('p', {}, plain)] : []), ...calls.map(toolCard)];
  const remark = (/** @type {string} */ words) => [...parts, h('p', { class: 'fine' }, words)];
  if (stopReason === 'aborted') return remark('Stopped here.');
  if (!success) return remark('The model began an action and did not finish it.');
  if (stopReason === 'length') return remark('The answer ends here: it reached its limit.');
  if (type === 'call' && calls.length === 0) return remark('No action: there is nothing to do for this.');
  return parts.length > 0 ? parts : remark('The model had nothing to say.');
}

/** What a person reads of a text that may hold a call. @param {string} text */
function split(text) {
  const [plain = '', ...calls] = visibleText(text).split(CALL_OPEN);
  return { plain: plain.trim(), hasCall: calls.length > 0 };
}
