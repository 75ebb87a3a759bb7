// A site in memory, a host whose network fails on order, and a worker that answers from a script.
import { createHash } from 'node:crypto';

import { canonicalJson } from '../../web/family/canonical.js';
import { sha256 } from '../../web/family/hash.js';

/** Longer than any test: nothing depends on how busy the machine is, unless a test is about silence. */
const PATIENT_MS = 60_000;
export const SHORT_MS = 600;

export const ROOT = 'https://example.org/models/';

/** Bytes that differ per seed and look like nothing. */
export function noise(seed, length) {
  const bytes = new Uint8Array(length);
  let state = seed + 1;
  for (let i = 0; i < length; i += 1) {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    bytes[i] = state >>> 16;
  }
  return bytes;
}

export const hex = (bytes) => createHash('sha256').update(bytes).digest('hex');

/** The smallest module that compiles. */
const EMPTY_MODULE = Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0);

/** A site with a base of two parts, a router and two specialists; `change(manifest)` may break it before it is sealed. */
export function makeSite({ change = () => undefined, salt = 0 } = {}) {
  const files = new Map();
  const put = (path, bytes) => files.set(path, bytes);
  const parts = (...chunks) =>
    chunks.map((bytes) => {
      const part = { path: `parts/${hex(bytes)}.bin`, bytes: bytes.length, sha256: hex(bytes) };
      put(part.path, bytes);
      return part;
    });
  const member = (id, bytes, kind, chunks, more = {}) => ({
    ...{ id, title: id[0].toUpperCase() + id.slice(1), about: `about ${id}`, bytes: bytes.length, sha256: hex(bytes) },
    delivery: {
      ...{ kind, bytes: chunks.reduce((sum, chunk) => sum + chunk.length, 0), parts: parts(...chunks) },
      ...(kind === 'patch' ? { sha256: hex(Buffer.concat(chunks)) } : {}),
    },
    prompt: { system: '', tools: '', context_turns: 2 },
    ...{ max_new_tokens: 16, changed_codes: 0.5 },
    ...more,
  });
  const base = [noise(salt + 1, 3000), noise(salt + 2, 1500)];
  const engine = EMPTY_MODULE;
  const manifest = {
    ...{ format: 'saguaro-family', version: 1, name: 'test', title: 'Test', numerics: 'exact' },
    container: { tag: '0x05e12a84', generation: 3 },
    app: { path: 'app/0123456789ab', sha256: `0123456789ab${'0'.repeat(52)}` },
    engine: { path: `engine.${hex(engine).slice(0, 12)}.wasm`, bytes: engine.length, sha256: hex(engine), abi: 2 },
    base: member('base', Buffer.concat(base), 'whole', base),
    router: member('router', noise(salt + 3, 4500), 'patch', [noise(salt + 4, 400)], { max_new_tokens: undefined }),
    specialists: [
      member('home', noise(salt + 5, 4500), 'patch', [noise(salt + 6, 300), noise(salt + 7, 200)]),
      member('media', noise(salt + 8, 4500), 'patch', [noise(salt + 9, 350)]),
    ],
  };
  put(manifest.engine.path, engine);
  const plain = JSON.parse(JSON.stringify(manifest));
  change(plain);
  put('family.json', new TextEncoder().encode(seal(plain)));
  return { files, manifest: plain, base: new Uint8Array(Buffer.concat(base)) };
}

/** What the site's base says of a patch from the base of `old`; the patch lies on `site` when it is sealed. */
export function upgradeFrom(old, patch = noise(77, 250)) {
  const part = { path: `parts/${hex(patch)}.bin`, bytes: patch.length, sha256: hex(patch) };
  const { bytes, sha256, delivery } = old.manifest.base;
  return {
    ...{ from_sha256: sha256, from_bytes: bytes, from_parts: delivery.parts.map(({ path: _, ...piece }) => piece) },
    delivery: { kind: 'patch', bytes: part.bytes, sha256: part.sha256, parts: [part] },
    /** No field of a manifest: put it into the site's files. */
    patch,
  };
}

