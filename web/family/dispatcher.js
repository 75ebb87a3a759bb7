/**
 * Who answers: route once, let the chosen member answer, and let the base answer whenever anything is in doubt.
 *
 * Owns: docs/dispatch.md from a conversation to an answer and its route record.
 * Knows nothing of: workers, downloads, budgets (a `Team` does).
 */

/** @import { Answer, Envelope, Generation, Manifest, MemberSpec, RespondOptions } from './types.d.ts' */
/** @import { RouteReason, Sampling, Scoring } from './types.d.ts' */
/** @import { Code } from './errors.js' */

import { errorAnswer, readAnswer } from './envelope.js';
import { FamilyError, asFamilyError } from './errors.js';
import { candidateCalls, cleanConversation, fixedPart, promptChoices } from './prompts.js';
import { chooseCandidate } from './router.js';
import { completeSampling } from './sampling.js';

/** @typedef {{ query: string, earlier: string[] }} Conversation */

/**
 * Members as the dispatcher needs them. Both methods open the member first, and reject with a `FamilyError`.
 * @typedef {object} Team
 * @property {(spec: MemberSpec, work: ScoreWork, options: RespondOptions) => Promise<Scoring>} score
 * @property {(spec: MemberSpec, work: GenerateWork, options: RespondOptions) => Promise<Generation>} generate
 */

/** @typedef {{ fixed: string, prompts: string[], calls: string[] }} ScoreWork */

/**
 * @typedef {object} GenerateWork
 * @property {string} fixed how all of them begin
 * @property {string[]} prompts the first one that fits is used
 * @property {string} tools
 * @property {number} maxNewTokens
 * @property {Sampling} sampling
 * @property {boolean} trace
 */

/** @typedef {{ selected: number, scores: (number | null)[], reason: RouteReason, cause: FamilyError | null }} Route */

/** Causes that have a word of their own in a route record; the others are `member_unavailable`.
 *  @type {Partial<Record<Code, RouteReason>>} */
const REASONS = {
  context_full: 'context_full',
  out_of_memory: 'over_budget',
  over_budget: 'over_budget',
  worker_lost: 'worker_lost',
};

/**
 * The error `empty_turn` or `bad_argument` if there is nothing to answer, else null.
 * @param {Manifest} manifest
 * @param {readonly string[]} turns
 * @param {RespondOptions} options
 * @returns {Answer | null}
 */
export function refuse(manifest, turns, { sampling }) {
  try {
    if (!Array.isArray(turns) || turns.some((turn) => typeof turn !== 'string')) {
      throw new FamilyError('bad_argument', 'turns: must be a list of texts');
    }
    if (cleanConversation(turns).query === '') {
      throw new FamilyError('empty_turn', 'the message is empty; type something first');
    }
    completeSampling(sampling);
    return null;
  } catch (error) {
    const envelope = errorAnswer(asFamilyError(error, 'bad_argument'), manifest.base.id, manifest.numerics);
    return wrap(manifest, 0, unrouted(manifest), { envelope });
  }
}

/**
 * Answers the last of the user's `turns`, which `refuse` let pass. Whatever a member does ends in an envelope; only an abort
 * before there is anything to show rejects (code `aborted`), and the end of the family (`closed`).
 * @param {Manifest} manifest
 * @param {Team} team
 * @param {readonly string[]} turns oldest first
 * @param {RespondOptions} options
 * @returns {Promise<Answer>}
 */
export async function respond(manifest, team, turns, options) {
  const conversation = cleanConversation(turns);
  const route = await chooseRoute(manifest, team, conversation, options);
  const specialist = manifest.specialists[route.selected - 1];
  if (specialist) {
    const answer = await answerWithSpecialist(manifest, team, specialist, conversation, options, route);
    if (answer) return wrap(manifest, route.selected, route, answer);
    options.onProgress?.({ phase: 'fallback', member: manifest.base.id, reason: route.reason });
  }
  return wrap(manifest, 0, route, await answerWithBase(manifest, team, conversation, options));
}

