/**
 * From proven parts to a model in a fresh worker.
 *
 * Owns: the first messages to a worker, and answering its wishes part by part. Source: docs/protocol.md, "Loading".
 * Knows nothing of: where parts come from, who needs the model.
 */

/** @import { Manifest } from './types.d.ts' */
/** @import { Channel } from './channel.js' */
/** @import { FileIdentity, Stream } from '../worker/types.d.ts' */

import { PROTOCOL_VERSION } from '../worker/protocol.js';
import { FamilyError } from './errors.js';
import { ABI_VERSION } from './manifest.js';

/**
 * @typedef {object} Filling
 * @property {string} id of whose file it is, for people
 * @property {WebAssembly.Module} engine
 * @property {FileIdentity} file
 * @property {FileIdentity | null} base null for a file that comes whole
 * @property {Manifest['numerics']} numerics
 * @property {Partial<Record<Stream, AsyncGenerator<Uint8Array<ArrayBuffer>>>>} streams proven parts
 * @property {(writtenBytes: number) => void} onWritten
 */

/** @param {Channel} channel @param {Filling} filling @returns {Promise<number>} the memory that the worker then has */
export async function fillWorker(channel, { id, engine, file, base, numerics, streams, onWritten }) {
  await channel.request('hello', { protocol: PROTOCOL_VERSION, abi: ABI_VERSION, engine });
  let loading = await channel.request('open', { file, base, numerics });
  while (loading.wants) {
    const stream = loading.wants;
    const part = await streams[stream]?.next();
    if (!part || part.done) throw new FamilyError('file_hash_mismatch', `${id}: the parts end too early`);
    const buffer = part.value.buffer;
    loading = await channel.request('feed', { stream, bytes: buffer }, { transfer: [buffer] });
    onWritten(loading.writtenBytes);
  }
  return loading.memoryBytes;
}
