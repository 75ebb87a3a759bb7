/**
 * From log probabilities to a candidate.
 *
 * Owns: the anchored rule of docs/dispatch.md, "Route": candidate zero is the base with score 0, a specialist needs more.
 * Knows nothing of: where the numbers come from.
 */

/**
 * @param {readonly number[]} logProbabilities of the empty call, then of each specialist's
 * @returns {{ selected: number, scores: number[] }}
 */
export function chooseCandidate(logProbabilities) {
  const empty = logProbabilities[0] ?? 0;
  const scores = logProbabilities.map((value, i) => (i === 0 ? 0 : value - empty));
  let selected = 0;
  for (const [i, score] of scores.entries()) {
    if (score > (scores[selected] ?? 0)) selected = i;
  }
  return { selected, scores };
}
