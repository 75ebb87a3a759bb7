/** Shapes of data that cross the library's boundaries. Sizes are bytes, hashes lower-case hex SHA-256. */

import type { Code, FamilyError } from './errors.js';

/* ---- family.json (docs/formats/manifest.md): field names as they stand in the file ---- */

export interface Part {
  path: string;
  bytes: number;
  sha256: string;
}

/** A part of a file of an earlier release, which is never fetched. */
export type Piece = Omit<Part, 'path'>;

export interface PatchDelivery {
  kind: 'patch';
  bytes: number;
  parts: Part[];
  sha256: string;
}

export type Delivery = { kind: 'whole'; bytes: number; parts: Part[] } | PatchDelivery;

export interface PromptSpec {
  system: string;
  tools: string;
  context_turns: number;
}

export interface MemberSpec {
  id: string;
  title: string;
  about: string;
  bytes: number;
  sha256: string;
  delivery: Delivery;
  prompt: PromptSpec;
  /** Absent on the router, which never generates. */
  max_new_tokens?: number;
  changed_codes?: number;
  /** The member differs from its plain export, on purpose; on the router and on specialists. */
  lossy?: LossySpec;
}

/** How a member was made different so that its patch is small (docs/budget.md). */
export interface LossySpec {
  mode: 'zero-residual' | 'rate-distortion';
  gain: number;
  relative_error: number;
  budget_bytes?: number;
}

/** A patch from an earlier release's base to this one. */
export interface UpgradeSpec {
  from_sha256: string;
  from_bytes: number;
  from_parts: Piece[];
  delivery: PatchDelivery;
}

export interface BaseSpec extends MemberSpec {
  upgrades: UpgradeSpec[];
}

export interface EngineSpec extends Part {
  abi: number;
  /** The same for browsers with relaxed SIMD. */
  relaxed?: Part;
}

export interface Manifest {
  format: 'saguaro-family';
  version: 1;
  name: string;
  title: string;
  release: string;
  container: { tag: string; generation: number };
  numerics: 'exact' | 'fast';
  engine: EngineSpec;
  base: BaseSpec;
  router?: MemberSpec;
  specialists: MemberSpec[];
  examples?: string[];
}

/* ---- Answers (docs/dispatch.md): field names as they stand there ---- */

export interface FunctionCall {
  name: string;
  arguments: Record<string, unknown>;
}

export type StopReason = 'stop' | 'length' | 'aborted';

export interface Envelope {
  type: 'call' | 'respond' | 'error';
  success: boolean;
  error: string | null;
  error_code: string | null;
  reason: string | null;
  function_calls: FunctionCall[];
  suppressed_calls: FunctionCall[];
  reasoning: string | null;
  confidence: number | null;
  prefill_tps: number;
  decode_tps: number;
  peak_ram_mb: number;
  text: string;
  token_ids: number[];
  prompt_tokens: number;
  stop_reason: StopReason | null;
  numerics: 'exact' | 'fast';
  member: string;
}

export type RouteReason =
  | 'none'
  | 'router_unavailable'
  | 'member_unavailable'
  | 'over_budget'
  | 'context_full'
  | 'answer_truncated'
  | 'answer_malformed'
  | 'worker_lost';

export interface RouteRecord {
  selected: number;
  effective: number;
  scores: (number | null)[];
  overflow: boolean;
  reason: RouteReason;
  ids: string[];
}

export interface Sampling {
  /** 0 is greedy. */
  temperature: number;
  /** In (0, 1]; 1 is off. */
  top_p: number;
  /** 0 is off. */
  top_k: number;
  /** Start of the random stream; an unsigned 64-bit integer. */
  seed: number | bigint;
}

/** What the engine did for one answer, before anything is read into it. */
export interface Generation {
  text: string;
  tokenIds: number[];
  promptTokens: number;
  stopReason: StopReason;
  /** What the model's confidence head makes of prompt and answer; null without one, or if the answer has no end. */
  confidence: number | null;
  prefillMs: number;
  decodeMs: number;
  memoryBytes: number;
  /** One SHA-256 per drawn id, over the logits (little-endian f32) it was drawn from; empty unless asked for. */
  logitsSha256: string[];
}

export interface Scoring {
  /** ln p of each call after the prompt, in the order of the calls. */
  logProbabilities: number[];
  promptTokens: number;
  memoryBytes: number;
}

