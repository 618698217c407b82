// Reads an AsyncAPI document with the official parser. Exit 1 with each error or warning by its path.
import { readFileSync } from 'node:fs';
import { Parser } from '@asyncapi/parser';

const WORST_KEPT = 2; // 0 error, 1 warning, 2 information, 3 hint
const file = process.argv[2];
const { document, diagnostics } = await new Parser().parse(readFileSync(file, 'utf8'));
const faults = diagnostics.filter(({ severity }) => severity < WORST_KEPT);
for (const { path, message } of faults) console.error(`${path.join('.')}: ${message}`);
if (faults.length || !document) process.exit(1);
const messages = document.allMessages().all().length;
console.log(`asyncapi: ${file} is AsyncAPI ${document.version()}, ${document.channels().all().length} channels, ${messages} messages`);
