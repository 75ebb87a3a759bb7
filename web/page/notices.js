/**
 * Lines above the chat that say what is unusual: offline, storage, an older list of models.
 *
 * Owns: which lines stand there, one per topic. Knows nothing of: why.
 */

import { h, the } from './dom.js';

/** @typedef {'offline' | 'storage' | 'manifest' | 'opening'} Topic */

export class Notices {
  #place = the('div', 'notices');
  /** @type {Map<Topic, HTMLElement>} */
  #lines = new Map();

  /**
   * Shows, replaces or (without words) removes the line of a topic.
   * @param {Topic} topic
   * @param {string | null} words
   * @param {{ label: string, act: () => void } | null} [action]
   */
  set(topic, words, action = null) {
    if (words !== null && this.#lines.get(topic)?.dataset.words === words) return;
    this.#lines.get(topic)?.remove();
    this.#lines.delete(topic);
    if (words === null) return;
    const button = action ? h('button', { type: 'button', onclick: action.act }, action.label) : null;
    const line = h('div', { class: 'notice', 'data-topic': topic, 'data-words': words }, h('p', {}, words), button);
    this.#lines.set(topic, line);
    this.#place.append(line);
  }
}
