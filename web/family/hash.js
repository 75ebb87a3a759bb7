/**
 * SHA-256 of bytes, everywhere.
 *
 * Owns: the choice between the browser's `crypto.subtle` (off the page's thread) and plain JavaScript on origins where the
 * browser hides it (http:// addresses of a local network). The engine's own SHA-256 cannot serve there: it would have to
 * prove the engine. Source: FIPS 180-4. Knows nothing of: what is hashed.
 */

/** First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
const ROUND = Uint32Array.from(
  (
    '428a2f98 71374491 b5c0fbcf e9b5dba5 3956c25b 59f111f1 923f82a4 ab1c5ed5 d807aa98 12835b01 243185be 550c7dc3 72be5d74 ' +
    '80deb1fe 9bdc06a7 c19bf174 e49b69c1 efbe4786 0fc19dc6 240ca1cc 2de92c6f 4a7484aa 5cb0a9dc 76f988da 983e5152 a831c66d ' +
    'b00327c8 bf597fc7 c6e00bf3 d5a79147 06ca6351 14292967 27b70a85 2e1b2138 4d2c6dfc 53380d13 650a7354 766a0abb 81c2c92e ' +
    '92722c85 a2bfe8a1 a81a664b c24b8b70 c76c51a3 d192e819 d6990624 f40e3585 106aa070 19a4c116 1e376c08 2748774c 34b0bcb5 ' +
    '391c0cb3 4ed8aa4a 5b9cca4f 682e6ff3 748f82ee 78a5636f 84c87814 8cc70208 90befffa a4506ceb bef9a3f7 c67178f2'
  )
    .split(' ')
    .map((word) => parseInt(word, 16)),
);
const INITIAL = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/** @typedef {(bytes: Uint8Array<ArrayBuffer>) => Promise<string>} Hash lower-case hex */

/** @param {SubtleCrypto | undefined} subtle @returns {Hash} */
export function createHash(subtle) {
  if (!subtle) return async (bytes) => sha256(bytes);
  return async (bytes) => toHex(new Uint8Array(await subtle.digest('SHA-256', bytes)));
}

/** The same in plain JavaScript. @param {Uint8Array} bytes */
export function sha256(bytes) {
  const state = Uint32Array.from(INITIAL);
  const whole = bytes.length - (bytes.length % 64);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at < whole; at += 64) addBlock(state, view, at);

  const rest = bytes.length - whole;
  const tail = new DataView(new ArrayBuffer(rest < 56 ? 64 : 128));
  new Uint8Array(tail.buffer).set(bytes.subarray(whole));
  tail.setUint8(rest, 0x80);
  tail.setBigUint64(tail.byteLength - 8, BigInt(bytes.length) * 8n);
  for (let at = 0; at < tail.byteLength; at += 64) addBlock(state, tail, at);
  return [...state].map((word) => word.toString(16).padStart(8, '0')).join('');
}

/** @param {Uint8Array} bytes */
export function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

const schedule = new Uint32Array(64);

/** @param {Uint32Array} state @param {DataView} view @param {number} at */
function addBlock(state, view, at) {
  const w = schedule;
  for (let i = 0; i < 16; i += 1) w[i] = view.getUint32(at + 4 * i);
  for (let i = 16; i < 64; i += 1) {
    const x = word(w, i - 15);
    const y = word(w, i - 2);
    const s0 = rotate(x, 7) ^ rotate(x, 18) ^ (x >>> 3);
    const s1 = rotate(y, 17) ^ rotate(y, 19) ^ (y >>> 10);
    w[i] = word(w, i - 16) + s0 + word(w, i - 7) + s1;
  }
  let [a, b, c, d, e, f, g, h] = /** @type {[number, number, number, number, number, number, number, number]} */ (
    /** @type {unknown} */ (state)
  );
  for (let i = 0; i < 64; i += 1) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + word(ROUND, i) + word(w, i)) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((value, i) => (state[i] = word(state, i) + value));
}

/** An element that is there. @param {Uint32Array} words @param {number} index */
function word(words, index) {
  return /** @type {number} */ (words[index]);
}

/** @param {number} value @param {number} bits */
function rotate(value, bits) {
  return (value >>> bits) | (value << (32 - bits));
}
