/**
 * One opened model: tokenizer, session, logits, sampling.
 *
 * Owns: the order of the engine's calls and the memory they need; sizes are asked for before memory is taken, and a session
 * is as large as its request. Source: engine/include/saguaro.h. Knows nothing of: messages, when to stop.
 */

/** @import { Address, Engine } from './engine.js' */
/** @import { Sampling } from '../family/types.d.ts' */

import { FamilyError } from '../family/errors.js';
import { toHex } from '../family/hash.js';
import { Workspace } from './engine.js';

const SAMPLING_BYTES = 24;
const DETOKENIZER_BYTES = 12;
const SHA256_STATE_BYTES = 104;
const DIGEST_BYTES = 32;
/** Ids handed over in one call; a longer prefill comes in blocks anyway. */
const ID_COUNT_MAX = 4096;
/** SG_DETOKENIZE_BYTES_MAX: the longest piece, and what may have been held back before it. */
const PIECE_BYTES_MAX = 65544;
/** The longest character in UTF-8. */
export const CHARACTER_BYTES = 4;
/** enum sg_numerics. */
const NUMERICS = Object.freeze({ exact: 0, fast: 1 });
/** enum sg_head_code. */
const HEAD_CONFIDENCE = 2;
/** The fields of sg_model_info, in order, 4 bytes each. */
const INFO_FIELDS = /** @type {const} */ ([
  ...['tag', 'vocab_count', 'logit_count', 'piece_count', 'layer_count', 'd_model', 'max_seq_len'],
  ...['pad_id', 'eos_id', 'bos_id', 'unk_id', 'im_start_id', 'im_end_id', 'think_open_id', 'think_close_id'],
  ...['tool_call_open_id', 'tool_call_close_id', 'heads'],
]);

const DESK_BYTES = {
  /** A double, or two words. */
  out: 8,
  info: 4 * INFO_FIELDS.length,
  sampling: SAMPLING_BYTES,
  detokenizer: DETOKENIZER_BYTES,
  hash: SHA256_STATE_BYTES,
  digest: DIGEST_BYTES,
  piece: PIECE_BYTES_MAX,
  ids: 4 * ID_COUNT_MAX,
};

/** @typedef {Record<typeof INFO_FIELDS[number], number>} ModelInfo */

export class Model {
  #engine;
  #numerics;
  #model;
  #workspace;
  #info;
  /** Small blocks for what goes in and comes out through addresses. */
  #desk;
  /** @type {Address} */
  #session = 0;
  /** Of the answer under way, where its tools are declared. @type {Address} */
  #grammar = 0;
  #longestPieceBytes = 0;