/** @param {Manifest} manifest @returns {Route} */
function unrouted(manifest) {
  return { selected: 0, scores: [0, ...manifest.specialists.map(() => null)], reason: 'none', cause: null };
}

/**
 * @param {Manifest} manifest @param {Team} team @param {Conversation} conversation @param {RespondOptions} options
 * @returns {Promise<Route>}
 */
async function chooseRoute(manifest, team, conversation, options) {
  const { router, specialists } = manifest;
  const route = unrouted(manifest);
  if (!router || specialists.length === 0) return route;
  const prompts = promptChoices(router.prompt, conversation);
  const calls = candidateCalls(specialists.map(({ id }) => id));
  try {
    const { logProbabilities } = await team.score(router, { fixed: fixedPart(router.prompt), prompts, calls }, options);
    return { ...route, ...chooseCandidate(logProbabilities) };
  } catch (error) {
    const cause = failure(error);
    return { ...route, cause, reason: cause.code === 'context_full' ? 'context_full' : 'router_unavailable' };
  }
}

/** @typedef {{ envelope: Envelope, logitsSha256?: string[] }} Answered */

/**
 * The specialist's answer, or null after the route was told why the base must answer.
 * @param {Manifest} manifest @param {Team} team @param {MemberSpec} spec @param {Conversation} conversation
 * @param {RespondOptions} options @param {Route} route
 * @returns {Promise<Answered | null>}
 */
async function answerWithSpecialist(manifest, team, spec, conversation, options, route) {
  try {
    const answer = await ask(manifest, team, spec, conversation, options);
    const { success, stop_reason: stopReason } = answer.envelope;
    if (stopReason === 'length') route.reason = 'answer_truncated';
    else if (!success && stopReason !== 'aborted') route.reason = 'answer_malformed';
    else return answer;
  } catch (error) {
    route.cause = failure(error);
    route.reason = REASONS[route.cause.code] ?? 'member_unavailable';
  }
  return null;
}

/**
 * @param {Manifest} manifest @param {Team} team @param {Conversation} conversation @param {RespondOptions} options
 * @returns {Promise<Answered>}
 */
async function answerWithBase(manifest, team, conversation, options) {
  try {
    return await ask(manifest, team, manifest.base, conversation, options);
  } catch (error) {
    return { envelope: errorAnswer(failure(error), manifest.base.id, manifest.numerics) };
  }
}

/**
 * One member's answer from a fresh cache.
 * @param {Manifest} manifest @param {Team} team @param {MemberSpec} spec @param {Conversation} conversation
 * @param {RespondOptions} options
 */
async function ask(manifest, team, spec, conversation, options) {
  const work = {
    fixed: fixedPart(spec.prompt),
    prompts: promptChoices(spec.prompt, conversation),
    tools: spec.prompt.tools,
    maxNewTokens: /** @type {number} */ (spec.max_new_tokens),
    sampling: completeSampling(options.sampling),
    trace: options.trace === true,
  };
  const generation = await team.generate(spec, work, options);
  const envelope = readAnswer(generation, spec.id, manifest.numerics);
  return { envelope, logitsSha256: generation.logitsSha256 };
}

/**
 * @param {Manifest} manifest @param {number} effective @param {Route} route @param {Answered} answered
 * @returns {Answer}
 */
function wrap(manifest, effective, { selected, scores, reason, cause }, { envelope, logitsSha256 }) {
  const ids = [manifest.base, ...manifest.specialists].map(({ id }) => id);
  const route = { selected, effective, scores, overflow: reason !== 'none', reason, ids };
  return { envelope, route, cause, ...(logitsSha256?.length ? { trace: { logits_sha256: logitsSha256 } } : {}) };
}

/** The failure as an error; an abort is not one, it ends the response. @param {unknown} error */
function failure(error) {
  const known = asFamilyError(error, 'worker_lost');
  if (known.code === 'aborted' || known.code === 'closed') throw known;
  return known;
}
