/**
 * Where the manifest comes from: the network, or the last visit.
 *
 * Owns: the one file of a site that changes in place; the copy of the last good one, for offline visits, silent networks and
 * damaged deliveries. Knows nothing of: what is done with it.
 */

/** @import { Host, Manifest } from './types.d.ts' */
/** @import { Hash } from './hash.js' */
/** @import { Store } from './store.js' */

import { chunksOf, createWatchdog } from './download.js';
import { FamilyError, asFamilyError, throwIfAborted } from './errors.js';
import { MANIFEST_BYTES_MAX, readManifest } from './manifest.js';

export const SAVED_MANIFEST = 'family.json';
const ATTEMPT_COUNT = 2;

/**
 * @typedef {object} ManifestSource
 * @property {URL} url
 * @property {Host} host
 * @property {Store} store
 * @property {Hash} hash
 * @property {AbortSignal | undefined} signal
 * @property {number} idleMs no byte for this long ends an attempt
 */

/**
 * @param {ManifestSource} source
 * @param {number} patienceMs in the place of `idleMs` if there is a manifest of the last visit
 * @returns {Promise<{ manifest: Manifest, from: 'network' | 'saved', error: FamilyError | null }>}
 */
export async function loadManifest(source, patienceMs) {
  const saved = await source.store.get(SAVED_MANIFEST);
  try {
    const { bytes, manifest } = await fetchManifest(saved ? { ...source, idleMs: patienceMs } : source);
    await source.store.put(SAVED_MANIFEST, bytes);
    return { manifest, from: 'network', error: null };
  } catch (reason) {
    throwIfAborted(source.signal);
    const error = asFamilyError(reason, 'network');
    const manifest = saved && (await savedManifest(saved, source));
    if (!manifest) throw error;
    return { manifest, from: 'saved', error };
  }
}

/** The manifest as the site has it now. @param {ManifestSource} source */
export async function fetchManifest(source) {
  for (let attempt = 1; ; attempt += 1) {
    const bytes = await fetchBytes(source, attempt === 1 ? 'no-cache' : 'reload');
    try {
      return { bytes, manifest: await readManifest(bytes, source.hash, source.url.href) };
    } catch (error) {
      const isDamaged = error instanceof FamilyError && error.code === 'manifest_damaged';
      if (!isDamaged || attempt === ATTEMPT_COUNT) throw error;
    }
  }
}

/** @param {ManifestSource} source @param {RequestCache} cache */
async function fetchBytes({ url, host, signal, idleMs }, cache) {
  const watchdog = createWatchdog(idleMs, signal);
  try {
    const response = await host.fetch(url, { cache, signal: watchdog.signal });
    refuseStatus(response, url);
    const chunks = [];
    let byteCount = 0;
    for await (const chunk of chunksOf(response, watchdog)) {
      chunks.push(chunk);
      byteCount += chunk.byteLength;
      // What is longer is refused by the reader, whatever follows.
      if (byteCount > MANIFEST_BYTES_MAX) break;
    }
    return new Uint8Array(await new Blob(chunks).arrayBuffer());
  } catch (error) {
    if (error instanceof FamilyError) throw error;
    throwIfAborted(signal);
    if (!host.isOnline()) throw new FamilyError('offline', `${url}: this device is offline`, { cause: error });
    const what = watchdog.signal.aborted ? `no byte arrived for ${idleMs / 1000} s` : 'the connection failed';
    throw new FamilyError('network', `${url}: ${what}`, { cause: error });
  } finally {
    watchdog.stop();
  }
}

/** @param {Response} response @param {URL} url */
function refuseStatus({ ok, status }, url) {
  if (ok) return;
  const code = status >= 500 || status === 429 ? 'server_error' : 'manifest_missing';
  throw new FamilyError(code, `${url}: the host answered with status ${status}, must be 200`);
}

/** @param {Uint8Array<ArrayBuffer>} bytes @param {ManifestSource} source */
async function savedManifest(bytes, { store, hash, url }) {
  try {
    return await readManifest(bytes, hash, url.href);
  } catch {
    await store.delete(SAVED_MANIFEST);
    return null;
  }
}
