/**
 * The one progress bar: bytes here, of bytes needed, both from the manifest.
 *
 * Owns: its words and when it shows. Knows nothing of: parts.
 */

import { the } from './dom.js';
import { formatBytes } from './format.js';

export class DownloadView {
  #place = the('div', 'download');
  #words = the('label', 'download-words');
  #figures = the('span', 'download-figures');
  #bar = the('progress', 'download-bar');

  /** @param {string} title @param {number} haveBytes @param {number} totalBytes */
  show(title, haveBytes, totalBytes) {
    this.#place.hidden = false;
    this.#bar.max = totalBytes;
    this.#bar.value = haveBytes;
    this.#words.textContent = `Downloading ${title}`;
    this.#figures.textContent = `${formatBytes(haveBytes)} of ${formatBytes(totalBytes)}`;
  }

  hide() {
    this.#place.hidden = true;
  }
}
