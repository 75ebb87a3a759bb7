/**
 * Logits of the official engine of generation 2 (`node official_logits.mjs RUNTIME WASM MODEL PROMPT`): one JSON line with
 * the ids that it read and its logits after them.
 *
 * Its interface has no logits. With NEEDLE_DEBUG set it prints ids and writes the logits to a file of its own file system;
 * both the variable and the file system are inside of its runtime, so the runtime's text is opened at two places.
 */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

/** A place in the runtime's own file system, in memory: the name is the official engine's. */
const LOGITS = '/tmp/needle_logits.f32';
const OPENED = [
  ['var ENV={};', "var ENV={NEEDLE_DEBUG:'1'};"],
  ['Module["ccall"]=ccall;', 'Module["ccall"]=ccall;Module["FS"]=FS;'],
];

const [runtime, wasm, model, prompt] = process.argv.slice(2);
globalThis.window = globalThis; // the runtime asks for it
const folder = await mkdtemp(join(tmpdir(), 'official-'));
const opened = join(folder, 'runtime.mjs');
let text = await readFile(runtime, 'utf8');
for (const [from, to] of OPENED) {
  if (!text.includes(from)) throw new Error(`the official runtime is another one: it has no ${from}`);
  text = text.replace(from, to);
}
await writeFile(opened, text);
const ids = [];
const say = console.log;
console.log = console.error = (line) => {
  const numbers = /^\[debug\] (?:prefix|turn) ids: ([\d ]+)/.exec(line)?.[1];
  if (numbers) ids.push(...numbers.trim().split(' ').map(Number));
};
const { default: createNeedle } = await import(pathToFileURL(opened).href);
const module = await createNeedle({ wasmBinary: await readFile(wasm), noInitialRun: true });
const bytes = await readFile(model);
const file = module._malloc(bytes.length);
module.HEAPU8.set(bytes, file);
if (Number(module._needle_load(file, BigInt(bytes.length))) !== 0) throw new Error('the official engine refuses the file');
const out = module._malloc(65536);
module.ccall('needle_init', 'number', ['string', 'string', 'string'], ['', '', '']);
module.ccall('needle_complete', 'number', ['string', 'number', 'number', 'number'], [prompt, 1, out, 65536]);
const logits = module.FS.readFile(LOGITS);
say(JSON.stringify({ ids, logits: [...new Float32Array(logits.buffer, logits.byteOffset, logits.length / 4)] }));
await rm(folder, { recursive: true });
