/** engine_host.js as a program: one JSON command a line on stdin, one JSON answer a line on stdout. */
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

import { obey } from './engine_host.js';

globalThis.window = globalThis; // the official runtime asks for it
const kept = {};
const read = async (path) => new Uint8Array(await readFile(path));
const load = (path) => import(pathToFileURL(path).href);
for await (const line of createInterface({ input: process.stdin })) {
  const answer = await obey(JSON.parse(line), kept, read, load);
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
