/**
 * Where responses went: a bounded list in memory.
 *
 * Owns: the last route records and their counts. A record holds indices, scores and ids; no text, tokens, logits or hidden
 * states ever enter here. Source: docs/dispatch.md, "The route record". Knows nothing of: disks, networks.
 */

/** @import { RouteRecord } from './types.d.ts' */

const RECORDS_MAX = 256;

export class RouteTelemetry {
  #recordsMax;
  /** @type {RouteRecord[]} */
  #records = [];

  /** @param {number} [recordsMax] */
  constructor(recordsMax = RECORDS_MAX) {
    this.#recordsMax = recordsMax;
  }

  /** @param {RouteRecord} route only the fields of a record are copied */
  record({ selected, effective, scores, overflow, reason, ids }) {
    this.#records.push({ selected, effective, scores: [...scores], overflow, reason, ids: [...ids] });
    if (this.#records.length > this.#recordsMax) this.#records.shift();
  }

  /** Copies, oldest first. */
  get records() {
    return structuredClone(this.#records);
  }

  summarize() {
    const specialist = this.#records.filter(({ effective }) => effective > 0);
    return {
      response_count: this.#records.length,
      anchor_count: this.#records.length - specialist.length,
      specialist_count: specialist.length,
      overflow_count: this.#records.filter(({ overflow }) => overflow).length,
    };
  }
}
