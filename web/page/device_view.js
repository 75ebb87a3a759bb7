/**
 * What was downloaded, and getting rid of it.
 *
 * Owns: the "On this device" section. Deleting asks for a second press, which a touch can give and a slip does not.
 * Knows nothing of: where files lie.
 */

/** @import { FamilyStatus, StoredFile } from '../family/types.d.ts' */

import { the } from './dom.js';
import { formatBytes } from './format.js';

const SURE_MS = 4000;

export class DeviceView {
  #sum = the('p', 'device-sum');
  #fine = the('p', 'device-fine');
  #download = the('button', 'download-all');
  #delete = the('button', 'delete-all');
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #sure;

  /** @param {{ downloadAll: () => void, deleteAll: () => void }} actions */
  constructor(actions) {
    this.#download.addEventListener('click', () => actions.downloadAll());
    this.#delete.addEventListener('click', () => this.#askTwice(actions.deleteAll));
  }

  /** @param {readonly StoredFile[]} files @param {FamilyStatus} status */
  show(files, status) {
    const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
    const old = files.filter(({ usedBy }) => usedBy.length === 0).reduce((sum, file) => sum + file.bytes, 0);
    const place = status.storage.kind === 'memory' ? 'in this tab’s memory' : 'stored';
    const oldWords = old > 0 ? `, ${formatBytes(old)} of it from older versions` : '';
    const sum = `${formatBytes(bytes)} ${place} in ${files.length} files${oldWords}.`;
    this.#sum.textContent = bytes > 0 ? sum : 'Nothing yet.';
    const engineBytes = status.engine.bytes - status.engine.haveBytes;
    const missing = status.members.reduce((sum, one) => sum + one.downloadBytes - one.haveBytes, engineBytes);
    this.#download.hidden = missing === 0;
    this.#download.textContent = `Download all (${formatBytes(missing)})`;
    this.#delete.hidden = bytes === 0;
    const { usedBytes } = status.memory;
    this.#fine.textContent =
      `${usedBytes > 0 ? `Memory in use: ${formatBytes(usedBytes)}. ` : ''}Numerics: ${status.numerics}. ` +
      `Release ${status.release.slice(0, 12)}.`;
  }

  /** @param {() => void} action */
  #askTwice(action) {
    if (this.#sure === undefined) {
      this.#delete.textContent = 'Really delete all?';
      this.#sure = setTimeout(() => this.#calm(), SURE_MS);
      return;
    }
    this.#calm();
    action();
  }

  #calm() {
    clearTimeout(this.#sure);
    this.#sure = undefined;
    this.#delete.textContent = 'Delete all';
  }
}
