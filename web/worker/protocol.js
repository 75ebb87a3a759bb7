/**
 * The version of the messages in types.d.ts.
 *
 * Owns: one number. A cache may hold a page and a worker of different releases; the first message carries the number, and
 * a worker that has another one refuses.
 */
export const PROTOCOL_VERSION = 2;
