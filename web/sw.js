/* The service worker: keeps one release of the page for offline use.
 *
 * Owns: the page's own files (HTML, CSS, modules), one cache per release, named by scope and release.
 * Knows nothing of: the manifest, the engine and the parts; those pass by untouched, the library keeps them itself.
 *
 * Why releases never mix: modules lie under a folder named by their hash, so a page can only load its own; the saved
 * index.html is accepted only if it names this worker's release; and an old cache is deleted in `activate`, which
 * the browser runs when no tab is left that the old worker serves.
 *
 * A classic script without imports: the whole worker is this one file, so an update is one comparison of bytes. */
'use strict';

(() => {
  const self_ = /** @type {ServiceWorkerGlobalScope} */ (/** @type {unknown} */ (self));
  const RELEASE = '{{RELEASE}}';
  /** `[path relative to the scope, integrity or '']`; index.html among them, without one: hosts may add a line to it.
   *  @type {[string, string][]} */
  const PRECACHE = JSON.parse('{{PRECACHE}}');
  const SCOPE = self_.registration.scope;
  const FAMILY_OF_CACHES = `saguaro-page ${new URL(SCOPE).pathname} `;
  const CACHE = FAMILY_OF_CACHES + RELEASE;
  const INDEX = new URL('index.html', SCOPE).href;
  const KEPT = new Map(PRECACHE.map(([path, integrity]) => [new URL(path, SCOPE).href, integrity]));
  /** With a saved page at hand, this long a silent network may keep the visitor waiting. */
  const PATIENCE_MS = 5000;

  self_.addEventListener('install', (event) => event.waitUntil(install()));
  self_.addEventListener('activate', (event) => event.waitUntil(activate()));
  self_.addEventListener('message', (event) => event.waitUntil(takeOverIfAlone(event.data)));
  self_.addEventListener('fetch', (event) => {
    const { request } = event;
    if (request.method !== 'GET') return;
    const url = request.url.split(/[?#]/)[0] ?? request.url;
    if (request.mode === 'navigate' && (url === SCOPE || url === INDEX)) event.respondWith(openPage(request));
    else if (KEPT.has(url)) event.respondWith(openFile(request));
  });

  async function install() {
    const cache = await caches.open(CACHE);
    await Promise.all([...KEPT].map(([url, integrity]) => keep(cache, url, integrity)));
  }

  /**
   * @param {Cache} cache
   * @param {string} url
   * @param {string} integrity what a host answers in the place of a missing file must not be kept
   */
  async function keep(cache, url, integrity) {
    // What has its hash beside it may come from the browser's own cache, where the page has just put it.
    const response = await fetch(url, { cache: integrity === '' ? 'reload' : 'default', integrity });
    if (!response.ok) throw new Error(`${url}: is status ${response.status}, must be 200`);
    if (url === INDEX && !(await response.clone().text()).includes(`data-release="${RELEASE}"`)) {
      throw new Error(`${url}: is another release than ${RELEASE}; the next visit tries again`);
    }
    await cache.put(url, unredirected(response));
  }

  /**
   * A navigation refuses a response that came through a redirect (hosts that turn /index.html into / send one).
   * @param {Response} response
   */
  function unredirected(response) {
    if (!response.redirected) return response;
    const { status, statusText, headers } = response;
    return new Response(response.body, { status, statusText, headers });
  }

  async function activate() {
    const names = await caches.keys();
    const old = names.filter((name) => name.startsWith(FAMILY_OF_CACHES) && name !== CACHE);
    await Promise.all(old.map((name) => caches.delete(name)));
    await self_.clients.claim();
  }

  /**
   * A page of this release may ask the waiting worker to start at once; no other tab may be open, it could be older.
   * @param {unknown} message
   */
  async function takeOverIfAlone(message) {
    if (message !== `take over ${RELEASE}`) return;
    const tabs = await self_.clients.matchAll({ type: 'window', includeUncontrolled: true });
    if (tabs.length === 1) await self_.skipWaiting();
  }

  /**
   * The network first, so that a new release reaches people; the saved page when there is no network.
   * @param {Request} request
   */
  async function openPage(request) {
    const saved = await caches.match(INDEX, { cacheName: CACHE });
    const patience = new AbortController();
    const timer = saved ? setTimeout(() => patience.abort(), PATIENCE_MS) : undefined;
    try {
      const fresh = await fetch(request.url, { cache: 'no-cache', signal: patience.signal });
      return fresh.ok || !saved ? unredirected(fresh) : saved;
    } catch (error) {
      if (saved) return saved;
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** @param {Request} request */
  async function openFile(request) {
    return (await caches.match(request.url, { cacheName: CACHE, ignoreSearch: true })) ?? fetch(request);
  }
})();