export interface Answer {
  envelope: Envelope;
  route: RouteRecord;
  /** Why the selected member (or the router) did not answer; for people, never stored. */
  cause: FamilyError | null;
  /** Only with `trace: true`. */
  trace?: { logits_sha256: string[] };
}

/* ---- What a page can watch ---- */

export type MemberState = 'absent' | 'downloading' | 'stored' | 'opening' | 'ready' | 'failed';
export type MemberRole = 'base' | 'router' | 'specialist';

export interface MemberStatus {
  id: string;
  role: MemberRole;
  title: string;
  about: string;
  state: MemberState;
  /** The complete model, as rebuilt. */
  bytes: number;
  /** What it costs to fetch: the whole file or the patch. */
  downloadBytes: number;
  /** How much of that is here. */
  haveBytes: number;
  kind: 'whole' | 'patch';
  /** How it differs from its plain export, if it does. */
  lossy: LossySpec | null;
  /** Memory of its worker; 0 when it sleeps. */
  memoryBytes: number;
  error: FamilyError | null;
}

export type StorageNotice = 'denied' | 'full' | 'insecure';

export interface EngineStatus {
  bytes: number;
  haveBytes: number;
  variant: 'plain' | 'relaxed';
  /** Why it is the plain one although the other was meant. */
  error: FamilyError | null;
}

export interface FamilyStatus {
  name: string;
  title: string;
  release: string;
  numerics: 'exact' | 'fast';
  /** `saved`: the network gave no good manifest, and the one of the last visit is in use. */
  manifestFrom: 'network' | 'saved';
  manifestError: FamilyError | null;
  storage: { kind: 'cache' | 'memory'; notice: StorageNotice | null };
  memory: { usedBytes: number; budgetBytes: number };
  engine: EngineStatus;
  members: MemberStatus[];
}

export type RespondProgress =
  | { phase: 'download'; member: string; haveBytes: number; totalBytes: number }
  | { phase: 'open'; member: string; writtenBytes: number; totalBytes: number }
  | { phase: 'route' }
  | { phase: 'prefill'; member: string; doneTokens: number; totalTokens: number }
  | { phase: 'answer'; member: string }
  /** What was streamed so far is void; the base starts afresh. */
  | { phase: 'fallback'; member: string; reason: RouteReason };

export interface RespondOptions {
  signal?: AbortSignal;
  onToken?: (token: { member: string; text: string; tokenCount: number }) => void;
  onProgress?: (progress: RespondProgress) => void;
  sampling?: Partial<Sampling>;
  trace?: boolean;
}

export type FamilyEvent =
  | { type: 'members' }
  | { type: 'download'; member: string; haveBytes: number; totalBytes: number }
  | { type: 'storage'; notice: StorageNotice }
  /** The base was rebuilt from an earlier release's, or, with an error, was not and travels whole. */
  | { type: 'upgrade'; fromSha256: string; error: FamilyError | null }
  | { type: 'route'; record: RouteRecord };

export interface StoredFile {
  sha256: string;
  bytes: number;
  /** Ids of the members that need it; `engine` for the engine; empty for files of older releases. */
  usedBy: string[];
}

export interface FamilyOptions {
  /** Memory that all workers together may take. */
  memoryBudgetBytes?: number;
  onEvent?: (event: FamilyEvent) => void;
  /** Aborts opening. */
  signal?: AbortSignal;
  /** No byte for this long ends an attempt. */
  idleMs?: number;
  /** The same for the manifest, if there is one of an earlier visit. */
  patienceMs?: number;
  /** Pause before the second attempt; doubles for each further one. */
  retryMs?: number;
  /** A worker that owes an answer and says nothing for this long is given up. */
  silenceMs?: number;
  /** Replaces what the browser offers; for tests and unusual hosts. */
  host?: Partial<Host>;
}

/** What the library takes from its surroundings. */
export interface Host {
  fetch: typeof fetch;
  caches: CacheStorage | undefined;
  subtle: SubtleCrypto | undefined;
  locks: LockManager | undefined;
  /** Unless the options say otherwise. */
  memoryBudgetBytes: number;
  /** Whether WebAssembly here knows the relaxed dot product. */
  hasRelaxedSimd: boolean;
  isOnline: () => boolean;
  createWorker: (name: string) => Worker;
}

export type { Code };
