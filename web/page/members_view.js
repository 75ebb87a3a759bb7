/**
 * The list of models: what each is for, what it costs, where it stands.
 *
 * Owns: one row per member, kept and updated in place, so that focus and animation survive. Knows nothing of: downloads.
 */

/** @import { MemberStatus } from '../family/types.d.ts' */

import { h } from './dom.js';
import { formatBytes, formatPercent } from './format.js';
import { sentenceFor } from './sentences.js';

const STATE_WORDS = {
  absent: 'not downloaded',
  downloading: '',
  stored: 'asleep',
  opening: 'waking up',
  ready: 'ready',
  failed: 'failed',
};

/** For members that say nothing about themselves; a specialist always does. */
const PURPOSES = { base: 'answers everything else', router: 'chooses who answers', specialist: '' };

/**
 * @typedef {object} MemberActions
 * @property {(id: string) => void} download
 * @property {(id: string) => void} remove
 */

export class MembersView {
  #list;
  #actions;
  /** @type {Map<string, MemberRow>} */
  #rows = new Map();

  /** @param {HTMLUListElement} list @param {MemberActions} actions */
  constructor(list, actions) {
    this.#list = list;
    this.#actions = actions;
  }

  /** @param {readonly MemberStatus[]} members */
  show(members) {
    const specialists = members.filter(({ role }) => role === 'specialist');
    for (const member of members) {
      let row = this.#rows.get(member.id);
      if (!row) {
        row = new MemberRow(member, hueOf(member, specialists), this.#actions);
        this.#rows.set(member.id, row);
        this.#list.append(row.element);
      }
      row.update(member);
    }
  }
}

/**
 * The base has the first hue, each specialist its own, as in the chat; the router has none.
 * @param {MemberStatus} member
 * @param {readonly MemberStatus[]} specialists
 */
function hueOf(member, specialists) {
  if (member.role === 'router') return 'router';
  return member.role === 'base' ? 0 : (specialists.indexOf(member) + 1) % 6;
}

class MemberRow {
  #state = h('span', { class: 'state' });
  #cost = h('span', { class: 'cost' });
  #bar = h('progress', { max: 1, value: 0, hidden: true });
  #trouble = h('p', { class: 'fine trouble-line', hidden: true });
  #button;
  #isHere = false;
  element;

  /** @param {MemberStatus} member @param {string | number} hue @param {MemberActions} actions */
  constructor(member, hue, actions) {
    const { id, role, title, about } = member;
    const act = () => (this.#isHere ? actions.remove(id) : actions.download(id));
    this.#button = h('button', { type: 'button', class: 'row-action', onclick: act });
    const purpose = about || PURPOSES[role];
    this.element = h(
      'li',
      { class: 'member', 'data-id': id },
      h('span', { class: 'dot', 'data-hue': hue }),
      h('p', { class: 'member-title' }, h('strong', {}, title), this.#state),
      h('p', { class: 'member-about' }, h('span', {}, purpose), this.#cost),
      this.#button,
      this.#bar,
      this.#trouble,
    );
    this.#bar.setAttribute('aria-label', `Download of ${title}`);
  }

  /** @param {MemberStatus} member */
  update({ title, state, kind, lossy, downloadBytes, haveBytes, error }) {
    const isPartial = haveBytes > 0 && haveBytes < downloadBytes;
    this.element.dataset.state = state;
    const isCounting = state === 'downloading' || (state === 'absent' && isPartial);
    this.#state.textContent = isCounting ? formatPercent(haveBytes, downloadBytes) : STATE_WORDS[state];
    this.#cost.textContent = `${kind === 'patch' ? `${lossy ? 'lossy ' : ''}patch ` : ''}${formatBytes(downloadBytes)}`;
    this.#bar.hidden = state !== 'downloading';
    this.#bar.value = haveBytes / downloadBytes;
    this.#isHere = haveBytes === downloadBytes;
    const label = `${this.#isHere ? 'Delete' : state === 'failed' || isPartial ? 'Resume' : 'Download'} ${title}`;
    this.#button.dataset.icon = this.#isHere ? 'delete' : 'download';
    this.#button.setAttribute('aria-label', label);
    this.#button.title = label;
    this.#button.disabled = state === 'downloading' || state === 'opening';
    this.#trouble.hidden = error === null;
    this.#trouble.textContent = error ? `${sentenceFor(error.code).what} ${sentenceFor(error.code).next}` : '';
  }
}
