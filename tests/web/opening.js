// A family over the fakes, as most tests open it.
import { openFamily } from '../../web/family/index.js';
import { ROOT, makeCaches, makeNetwork, makeOptions, makeSite, makeWorkers } from './fakes.js';

/** What the router makes of each member's id. */
export const LOGS = { base: [-1, -3, -4], home: [-3, -1, -4], media: [-3, -4, -1] };
export const CALL = '<tool_call>[{"name":"set_light","arguments":{"room":"bedroom"}}]</tool_call>';
/** A script in which the router prefers `id`. */
export const turned = (id, more = {}) => ({ router: { logs: LOGS[id] }, base: { text: 'hello from the base' }, home: { text: CALL }, media: { text: CALL }, ...more });

export async function open({ script = turned('home'), site = makeSite(), memoryBytes, caches = makeCaches(), workers, ...more } = {}) {
  const network = makeNetwork(site);
  const crew = workers ?? makeWorkers(script, { memoryBytes });
  const events = [];
  const options = makeOptions({ network, caches, workers: crew, onEvent: (event) => events.push(event), ...more });
  const family = await openFamily(`${ROOT}family.json`, options);
  const states = () => Object.fromEntries(family.members.map(({ id, state }) => [id, state]));
  return { family, network, caches, workers: crew, events, site, states, options };
}

/** A pure base run, for "as if it had been alone". */
export async function baseAlone(turns) {
  const { family } = await open({ script: turned('base') });
  return (await family.respond(turns)).envelope;
}
