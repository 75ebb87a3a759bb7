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
  const { waiting, installing } = registration;
  askToTakeOver(waiting);
  installing?.addEventListener('statechange', () => {
    if (installing.state === 'installed') askToTakeOver(registration.waiting);
  });
}

/** @param {ServiceWorker | null} worker */
function askToTakeOver(worker) {
  worker?.postMessage(`take over ${document.documentElement.dataset.release}`);
}
