/**
 * A tool call as a card: what would be done, with what.
 *
 * Owns: reading names and arguments aloud. Knows nothing of: doing it.
 */

/** @import { FunctionCall } from '../family/types.d.ts' */

import { h } from './dom.js';
import { humanName } from './format.js';

/** @param {FunctionCall} call */
export function toolCard({ name, arguments: values }) {
  const rows = Object.entries(values).map(([key, value]) =>
    h('tr', {}, h('th', { scope: 'row' }, humanName(key)), h('td', {}, ...shown(value))),
  );
  return h(
    'section',
    { class: 'card', 'aria-label': `Tool call ${name}` },
    h('header', {}, h('strong', {}, humanName(name)), h('code', {}, name)),
    rows.length > 0 ? h('table', {}, h('tbody', {}, ...rows)) : h('p', { class: 'fine' }, 'without arguments'),
  );
}

/** A card whose call is still being written. */
export function pendingCard() {
  const title = h('strong', {}, 'Preparing a call');
  return h('section', { class: 'card pending', 'aria-label': 'Tool call' }, h('header', {}, title));
}

/** @param {unknown} value @returns {(Node | string)[]} */
function shown(value) {
  if (typeof value === 'string') return [value === '' ? h('span', { class: 'fine' }, 'empty') : value];
  if (typeof value === 'number') return [value.toLocaleString('en', { maximumFractionDigits: 20, useGrouping: false })];
  if (typeof value === 'boolean') return [value ? 'yes' : 'no'];
  if (value === null) return [h('span', { class: 'fine' }, 'none')];
  if (Array.isArray(value) && value.every((item) => typeof item !== 'object')) return [value.map(String).join(', ')];
  return [h('code', {}, JSON.stringify(value, null, 1))];
}
