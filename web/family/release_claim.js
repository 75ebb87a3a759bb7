/**
 * Which releases are open in other tabs.
 *
 * Owns: a shared Web Lock, held for as long as a family is open, whose name says the release; files of older releases may go
 * when nobody holds such a lock. Knows nothing of: files.
 */
export class ReleaseClaim {
  #locks;
  #prefix;
  #name;
  /** @type {() => void} */
  #release = () => undefined;

  /** @param {LockManager | undefined} locks @param {string} site @param {string} release */
  constructor(locks, site, release) {
    this.#locks = locks;
    this.#prefix = `saguaro-release ${site} `;
    this.#name = this.#prefix + release;
    const held = new Promise((resolve) => (this.#release = () => resolve(undefined)));
    // Browsers that block site data refuse: some throw, some reject.
    const claim = async () => locks?.request(this.#name, { mode: 'shared' }, () => held);
    claim().catch(() => undefined);
  }

  /** Whether no tab has another release open; false where nobody can know. */
  async isAlone() {
    if (!this.#locks) return false;
    try {
      const { held = [] } = await this.#locks.query();
      return held.every(({ name }) => !name?.startsWith(this.#prefix) || name === this.#name);
    } catch {
      return false;
    }
  }

  /** Lets go. */
  release() {
    this.#release();
  }
}
