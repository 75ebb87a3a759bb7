/**
 * The message field and its two buttons.
 *
 * Owns: Enter sends, Shift+Enter breaks the line, Escape stops; the field grows with its text. Knows nothing of: answers.
 */

import { the } from './dom.js';

export class Composer {
  #field = the('textarea', 'message');
  #send = the('button', 'send');
  #stop = the('button', 'stop');
  #isBusy = false;
  #onSend;

  /** @param {{ send: (text: string) => void, stop: () => void }} actions */
  constructor({ send, stop }) {
    this.#onSend = send;
    the('form', 'composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#stop.addEventListener('click', stop);
    this.#field.addEventListener('input', () => this.#fit());
    this.#field.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#submit();
      }
    });
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.#isBusy && !event.defaultPrevented) stop();
    });
  }

  /** From now on there is somebody to talk to. */
  enable() {
    this.#field.disabled = false;
    this.#fit();
    if (matchMedia('(hover: hover)').matches) this.#field.focus();
  }

  /** @param {boolean} isBusy */
  setBusy(isBusy) {
    const hadFocus = document.activeElement === this.#stop;
    this.#isBusy = isBusy;
    this.#send.hidden = isBusy;
    this.#stop.hidden = !isBusy;
    if (hadFocus && !isBusy) this.#field.focus();
    this.#fit();
  }

  #submit() {
    const text = this.#field.value;
    if (this.#isBusy || text.trim() === '') return;
    this.#field.value = '';
    this.#fit();
    this.#onSend(text);
  }

  #fit() {
    this.#send.disabled = this.#field.disabled || this.#field.value.trim() === '';
    this.#field.style.height = 'auto';
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }
}
