/**
 * Who answered and why: one line, and the figures behind it.
 *
 * Owns: the words for a route record. Knows nothing of: how routes are chosen.
 */

/** @import { Answer, MemberStatus } from '../family/types.d.ts' */

import { h } from './dom.js';
import { formatBytes, formatRate, formatScore } from './format.js';
import { fallbackSentence } from './sentences.js';

/** @param {Answer} answer @param {readonly MemberStatus[]} members */
export function routeNote(answer, members) {
  const { route, envelope } = answer;
  const titles = route.ids.map((id) => members.find((member) => member.id === id)?.title ?? id);
  return h(
    'details',
    { class: route.overflow ? 'why fallback' : 'why' },
    h(
      'summary',
      {},
      h('span', { class: 'dot', 'data-hue': route.effective % 6 }),
      h('span', {}, whoLine(answer, members, titles)),
    ),
    scoreTable(answer, titles),
    h('p', { class: 'fine' }, workLine(envelope)),
  );
}

/** @param {Answer} answer @param {readonly MemberStatus[]} members @param {readonly string[]} titles */
function whoLine({ route, cause }, members, titles) {
  const who = titles[route.effective] ?? '';
  if (route.overflow) {
    const wanted = route.selected > 0 ? (titles[route.selected] ?? '') : '';
    const why = fallbackSentence(route.reason, wanted, cause?.code ?? null);
    return `${who} answered${wanted ? ` instead of ${wanted}` : ''}: ${why}`;
  }
  const scores = route.scores.slice(1).filter((score) => score !== null);
  if (route.effective === 0) {
    if (scores.length === 0) return `${who} answered`;
    return `${who} answered · no specialist scored above 0 (best ${formatScore(Math.max(...scores))})`;
  }
  const member = members.find(({ id }) => id === route.ids[route.effective]);
  const cost = member ? ` · ${member.kind === 'patch' ? 'patch' : 'model'} ${formatBytes(member.downloadBytes)}` : '';
  const score = route.scores[route.effective];
  return `${who} answered${cost}${typeof score === 'number' ? ` · router score ${formatScore(score)}` : ''}`;
}

/** @param {Answer} answer @param {readonly string[]} titles */
function scoreTable({ route }, titles) {
  if (route.scores.every((score, i) => i === 0 || score === null)) return null;
  const rows = route.scores.map((score, i) =>
    h(
      'tr',
      { class: i === route.selected ? 'chosen' : null },
      h('th', { scope: 'row' }, titles[i] ?? ''),
      h('td', {}, score === null ? '\u2013' : i === 0 ? '0' : formatScore(score)),
    ),
  );
  return h('table', { class: 'scores', 'aria-label': 'Router scores' }, h('tbody', {}, ...rows));
}

/** @param {Answer['envelope']} envelope */
function workLine({ prompt_tokens: promptTokens, token_ids: ids, prefill_tps: prefill, decode_tps: decode, numerics }) {
  return (
    `${promptTokens} tokens read at ${formatRate(prefill)}, ${ids.length} written at ${formatRate(decode)}, ` +
    `${numerics} numerics, on this device`
  );
}
