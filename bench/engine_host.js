/**
 * One model in one engine instance, and the official generation-2 engine, at a benchmark's command. The same module runs in
 * node (engine_node.mjs) and in a browser page.
 *
 * Knows nothing of: workers, the page, prompts, time: bench/engine_hosts.py reads the processor time of the process.
 */

const ALIGNMENT = 16;

/** Opens `model` with `engine`, both bytes; `numerics` is 0 (exact) or 1 (fast). */
export async function openEngine(engine, model, numerics, capacity) {
  const { instance } = await WebAssembly.instantiate(engine, {});
  const e = instance.exports;
  e._initialize?.();
  const reserve = (bytes) => e.sg_reserve(bytes + ALIGNMENT);
  const word = (at) => new Uint32Array(e.memory.buffer)[at >> 2];
  const desk = reserve(64);
  const check = (status) => {
    if (status) throw new Error(`engine: status ${status}`);
  };
  const file = reserve(model.length);
  new Uint8Array(e.memory.buffer).set(model, file);
  check(e.sg_model_measure(file, model.length, desk, desk + 8));
  const modelBytes = word(desk);
  check(e.sg_model_open(file, model.length, reserve(modelBytes), modelBytes, desk, desk + 8));
  const opened = word(desk);
  check(e.sg_session_measure(opened, capacity, numerics, desk, desk + 8));
  const sessionBytes = word(desk);
  check(e.sg_session_open(opened, capacity, numerics, reserve(sessionBytes), sessionBytes, desk, desk + 8));
  const session = word(desk);
  const room = reserve(4 * capacity);
  return {
    memoryBytes: () => e.memory.buffer.byteLength,
    reset: () => e.sg_session_reset(session),
    append(ids) {
      new Uint32Array(e.memory.buffer, room, ids.length).set(ids);
      check(e.sg_session_append(session, room, ids.length, desk + 8));
      check(e.sg_session_logits(session, desk, desk + 8)); // computed when they are asked for
    },
  };
}

const OFFICIAL_TOOLS = '[{"name":"set_light","parameters":{"type":"object","properties":{"room":{"type":"string"}}}}]';
const OFFICIAL_WORDS = 'turn on the lamp in the kitchen and ';

/** The official engine of generation 2: `createNeedle` is its runtime's factory, `model` a file of tag ...82. */
export async function openOfficial(createNeedle, wasmBinary, model) {
  const module = await createNeedle({ wasmBinary, noInitialRun: true });
  const file = module._malloc(model.length); // zero copy: must stay allocated
  module.HEAPU8.set(model, file);
  if (Number(module._needle_load(file, BigInt(model.length))) !== 0) throw new Error('the official engine refuses the file');
  const out = module._malloc(65536);
  return {
    complete(repeat, newTokens) {
      module.ccall('needle_init', 'number', ['string', 'string', 'string'], ['', OFFICIAL_TOOLS, '']);
      const types = ['string', 'number', 'number', 'number'];
      const words = OFFICIAL_WORDS.repeat(repeat);
      return Number(module.ccall('needle_complete', 'number', types, [words, newTokens, out, 65536]));
    },
  };
}

/** Runs one command of bench/engine_hosts.py; `read` gives a file's bytes, `load` a module. */
export async function obey(command, kept, read, load) {
  if (command.open === 'engine') {
    const bytes = [await read(command.wasm), await read(command.model)];
    kept[command.name] = await openEngine(...bytes, command.numerics, command.capacity);
  } else if (command.open === 'official') {
    const { default: createNeedle } = await load(command.runtime);
    kept[command.name] = await openOfficial(createNeedle, await read(command.wasm), await read(command.model));
  } else if (command.run === 'prefill') {
    kept[command.name].reset();
    kept[command.name].append(command.ids);
  } else if (command.run === 'decode') {
    for (let i = 0; i < command.newTokens; i++) kept[command.name].append([command.ids[i % command.ids.length]]);
  } else if (command.run === 'complete') {
    return { made: kept[command.name].complete(command.repeat, command.newTokens) };
  }
  return {};
}