/** The file's text with a true `release`. */
export function seal(manifest) {
  const { release: _, ...rest } = JSON.parse(JSON.stringify(manifest));
  const release = sha256(new TextEncoder().encode(canonicalJson(rest)));
  return `${canonicalJson({ ...rest, release })}\n`;
}

/** Answers from `site.files`; `faults` maps a path to a list of answers that come first, each a function of the bytes. */
export function makeNetwork(site) {
  const network = { site, requests: [], faults: new Map(), isOnline: true, fetch: null };
  network.fetch = async (input, { signal } = {}) => {
    const path = String(input).slice(ROOT.length);
    network.requests.push(path);
    signal?.throwIfAborted();
    const bytes = network.site.files.get(path);
    const fault = network.faults.get(path)?.shift();
    if (!network.isOnline) throw new TypeError('Failed to fetch');
    if (fault) return fault(bytes, signal);
    return bytes ? new Response(bytes) : new Response('gone', { status: 404 });
  };
  return network;
}

export const faults = {
  html: () => new Response('<!doctype html><title>App</title>', { headers: { 'content-type': 'text/html' } }),
  lfs: () => new Response('version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n'),
  status: (status) => () => new Response('no', { status }),
  refused: () => Promise.reject(new TypeError('Failed to fetch')),
  short: (bytes) => new Response(bytes.slice(0, bytes.length >> 1)),
  long: (bytes) => new Response(Buffer.concat([bytes, bytes])),
  flipped: (bytes) => {
    const wrong = bytes.slice();
    wrong[wrong.length >> 1] ^= 1;
    return new Response(wrong);
  },
  /** The right bytes, once the test lets them go; deaf to the signal. */
  held: (gate) => (bytes) => gate.pass().then(() => new Response(bytes)),
  /** No answer at all. */
  mute: (_, signal) =>
    new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(new DOMException('aborted', 'AbortError')))),
  /** Half of the bytes, then nothing for ever. */
  silent: (bytes, signal) =>
    new Response(
      new ReadableStream({
        start(controller) {
          controller.enqueue(bytes.slice(0, bytes.length >> 1));
          signal.addEventListener('abort', () => controller.error(new DOMException('aborted', 'AbortError')));
        },
      }),
    ),
};

/** Cache Storage in a map; `refuse` is thrown by every put, each of which waits for `writing`. */
export function makeCaches({ refuse = null, denied = false, writing = async () => undefined } = {}) {
  const stores = new Map();
  const caches = {
    stores,
    has: async (name) => stores.has(name),
    delete: async (name) => stores.delete(name),
    refuse,
    async open(name) {
      if (denied) throw new DOMException('denied', 'SecurityError');
      if (!stores.has(name)) stores.set(name, new Map());
      const entries = stores.get(name);
      return {
        match: async (request) => entries.get(request.url ?? request)?.clone(),
        put: async (request, response) => {
          const url = request.url ?? request;
          if (caches.refuse) throw caches.refuse;
          await writing(url);
          entries.set(url, response);
        },
        delete: async (request) => entries.delete(request.url ?? request),
        keys: async () => [...entries.keys()].map((url) => ({ url })),
      };
    },
  };
  return caches;
}

const refusal = () => new DOMException('denied', 'SecurityError');

/** Web Locks where site data is blocked: some browsers reject, some throw. */
export const blockedLocks = {
  rejecting: { request: () => Promise.reject(refusal()), query: () => Promise.reject(refusal()) },
  throwing: {
    request: () => {
      throw refusal();
    },
    query: () => {
      throw refusal();
    },
  },
};

export const quotaExceeded = () => new DOMException('full', 'QuotaExceededError');

/**
 * Workers that take any bytes for a model and answer from `script[id]`: `scores` for the router, `text` for the others, or a
 * function of the request that returns either or throws; `script.upgrade.file` is what an upgrade gives. `deaths[id]` counts down: that many workers fall silent when asked.
 */
export function makeWorkers(script = {}, { memoryBytes = 1000 } = {}) {
  const workers = { alive: new Set(), born: [], deaths: {}, prompts: [], memoryBytes };
  workers.create = (name) => {
    const id = name.split(' ').at(-1);
    workers.born.push(id);
    const worker = new ScriptedWorker(id, script, workers);
    workers.alive.add(worker);
    return worker;
  };
  return workers;
}

