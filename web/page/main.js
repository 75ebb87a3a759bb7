/**
 * The chat page.
 *
 * Owns: putting library and views together, and what the page says about its surroundings. Knows nothing of: the inside of any
 * of them.
 */

/** @import { FamilyEvent, FamilyStatus, MemberStatus } from '../family/types.d.ts' */

import { FamilyError, openFamily } from '../family/index.js';
import { Composer } from './composer.js';
import { Conversation } from './conversation.js';
import { DeviceView } from './device_view.js';
import { h, the } from './dom.js';
import { DownloadView } from './download_view.js';
import { formatBytes, formatList } from './format.js';
import { MembersView } from './members_view.js';
import { Notices } from './notices.js';
import { keepPageForOffline } from './offline.js';
import { sentenceFor, storageSentence } from './sentences.js';

const EXAMPLES_MAX = 3;

const notices = new Notices();
const download = new DownloadView();
const newChat = the('button', 'new-chat');
/** @type {Conversation | null} */
let conversation = null;
/** @type {Awaited<ReturnType<typeof openFamily>> | null} */
let family = null;
let isRefreshing = false;

const composer = new Composer({ send: (text) => ask(text), stop: () => conversation?.stop() });
const members = new MembersView(the('ul', 'members'), {
  download: (id) => void fetchMember(id),
  remove: (id) => void removeMember(id),
});
const device = new DeviceView({ downloadAll: () => void downloadAll(), deleteAll: () => void deleteAll() });

newChat.addEventListener('click', () => {
  conversation?.clear();
  showEmptiness();
  composer.enable();
});
for (const type of ['online', 'offline']) addEventListener(type, () => refresh());
document.addEventListener('visibilitychange', () => document.hidden || void family?.refresh());
void keepPageForOffline();
void start();

async function start() {
  notices.set('opening', null);
  try {
    family = await openFamily(new URL('family.json', document.baseURI), { onEvent });
  } catch (error) {
    const known = error instanceof FamilyError ? error : null;
    const { what, next } = sentenceFor(known?.code ?? null);
    the('p', 'welcome-cost').textContent = '';
    notices.set('opening', `${what} ${next}`, { label: 'Try again', act: () => void start() });
    if (!known) throw error;
    return;
  }
  conversation = new Conversation(family, composer, download);
  introduce(family.manifest.title, family.manifest.examples ?? []);
  composer.enable();
  refresh();
}

/** @param {string} title @param {readonly string[]} examples */
function introduce(title, examples) {
  document.title = title;
  the('p', 'title').textContent = title;
  the('h1', 'welcome-title').textContent = title;
  const chip = (/** @type {string} */ text) =>
    h('button', { type: 'button', class: 'chip', onclick: () => ask(text) }, text);
  the('div', 'examples').replaceChildren(...examples.slice(0, EXAMPLES_MAX).map(chip));
}

/** @param {string} text */
function ask(text) {
  conversation?.ask(text);
  showEmptiness();
}

function showEmptiness() {
  const isEmpty = conversation?.isEmpty ?? true;
  the('section', 'welcome').hidden = !isEmpty;
  newChat.hidden = isEmpty;
}

/** @param {FamilyEvent} event */
function onEvent(event) {
  if (event.type === 'members' || event.type === 'storage') refresh();
}

/** Brings everything that shows a state up to date, once per frame. */
function refresh() {
  if (isRefreshing) return;
  isRefreshing = true;
  requestAnimationFrame(() => {
    isRefreshing = false;
    if (family) void showState(family);
  });
}

/** @param {NonNullable<typeof family>} open */
async function showState(open) {
  const status = open.status();
  members.show(status.members);
  const here = status.members.filter(({ haveBytes, downloadBytes }) => haveBytes === downloadBytes);
  the('span', 'ready-count').textContent = `${here.length}/${status.members.length}`;
  const { notice } = status.storage;
  notices.set('storage', notice ? storageSentence(notice) : null);
  const isOffline = navigator.onLine === false;
  notices.set('offline', isOffline ? `You are offline. ${presenceSentence(here)}` : null);
  const isOld = status.manifestFrom === 'saved' && !isOffline && status.manifestError;
  notices.set('manifest', isOld ? `${sentenceFor(isOld.code).what} This page uses the list of models from your last visit.` : null);
  the('p', 'welcome-cost').textContent = costSentence(status);
  device.show(await open.list(), status);
}

/** @param {readonly MemberStatus[]} here */
function presenceSentence(here) {
  if (!here.some(({ role }) => role === 'base')) return 'The base model is not on this device yet.';
  const talkers = here.filter(({ role }) => role !== 'router').map(({ title }) => title);
  return `${formatList(talkers)} ${talkers.length > 1 ? 'are' : 'is'} on this device.`;
}

/** @param {FamilyStatus} status */
function costSentence({ engine, members: all }) {
  const absent = all.filter(({ haveBytes, downloadBytes }) => haveBytes < downloadBytes);
  const needed = absent.filter(({ role }) => role !== 'specialist');
  const engineBytes = engine.bytes - engine.haveBytes;
  const missing = needed.reduce((sum, { downloadBytes, haveBytes }) => sum + downloadBytes - haveBytes, engineBytes);
  const costs = absent.filter(({ role }) => role === 'specialist').map(({ downloadBytes }) => downloadBytes);
  const most = formatBytes(Math.max(...costs));
  const each = costs.length > 0 ? ` Specialists add up to ${most} each, when first needed.` : '';
  if (missing > 0) return `Your first message downloads ${formatBytes(missing)}; then it works offline.${each}`;
  return `It is on this device and works offline.${each}`;
}

/** False if its files were deleted meanwhile. @param {string} id */
async function fetchMember(id) {
  try {
    await family?.prefetch(id);
  } catch (error) {
    // The row of the member says what went wrong.
    if (!(error instanceof FamilyError)) throw error;
    if (error.code === 'asleep') return false;
  } finally {
    refresh();
  }
  return true;
}

/** @param {string} id */
async function removeMember(id) {
  await family?.remove(id);
  refresh();
}

async function downloadAll() {
  // Whoever asks for everything wants to keep it; some browsers ask the visitor, some decide alone.
  await navigator.storage?.persist?.().catch(() => false);
  for (const { id } of family?.members ?? []) if (!(await fetchMember(id))) return;
}

async function deleteAll() {
  await family?.removeAll();
  refresh();
}
