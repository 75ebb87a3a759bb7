/**
 * The messages between page and worker (docs/protocol.md). Every request has an `id`; it gets any number of `progress` and
 * exactly one `done` or `error`. Buffers named in a comment "transferred" change hands.
 */

import type { Generation, Manifest, Sampling, Scoring } from '../family/types.d.ts';

/** Which bytes the worker wants next; null: the model is open. */
export type Stream = 'file' | 'base' | 'patch';

export interface FileIdentity {
  bytes: number;
  sha256: string;
}

export interface HelloRequest {
  type: 'hello';
  id: number;
  protocol: number;
  abi: number;
  engine: WebAssembly.Module;
}

/** `base` is null when the file itself will be fed, else base and patch bytes will. */
export interface OpenRequest {
  type: 'open';
  id: number;
  file: FileIdentity;
  base: FileIdentity | null;
  numerics: Manifest['numerics'];
}

/** Bytes of the stream that the worker asked for, in order; `bytes` is transferred. */
export interface FeedRequest {
  type: 'feed';
  id: number;
  stream: Stream;
  bytes: ArrayBuffer;
}

/** Bytes of the complete file, from `offset` on; they are transferred back. */
export interface CopyRequest {
  type: 'copy';
  id: number;
  offset: number;
  bytes: number;
}

/**
 * The first of `prompts` that leaves room for the answer is used; all begin with `fixed`, which is never forgotten. Calls are held
 * to `tools` unless that is empty.
 */
export interface GenerateRequest {
  type: 'generate';
  id: number;
  fixed: string;
  prompts: string[];
  tools: string;
  maxNewTokens: number;
  sampling: Sampling;
  trace: boolean;
}

/** The first of `prompts` that leaves room for the longest call is used; all begin with `fixed`. */
export interface ScoreRequest {
  type: 'score';
  id: number;
  fixed: string;
  prompts: string[];
  calls: string[];
}

/** Ends request `target` as soon as its present block or token is done. */
export interface AbortRequest {
  type: 'abort';
  id: number;
  target: number;
}

export type Request =
  | HelloRequest
  | OpenRequest
  | FeedRequest
  | CopyRequest
  | GenerateRequest
  | ScoreRequest
  | AbortRequest;

export interface Loading {
  wants: Stream | null;
  /** Bytes of the file that stand in memory. */
  writtenBytes: number;
  memoryBytes: number;
}

export interface Results {
  hello: { protocol: number };
  open: Loading;
  feed: Loading;
  copy: ArrayBuffer;
  generate: Generation;
  score: Scoring;
  abort: null;
}

export type WorkProgress =
  | { phase: 'prefill'; doneTokens: number; totalTokens: number }
  | { phase: 'score'; doneCalls: number; totalCalls: number }
  | { phase: 'text'; text: string; tokenCount: number };

export type Reply =
  | { type: 'progress'; id: number; progress: WorkProgress }
  | { [T in keyof Results]: { type: 'done'; id: number; of: T; result: Results[T] } }[keyof Results]
  | { type: 'error'; id: number; error: { code: string; message: string; stack: string }; memoryBytes: number };