class ScriptedWorker {
  constructor(id, script, workers) {
    Object.assign(this, { id, script, workers, wants: [], written: 0, total: 0, aborted: new Set() });
  }

  terminate() {
    this.workers.alive.delete(this);
    this.isDead = true;
  }

  postMessage(request) {
    queueMicrotask(() => void this.#answer(request));
  }

  async #answer(request) {
    if (this.isDead) return;
    try {
      const result = await this[request.type](request);
      if (result !== undefined) this.#send({ type: 'done', id: request.id, of: request.type, result });
    } catch (error) {
      this.#send({ type: 'error', id: request.id, error: { code: error.code ?? 'worker_lost', message: error.message, stack: '' }, memoryBytes: error.memoryBytes ?? this.workers.memoryBytes });
    }
  }

  #send(data) {
    if (!this.isDead) this.onmessage({ data });
  }

  hello() {
    return { protocol: 2 };
  }

  open({ file, base }) {
    this.total = file.bytes;
    this.left = { file: base ? 0 : file.bytes, base: base?.bytes ?? 0, patch: base ? -1 : 0 };
    return this.loading();
  }

  feed({ stream, bytes }) {
    this.left[stream] = stream === 'patch' ? 0 : this.left[stream] - bytes.byteLength;
    return this.loading();
  }

  /** Part of what was rebuilt. */
  copy({ offset, bytes }) {
    return this.#perform({ prompts: [] }, ({ file }) => file.slice(offset, offset + bytes).buffer);
  }

  /** A patch is taken as one part, then the base, part by part. */
  loading() {
    const wants = this.left.file > 0 ? 'file' : this.left.patch < 0 ? 'patch' : this.left.base > 0 ? 'base' : null;
    return { wants, writtenBytes: wants ? 0 : this.total, memoryBytes: this.workers.memoryBytes };
  }

  score(request) {
    return this.#perform(request, ({ logs }) => ({ logProbabilities: logs, promptTokens: 5, memoryBytes: this.workers.memoryBytes }));
  }

  generate(request) {
    return this.#perform(request, async ({ text, stopReason = 'stop' }) => {
      const tokens = text.split(/(?<=\s)/);
      for (const [i, piece] of tokens.entries()) {
        this.#send({ type: 'progress', id: request.id, progress: { phase: 'text', text: piece, tokenCount: i + 1 } });
        await new Promise((resolve) => setImmediate(resolve));
        if (this.aborted.has(request.id)) return this.#generation(tokens.slice(0, i + 1), 'aborted');
      }
      return this.#generation(tokens, stopReason);
    });
  }

  abort({ target }) {
    this.aborted.add(target);
    return null;
  }

  #generation(tokens, stopReason) {
    const tokenIds = tokens.map((_, i) => i);
    return { text: tokens.join(''), tokenIds, promptTokens: 5, stopReason, confidence: null, prefillMs: 1, decodeMs: 1, memoryBytes: this.workers.memoryBytes, logitsSha256: [] };
  }

  async #perform(request, act) {
    this.workers.prompts.push({ id: this.id, prompts: request.prompts });
    if (this.workers.deaths[this.id] > 0) {
      this.workers.deaths[this.id] -= 1;
      return undefined;
    }
    const line = this.script[this.id];
    return act(typeof line === 'function' ? await line(request) : line);
  }
}

/** Options for `Family.open` on fakes, with short patience. */
export function makeOptions({ network, caches = makeCaches(), workers = makeWorkers(), ...more }) {
  const host = {
    ...{ fetch: network.fetch, caches, subtle: crypto.subtle, locks: undefined },
    ...{ isOnline: () => network.isOnline, createWorker: workers.create },
  };
  return { host, retryMs: 1, idleMs: PATIENT_MS, silenceMs: PATIENT_MS, ...more };
}

/** Lets everything happen that waits for nothing but its turn. */
export async function settle() {
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

/** A promise that a test settles, and what it waits for to have begun. */
export function makeGate() {
  const gate = Promise.withResolvers();
  const begun = Promise.withResolvers();
  return { open: gate.resolve, begun: begun.promise, pass: () => (begun.resolve(), gate.promise) };
}
