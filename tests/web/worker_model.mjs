// Answers a prompt as a worker does, in node: argv is engine.wasm, a container and a request as JSON.
import { readFileSync } from 'node:fs';

import { generate } from '../../web/worker/answering.js';
import { Engine } from '../../web/worker/engine.js';
import { Model } from '../../web/worker/model.js';

const [wasm, file, request] = process.argv.slice(2);
const engine = new Engine(await WebAssembly.instantiate(new WebAssembly.Module(readFileSync(wasm))));
const data = readFileSync(file);
const at = engine.reserve(data.length);
engine.bytes(at, data.length).set(data);
const control = { report: () => undefined, breathe: async () => undefined, isAborted: () => false };
const answer = await generate(new Model(engine, at, data.length, 'exact'), JSON.parse(request), control);
console.log(JSON.stringify(answer));
