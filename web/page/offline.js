/**
 * The service worker, seen from the page.
 *
 * Owns: registering it; asking a waiting one of this page's own release to start at once. Knows nothing of: models.
 */
export async function keepPageForOffline() {
  if (!('serviceWorker' in navigator)) return;
  const script = new URL('sw.js', document.baseURI);
  let registration;
  try {
    registration = await navigator.serviceWorker.register(script);
  } catch {
    // A private window or a host without the file: the page works, but not offline.
    return;
  }
  askToTakeOver(registration.waiting);
  watch(registration.installing);
  registration.addEventListener('updatefound', () => watch(registration.installing));
}

/** @param {ServiceWorker | null} worker */
function watch(worker) {
  worker?.addEventListener('statechange', () => {
    if (worker.state === 'installed') askToTakeOver(worker);
  });
}

/** @param {ServiceWorker | null} worker */
function askToTakeOver(worker) {
  worker?.postMessage(`take over ${document.documentElement.dataset.release}`);
}
