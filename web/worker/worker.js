/**
 * The worker of one member: messages in, messages out.
 *
 * Owns: one engine instance for life, the switch over requests, the abort flag. Exactly one `done` or `error` answers each
 * request. Source: docs/protocol.md. Knows nothing of: the DOM, the network, other members.
 */

/** @import { Code } from '../family/errors.js' */
/** @import { Control } from './answering.js' */
/** @import { Loader } from './loading.js' */
/** @import { CopyRequest, FeedRequest, HelloRequest, Loading, OpenRequest, Reply, Request } from './types.d.ts' */
/** @import { Results } from './types.d.ts' */

import { FamilyError } from '../family/errors.js';
import { generate, score } from './answering.js';
import { Engine } from './engine.js';
import { createLoader } from './loading.js';
import { Model } from './model.js';
import { PROTOCOL_VERSION } from './protocol.js';

const scope = /** @type {DedicatedWorkerGlobalScope} */ (/** @type {unknown} */ (globalThis));
/** @type {Engine | null} */
let engine = null;
/** @type {Loader | null} */
let loader = null;
/** @type {Model | null} */
let model = null;
/** @type {Pick<OpenRequest, 'file' | 'numerics'> | null} */
let opening = null;
/** The request that runs, and whether it was told to stop. @type {{ id: number, isAborted: boolean } | null} */
let running = null;

const breath = new MessageChannel();

scope.onmessage = (event) => void answer(/** @type {Request} */ (event.data));

/** @param {Request} request */
async function answer(request) {
  try {
    const result = await serve(request);
    const transfer = result instanceof ArrayBuffer ? [result] : [];
    post(/** @type {Reply} */ ({ type: 'done', id: request.id, of: request.type, result }), transfer);
  } catch (error) {
    post({ type: 'error', id: request.id, error: described(error), memoryBytes: engine?.memoryBytes ?? 0 });
  }
}

/** @param {Request} request @returns {Promise<Results[Request['type']]>} */
async function serve(request) {
  switch (request.type) {
    case 'hello':
      return hello(request);
    case 'open':
      return open(request);
    case 'feed':
      return feed(request);
    case 'copy':
      return copy(request);
    case 'generate':
      return alone(request.id, (control) => generate(opened(), request, control));
    case 'score':
      return alone(request.id, (control) => score(opened(), request, control));
    case 'abort':
      if (running?.id === request.target) running.isAborted = true;
      return null;
    default:
      throw new FamilyError('protocol', `unknown request ${JSON.stringify(/** @type {never} */ (request))}`);
  }
}

/** @param {HelloRequest} request */
async function hello({ protocol, abi, engine: module }) {
  if (protocol !== PROTOCOL_VERSION) {
    throw new FamilyError('protocol', `protocol: is ${protocol}, must be ${PROTOCOL_VERSION}; reload the page`);
  }
  const fresh = new Engine(await WebAssembly.instantiate(module));
  const found = fresh.call('sg_abi_version');
  if (found !== abi) throw new FamilyError('engine_mismatch', `abi: is ${found}, must be ${abi}; reload the page`);
  engine = fresh;
  return { protocol: PROTOCOL_VERSION };
}

/** @param {OpenRequest} request @returns {Loading} */
function open({ file, base, numerics }) {
  if (!engine || loader) throw new FamilyError('bad_state', 'open: a worker opens one model, once, after hello');
  opening = { file, numerics };
  loader = createLoader(engine, file, base);
  return loading(engine, loader);
}

/** @param {FeedRequest} request @returns {Loading} */
function feed({ stream, bytes }) {
  if (!engine || !loader) throw new FamilyError('bad_state', 'feed: open comes first');
  loader.feed(stream, new Uint8Array(bytes));
  return loading(engine, loader);
}

/** @param {CopyRequest} request @returns {ArrayBuffer} */
function copy({ offset, bytes }) {
  const fileBytes = opening?.file.bytes ?? 0;
  if (!engine || !loader || !model) throw new FamilyError('bad_state', 'copy: there is no complete file');
  if (!(offset >= 0 && bytes >= 0 && offset + bytes <= fileBytes)) {
    throw new FamilyError('bad_argument', `copy: ends at ${offset + bytes}, must be within ${fileBytes} bytes`);
  }
  return engine.bytes(loader.file + offset, bytes).slice().buffer;
}

/** @param {Engine} instance @param {Loader} load @returns {Loading} */
function loading(instance, load) {
  if (load.wants === null && opening) model = new Model(instance, load.file, opening.file.bytes, opening.numerics);
  return { wants: load.wants, writtenBytes: load.writtenBytes, memoryBytes: instance.memoryBytes };
}

function opened() {
  if (!model) throw new FamilyError('bad_state', 'there is no open model');
  return model;
}

/**
 * Runs one request at a time; its messages carry its id.
 * @template T
 * @param {number} id
 * @param {(control: Control) => Promise<T>} action
 */
async function alone(id, action) {
  if (running) throw new FamilyError('bad_state', `request ${running.id} still runs`);
  const state = { id, isAborted: false };
  running = state;
  try {
    return await action({
      report: (progress) => post({ type: 'progress', id, progress }),
      breathe,
      isAborted: () => state.isAborted,
    });
  } finally {
    running = null;
  }
}

/** Lets waiting messages in. @returns {Promise<void>} */
function breathe() {
  return new Promise((resolve) => {
    breath.port1.onmessage = () => resolve();
    breath.port2.postMessage(null);
  });
}

/** @param {Reply} reply @param {Transferable[]} [transfer] */
function post(reply, transfer = []) {
  scope.postMessage(reply, transfer);
}

/** @param {unknown} error @returns {{ code: Code, message: string, stack: string }} */
function described(error) {
  if (error instanceof FamilyError) return { code: error.code, message: error.message, stack: error.stack ?? '' };
  // A trap ends what the instance may still be trusted with: the page gives this worker up.
  const words = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return { code: 'worker_lost', message: words, stack: error instanceof Error ? (error.stack ?? '') : '' };
}
