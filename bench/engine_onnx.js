/**
 * An exported model (docs/onnx.md) in ONNX Runtime Web at a benchmark's command: WebAssembly with SIMD, one thread.
 *
 * Knows nothing of: the engine, time: bench/engine_hosts.py reads the processor time of the process.
 */
import { env, InferenceSession, Tensor } from './ort.wasm.bundle.min.mjs';

env.wasm.numThreads = 1;
env.wasm.wasmPaths = { wasm: '/ort-wasm-simd-threaded.wasm' };

let session;
let past;

const integers = (numbers) => new Tensor('int64', BigInt64Array.from(numbers, BigInt), [numbers.length]);

/** Nothing remembered: zeros, and no keys and values. */
function empty() {
  const inputs = session.inputMetadata.filter(({ name }) => name.startsWith('past.'));
  return Object.fromEntries(
    inputs.map(({ name, type, shape }) => {
      const sizes = shape.map((size) => (typeof size === 'number' ? size : 0));
      const count = sizes.reduce((a, b) => a * b, 1);
      const values = type === 'int64' ? new BigInt64Array(count) : new Float32Array(count);
      return [name, new Tensor(type, values, sizes)];
    }),
  );
}

/** Adds tokens and gives the likeliest next one. */
async function append(ids) {
  const { logits, ...present } = await session.run({ ids: integers(ids), logit_rows: integers([1]), ...past });
  past = Object.fromEntries(Object.entries(present).map(([name, value]) => [name.replace('present.', 'past.'), value]));
  return logits.data.indexOf(Math.max(...logits.data));
}

/** Runs one command of bench/engine_onnx.py. */
export async function obey(command) {
  if (command.run === 'open') {
    const model = new Uint8Array(await (await fetch(command.model)).arrayBuffer());
    session = await InferenceSession.create(model, { executionProviders: ['wasm'] });
  } else if (command.run === 'prefill') {
    past = empty();
    return { likeliest: await append(command.ids) };
  } else if (command.run === 'decode') {
    for (let i = 0; i < command.newTokens; i++) await append([command.ids[i % command.ids.length]]);
  }
  return {};
}
