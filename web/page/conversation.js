/**
 * The conversation: the user's turns and what became of them.
 *
 * Owns: the turns, the running request, the order of things on the page. Knows nothing of: how the page starts, storage.
 */

/** @import { Family } from '../family/index.js' */
/** @import { RespondProgress } from '../family/types.d.ts' */
/** @import { Composer } from './composer.js' */
/** @import { DownloadView } from './download_view.js' */

import { FamilyError } from '../family/index.js';
import { AnswerView } from './answer_view.js';
import { h, the } from './dom.js';
import { formatList } from './format.js';

const NEAR_END_PX = 40;

export class Conversation {
  #family;
  #composer;
  #download;
  #list = the('ol', 'turns');
  #chat = the('main', 'chat');
  #status = the('p', 'status');
  /** @type {string[]} */
  #turns = [];
  /** @type {AbortController | null} */
  #running = null;
  /** What travels for which member; named when the download begins, so that the words stay.
   *  @type {{ member: string, title: string, isHere: boolean } | null} */
  #travelling = null;

  /** Whether the newest words are kept in view: until the reader scrolls up, and again from the end. */
  #isFollowing = true;

  /** @param {Family} family @param {Composer} composer @param {DownloadView} download */
  constructor(family, composer, download) {
    this.#family = family;
    this.#composer = composer;
    this.#download = download;
    this.#chat.addEventListener('scroll', () => {
      const { scrollHeight, scrollTop, clientHeight } = this.#chat;
      this.#isFollowing = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    });
    // What was opened at the lower edge comes into view; toggle events do not bubble.
    const show = (/** @type {Event} */ { target }) => {
      if (target instanceof Element) target.scrollIntoView({ block: 'nearest' });
    };
    this.#list.addEventListener('toggle', show, true);
  }

  get isEmpty() {
    return this.#turns.length === 0;
  }

  /** @param {string} text */
  ask(text) {
    if (this.#running) return;
    this.#turns.push(text);
    this.#list.append(h('li', { class: 'question' }, h('p', {}, text.trim())));
    void this.#answer();
  }

  /** Ends the running answer, if there is one. */
  stop() {
    this.#running?.abort();
  }

  /** Forgets everything. */
  clear() {
    this.stop();
    this.#turns = [];
    this.#list.replaceChildren();
  }

  async #answer() {
    const controller = new AbortController();
    this.#running = controller;
    this.#composer.setBusy(true);
    const turns = [...this.#turns];
    const view = new AnswerView(() => this.#retry(view, turns));
    this.#list.append(view.element);
    this.#isFollowing = true;
    this.#scrollDown();
    try {
      const answer = await this.#family.respond(turns, {
        signal: controller.signal,
        onToken: ({ text }) => {
          view.append(text);
          this.#scrollDown();
        },
        onProgress: (progress) => this.#follow(progress, view),
      });
      view.finish(answer, this.#family.members);
      this.#say(answer.envelope.type === 'error' ? '' : `${this.#titleOf(answer.envelope.member)} answered.`);
    } catch (error) {
      const known = error instanceof FamilyError ? error : null;
      view.fail(known?.code ?? null, error instanceof Error ? error.message : String(error));
      if (!known) throw error;
    } finally {
      this.#running = null;
      this.#download.hide();
      this.#composer.setBusy(false);
      this.#scrollDown();
    }
  }

  /**
   * The same turns once more, in the place of the answer that failed.
   * @param {AnswerView} view
   * @param {readonly string[]} turns
   */
  #retry(view, turns) {
    if (this.#running) return;
    view.element.remove();
    if (turns.length === this.#turns.length) void this.#answer();
    else this.ask(turns.at(-1) ?? '');
  }

  /** @param {RespondProgress} progress @param {AnswerView} view */
  #follow(progress, view) {
    if (progress.phase === 'open' && this.#travelling?.isHere === false) return;
    if (progress.phase !== 'download') this.#download.hide();
    switch (progress.phase) {
      case 'download': {
        const { member, haveBytes, totalBytes } = progress;
        const title = this.#travellingTitle(member, haveBytes === totalBytes);
        this.#download.show(title, haveBytes, totalBytes);
        return this.#phase(view, `Downloading ${title}`);
      }
      case 'open':
        return this.#phase(view, `Waking ${this.#titleOf(progress.member)}`);
      case 'route':
        return this.#phase(view, 'Choosing who answers');
      case 'prefill':
        return this.#phase(view, `${this.#titleOf(progress.member)} is reading`);
      case 'answer':
        return view.begin();
      case 'fallback':
        view.begin();
        return this.#phase(view, `${this.#titleOf(progress.member)} takes over`);
      default:
        return /** @type {never} */ (progress);
    }
  }

  /** The member, and the base if that is missing too. @param {string} id @param {boolean} isHere */
  #travellingTitle(id, isHere) {
    const known = this.#travelling?.member === id && !this.#travelling.isHere ? this.#travelling.title : null;
    const missing = this.#family.members.filter(
      (member) => member.haveBytes < member.downloadBytes && (member.role === 'base' || member.id === id),
    );
    const title = known ?? (formatList(missing.map((member) => member.title)) || this.#titleOf(id));
    this.#travelling = { member: id, title, isHere };
    return title;
  }

  /** @param {AnswerView} view @param {string} words */
  #phase(view, words) {
    view.setPhase(words);
    this.#say(words);
  }

  /** To screen readers, each thing once. @param {string} words */
  #say(words) {
    if (this.#status.textContent !== words) this.#status.textContent = words;
  }

  /** @param {string} id */
  #titleOf(id) {
    return this.#family.members.find((member) => member.id === id)?.title ?? id;
  }

  #scrollDown() {
    if (this.#isFollowing) this.#chat.scrollTop = this.#chat.scrollHeight;
  }
}
