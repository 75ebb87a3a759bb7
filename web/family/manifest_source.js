/**
 * Where the manifest comes from: the network, or the last visit.
 *
 * Owns: the one file of a site that changes in place; the copy of the last good one, for offline visits and damaged
 * deliveries. Knows nothing of: what is done with it.
 */

/** @import { Host, Manifest } from './types.d.ts' */
/** @import { Hash } from './hash.js' */
/** @import { Store } from './store.js' */

import { FamilyError, asFamilyError, throwIfAborted } from './errors.js';
import { readManifest } from './manifest.js';

export const SAVED_MANIFEST = 'family.json';
const ATTEMPT_COUNT = 2;

/**
 * @typedef {object} ManifestSource
 * @property {URL} url
 * @property {Host} host
 * @property {Store} store
 * @property {Hash} hash
 * @property {AbortSignal | undefined} signal
 */

/**
 * @param {ManifestSource} source
 * @returns {Promise<{ manifest: Manifest, from: 'network' | 'saved', error: FamilyError | null }>}
 */
export async function loadManifest(source) {
  try {
    const { text, manifest } = await fetchManifest(source);
    await source.store.put(SAVED_MANIFEST, new TextEncoder().encode(text));
    return { manifest, from: 'network', error: null };
  } catch (reason) {
    throwIfAborted(source.signal);
    const error = asFamilyError(reason, 'network');
    const manifest = await savedManifest(source);
    if (!manifest) throw error;
    return { manifest, from: 'saved', error };
  }
}

/** The manifest as the site has it now. @param {ManifestSource} source */
export async function fetchManifest(source) {
  for (let attempt = 1; ; attempt += 1) {
    const text = await fetchText(source, attempt === 1 ? 'no-cache' : 'reload');
    try {
      return { text, manifest: await readManifest(text, source.hash) };
    } catch (error) {
      const isDamaged = error instanceof FamilyError && error.code === 'manifest_damaged';
      if (!isDamaged || attempt === ATTEMPT_COUNT) throw error;
    }
  }
}

/** @param {ManifestSource} source @param {RequestCache} cache */
async function fetchText({ url, host, signal }, cache) {
  let response;
  try {
    response = await host.fetch(url, { cache, ...(signal ? { signal } : {}) });
    if (response.ok) return await response.text();
  } catch (error) {
    throwIfAborted(signal);
    if (host.isOnline()) throw new FamilyError('network', 'family.json: the connection failed', { cause: error });
    throw new FamilyError('offline', 'family.json: this device is offline', { cause: error });
  }
  const code = response.status >= 500 || response.status === 429 ? 'server_error' : 'manifest_missing';
  throw new FamilyError(code, `family.json: the host answered with status ${response.status}, must be 200`);
}

/** @param {ManifestSource} source */
async function savedManifest({ store, hash }) {
  const bytes = await store.get(SAVED_MANIFEST);
  if (!bytes) return null;
  try {
    return await readManifest(new TextDecoder().decode(bytes), hash);
  } catch {
    await store.delete(SAVED_MANIFEST);
    return null;
  }
}