  /**
   * Checks the whole container and opens it where it lies.
   * @param {Engine} engine
   * @param {Address} file
   * @param {number} fileBytes
   * @param {keyof typeof NUMERICS} numerics of every session
   */
  constructor(engine, file, fileBytes, numerics) {
    this.#engine = engine;
    this.#numerics = NUMERICS[numerics];
    this.#desk = engine.reserveBlocks(DESK_BYTES);
    engine.check('sg_model_measure', file, fileBytes, this.#desk.out);
    const modelBytes = engine.word(this.#desk.out);
    const memory = engine.reserve(modelBytes);
    engine.check('sg_model_open', file, fileBytes, memory, modelBytes, this.#desk.out);
    this.#model = engine.word(this.#desk.out);
    engine.call('sg_model_describe', this.#model, this.#desk.info);
    const entries = INFO_FIELDS.map((name, i) => [name, engine.word(this.#desk.info + 4 * i)]);
    this.#info = /** @type {ModelInfo} */ (Object.fromEntries(entries));
    this.#workspace = new Workspace(engine);
  }

  get info() {
    return this.#info;
  }

  get memoryBytes() {
    return this.#engine.memoryBytes;
  }

  /** No id of an encoded text stands for more of it, in bytes or UTF-16 units. Measured once, when it is first asked for. */
  get longestPieceBytes() {
    this.#longestPieceBytes ||= this.#measurePieces();
    return this.#longestPieceBytes;
  }

  /** Token ids, without BOS. Ends the session, whose memory it uses. @param {string} text @returns {number[]} */
  encode(text) {
    this.#session = 0;
    const utf8 = new TextEncoder().encode(text);
    const scratchBytes = this.#engine.call('sg_encode_scratch_size', utf8.length) >>> 0;
    // A space becomes U+2581, which is three bytes and, by byte fallback, up to three ids; so does a dummy prefix.
    const idCount = 3 * utf8.length + 3;
    const idsOffset = 16 * Math.ceil(scratchBytes / 16);
    const textOffset = idsOffset + 4 * idCount;
    const scratch = this.#workspace.take(textOffset + utf8.length);
    const [ids, at] = [scratch + idsOffset, scratch + textOffset];
    this.#engine.bytes(at, utf8.length).set(utf8);
    this.#engine.check(
      'sg_encode',
      ...[this.#model, at, utf8.length, ids, idCount, this.#desk.out, scratch, scratchBytes],
    );
    return [...this.#engine.words(ids, this.#engine.word(this.#desk.out))];
  }

  /** Whether the model has a head that judges answers. */
  get hasConfidence() {
    return ((this.#info.heads >> HEAD_CONFIDENCE) & 1) === 1;
  }

  /**
   * A fresh cache for this many tokens, and the grammar of the tools unless they are empty.
   * @param {number} capacityTokens
   * @param {object} options
   * @param {number} options.pinnedTokens the first ones, which stay visible behind the KV window of generation 2
   * @param {boolean} [options.isJudged] the confidence head listens; the model must have it
   * @param {string} [options.tools] JSON
   */
  openSession(capacityTokens, { pinnedTokens, isJudged = false, tools = '' }) {
    const text = new TextEncoder().encode(tools);
    const grammarBytes = text.length > 0 ? this.#measureGrammar(text) : 0;
    const listenBytes = isJudged ? this.#measureConfidence() : 0;
    const asked = [this.#model, capacityTokens, this.#numerics];
    this.#engine.check('sg_session_measure', ...asked, this.#desk.out);
    const sessionBytes = this.#engine.word(this.#desk.out);
    const memory = this.#workspace.take(sessionBytes + listenBytes + grammarBytes + text.length);
    const listener = memory + sessionBytes;
    const grammar = listener + listenBytes;
    this.#grammar = grammarBytes > 0 ? this.#openGrammar(text, grammar, grammarBytes) : 0;
    this.#engine.check('sg_session_open', ...asked, memory, sessionBytes, this.#desk.out);
    this.#session = this.#engine.word(this.#desk.out);
    this.#engine.check('sg_session_pin', this.#session, pinnedTokens);
    if (isJudged) {
      this.#engine.check('sg_session_listen', this.#session, HEAD_CONFIDENCE, listener, listenBytes);
    }
    this.#engine.call('sg_detokenizer_init', this.#desk.detokenizer);
  }

  /** What the confidence head makes of the tokens so far, 0 to 1: is the answer that they end with right? */
  confidence() {
    this.#engine.check('sg_session_head', this.#session, HEAD_CONFIDENCE, this.#desk.out);
    return this.#engine.float(this.#engine.word(this.#desk.out));
  }

  /** @param {Uint8Array} text */
  #measureGrammar(text) {
    const at = this.#workspace.take(text.length);
    this.#engine.bytes(at, text.length).set(text);
    this.#engine.check('sg_grammar_measure', this.#model, at, text.length, this.#desk.out);
    return 16 * Math.ceil(this.#engine.word(this.#desk.out) / 16);
  }

  /** The text lies behind the grammar, and only as long as it is read. @param {Uint8Array} text @param {Address} memory @param {number} bytes */
  #openGrammar(text, memory, bytes) {
    const at = memory + bytes;
    this.#engine.bytes(at, text.length).set(text);
    this.#engine.check('sg_grammar_open', this.#model, at, text.length, memory, bytes, this.#desk.out);
    return this.#engine.word(this.#desk.out);
  }

  #measureConfidence() {
    this.#engine.check('sg_head_measure', this.#model, HEAD_CONFIDENCE, this.#desk.out, this.#desk.out + 4);
    return this.#engine.word(this.#desk.out + 4);
  }

  /** @param {readonly number[]} ids */
  append(ids) {
    this.#engine.check('sg_session_append', this.#session, this.#put(ids), ids.length);
  }

  /** ln p of the ids after what the session holds; the session stays as it is. @param {readonly number[]} ids */
  score(ids) {
    this.#engine.check('sg_session_score', this.#session, this.#put(ids), ids.length, this.#desk.out);
    return this.#engine.double(this.#desk.out);
  }

  /** @param {Sampling} sampling the seed is where the random stream starts */
  startSampling({ temperature, top_p: topP, top_k: topK, seed }) {
    this.#engine.setFloat(this.#desk.sampling, temperature);
    this.#engine.setFloat(this.#desk.sampling + 4, topP);
    this.#engine.setWord(this.#desk.sampling + 8, topK);
    this.#engine.setWord(this.#desk.sampling + 12, 0);
    this.#engine.setLong(this.#desk.sampling + 16, seed);
  }

  /**
   * The next id, drawn from the present logits; moves the random stream. With a grammar: one that it allows.
   * @param {number} roomTokens ids that the answer may still keep, this one included
   */
  sample(roomTokens) {
    const { sampling, out } = this.#desk;
    if (this.#grammar === 0) this.#engine.check('sg_session_sample', this.#session, sampling, out);
    else this.#engine.check('sg_session_sample_allowed', this.#session, this.#grammar, roomTokens, sampling, out);
    return this.#engine.word(out);
  }

  /** Tells the grammar that the answer keeps the id. @param {number} id */
  accept(id) {
    if (this.#grammar !== 0) this.#engine.check('sg_grammar_accept', this.#grammar, id);
  }

  /** Text that is certain with this id. @param {number} id */
  detokenize(id) {
    const { detokenizer, piece, out } = this.#desk;
    this.#engine.check('sg_detokenize', this.#model, detokenizer, id, piece, PIECE_BYTES_MAX, out);
    return this.#pieceText();
  }

  /** The rest of the text. */
  flushText() {
    const { detokenizer, piece, out } = this.#desk;
    const status = this.#engine.call('sg_detokenize_flush', detokenizer, piece, PIECE_BYTES_MAX, out);
    if (status !== 0) throw new FamilyError('buffer_too_small', 'sg_detokenize_flush: the buffer is too small');
    return this.#pieceText();
  }

  /** SHA-256 of the present logits, little-endian f32. */
  logitsSha256() {
    this.#engine.check('sg_session_logits', this.#session, this.#desk.out);
    const { digest } = this.#desk;
    this.#engine.call('sg_sha256_init', this.#desk.hash);
    const logits = this.#engine.word(this.#desk.out);
    this.#engine.call('sg_sha256_update', this.#desk.hash, logits, 4 * this.#info.logit_count);
    this.#engine.call('sg_sha256_final', this.#desk.hash, digest);
    return toHex(this.#engine.bytes(digest, DIGEST_BYTES));
  }

  #measurePieces() {
    const { detokenizer, piece, out } = this.#desk;
    let longest = 0;
    for (let id = 0; id < this.#info.piece_count; id += 1) {
      this.#engine.call('sg_detokenizer_init', detokenizer);
      this.#engine.check('sg_detokenize', this.#model, detokenizer, id, piece, PIECE_BYTES_MAX, out);
      longest = Math.max(longest, this.#engine.word(out));
    }
    // A dummy prefix hides one space; a character without a piece is one id, too.
    return Math.max(longest + 1, CHARACTER_BYTES);
  }

  #pieceText() {
    const bytes = this.#engine.bytes(this.#desk.piece, this.#engine.word(this.#desk.out));
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
  }

  /** @param {readonly number[]} ids @returns {Address} */
  #put(ids) {
    if (this.#session === 0) throw new FamilyError('bad_state', 'there is no open session');
    if (ids.length > ID_COUNT_MAX) {
      throw new FamilyError('bad_argument', `ids: are ${ids.length}, must be at most ${ID_COUNT_MAX} in one call`);
    }
    this.#engine.words(this.#desk.ids, ids.length).set(ids);
    return this.#desk.ids;
  }
}
