"use strict";
// The timelines of runs on a canvas: of one, of several on one time axis, or of one with the run before as its ghost.
// `show` takes the data that document.py packs; page.html, live.html and schedules.html fill it in.
const $ = (id) => document.getElementById(id);
const STRIP = 0.24, NAMED = 8, JOINED = 3;            // the share of a lane for collectives; curves with a name; pixels of a stop of the critical path that is joined to others
const GHOST = 10, GAP = 18, BIN = 4;                   // pixels for the ops of the run before; between columns; of a bin of crowded messages
const look_of = { left: 150, memory: 110, columns: () => 1, unit: null, brief: false };   // pixels for names, of a memory curve; columns for a width; [bytes, name] of memory; whether several runs have their GPUs only
const NOTHING = "Click a bar for its numbers.", FOLDED = " Click a kind of links to see each of them.";
const FINE = 2000;                                     // bins of a run whose mean is the use of links: messages side by side in one count once
const BAND = 30, OPEN = new Set();                     // pixels of all links of a kind; the kinds whose links are shown one by one
const HATCH = { "/": [0, 8, 8, 0], "\\": [0, 0, 8, 8], "-": [0, 4, 8, 4], "|": [4, 0, 4, 8], "+": [0, 4, 8, 4, 4, 0, 4, 8], "x": [0, 8, 8, 0, 0, 0, 8, 8], ".": [3, 4, 5, 4], "//": [0, 8, 8, 0, 0, 4, 4, 0, 4, 8, 8, 4], "o": [2, 2, 6, 2, 6, 2, 6, 6, 6, 6, 2, 6, 2, 6, 2, 2] };   // lines on a tile, as page.css has them
const ruler = $("ruler"), chart = $("chart");
let runs = [], lanes = [], ghost = null, total = 1;   // lanes of all runs, each with its column, top and height in pixels
let view = [0, total], chosen = null, query = null, lit = null, pointer = 0.5, ink = {}, height = 0;
let LEFT = look_of.left, MEMORY = look_of.memory, full = 0, width = 0, columns = 1, stride = 0;   // width: of a column

// -- data ------------------------------------------------------------------------------------------------------------
async function show(next, texts, before = null) {     // draw other runs; what was seen whole is seen whole again
  await Promise.all(next.map((run, i) => run.times ? run : unpack(run, texts[i])));
  const whole = view[0] === 0 && view[1] === total;
  runs = next; ghost = before; chosen = null;
  total = Math.max(...runs.map((run) => run.duration), ghost?.duration ?? 0, 1);
  if (whole || view[1] > total) view = [0, total];
  arrange(); legend(); hint(); if (full) draw();
}
async function inflate(packed) {                      // the bytes of a text in base64, compressed by zlib
  const zipped = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
async function unpack(run, packed) {                  // reverses `pack` of document.py
  if (run.refused) { Object.assign(run, { bars: nothing(), idle: nothing(), memory: nothing() }, { times: {} }); return; }
  const bytes = await inflate(packed);
  let at = 0;
  for (const [name, { rows, columns }] of Object.entries(run.tables)) {
    const table = run[name] = { rows };
    for (const [column, planes] of columns) {
      const values = table[column] = new Float64Array(rows);
      for (let plane = 0, unit = 1; plane < planes; plane++, unit *= 256, at += rows)
        for (let i = 0; i < rows; i++) values[i] += unit * bytes[at + i];
      if (column !== "asked" && column !== "end")
        for (let i = 0, sum = 0; i < rows; i++) values[i] = sum += values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
    }
  }
  place(run);
}
const nothing = () => Object.fromEntries([["rows", 0], ...["lane", "kind", "path", "cause", "start", "length"].map((name) => [name, new Float64Array(0)])]);
function place(run) {                                 // places in the table of times become times
  const times = run.times.time;
  for (const table of [run.bars, run.idle]) {
    const { rows, start, end, asked } = table;
    table.length = new Float64Array(rows); table.waited = new Float64Array(rows);
    for (let i = 0; i < rows; i++) {
      const at = start[i];
      start[i] = times[at]; table.length[i] = times[at + end[i]] - start[i];
      if (asked) table.waited[i] = start[i] - times[at - asked[i]];
    }
  }
  run.memory.time = run.memory.time.map((at) => times[at]);
}
function arrange() {                                  // lanes from top to bottom of each column, and which rows are whose
  const most = Math.max(...runs.map((run) => run.lanes.length)) * runs.length / columns, above = ghost ? GHOST : 0;
  const tall = most <= 40 ? 24 : most <= 120 ? 16 : most <= 600 ? 10 : 6, ends = Array(columns).fill(ghost ? 16 : 6);   // room for half a name
  lanes = [];
  runs.forEach((run, place) => {
    const column = run.column = place % columns;
    if (column === 0) ends.fill(Math.max(...ends));
    const add = (lane) => { lanes.push({ y: ends[column], column, ...lane }); ends[column] += lane.height + lane.gap; };
    if (runs.length > 1) add({ run, head: run.head ?? run.name, height: run.refused ? 44 : 20, gap: 0 });
    const each = (fits) => run.lanes.forEach((lane, number) => {
      if (!fits(lane)) return;
      const gap = lane.group === "rank" && run.lanes[number + 1]?.note !== lane.note ? 5 : 1;
      ends[column] += above;
      add({ run, number, ...ofLane(run, number), before: ghostOf(lane), height: tall * Math.min(lane.rows, 3), gap });
    });
    each((lane) => lane.group === "rank");
    if (runs.length > 1 && look_of.brief) return;
    (run.bands ?? []).forEach((band, number) => {
      const links = run.lanes.flatMap((lane, i) => lane.band === number ? [ofLane(run, i)] : []);
      add({ run, band, links, count: sum(links.map((lane) => lane.alike)), height: BAND, gap: 3 });
      if (OPEN.has(band.name)) each((lane) => lane.band === number);
    });
    if (run.memory.bytes?.some((size) => size > 0)) add({ run, memory: true, height: MEMORY, gap: 8 });
  });
  height = Math.max(...ends);
  $("unfold").hidden = !lanes.some((lane) => lane.links?.length);
  $("unfold").textContent = OPEN.size ? "fold links" : "show each link";
}
const sum = (values) => values.reduce((a, b) => a + b, 0);
const longest = (run, bars) => run.bars.length.subarray(...bars).reduce((a, b) => Math.max(a, b), 0);
function ofLane(run, number) {                        // a lane with its rows, which are found once
  const lane = run.lanes[number];
  if (!lane.bars) { const bars = range(run.bars.lane, number); Object.assign(lane, { bars, idle: range(run.idle.lane, number), long: longest(run, bars) }); }
  return lane;
}
function unfold(names) { for (const name of names) if (!OPEN.delete(name)) OPEN.add(name); arrange(); draw(); }
function reveal(run, i) {                             // the link of a bar, if it is folded
  const band = run.bands?.[laneOf(run, run.bars.lane[i]).band];
  if (band && !OPEN.has(band.name)) unfold([band.name]);
}
function ghostOf(lane) {                              // the rows of the same lane of the run before
  const same = (one) => one.name === lane.name || (one.group === lane.group && one.also.includes(lane.group === "rank" ? lane.rank : lane.name));
  const number = ghost ? ghost.lanes.findIndex(same) : -1;
  if (number < 0) return null;
  const bars = range(ghost.bars.lane, number);
  return { bars, long: longest(ghost, bars) };
}
function first(column, value, low = 0, high = column.length) {   // of a sorted column: the first not below a value
  while (low < high) { const middle = (low + high) >> 1; if (column[middle] < value) low = middle + 1; else high = middle; }
  return low;
}
const range = (column, value) => [first(column, value), first(column, value + 1)];
function* inView(table, [low, high], long, from, to) {  // rows of a lane that touch a time range; rows side by side repeat
  const rowOf = table.row, start = table.start;
  for (let a = low; a < high; ) {
    const b = rowOf ? first(rowOf, rowOf[a] + 1, a, high) : high;
    for (let i = first(start, from - long, a, b); i < b && start[i] <= to; i++) if (start[i] + table.length[i] >= from) yield i;
    a = b;
  }
}

// -- words -----------------------------------------------------------------------------------------------------------
function time(ps, beside = ps) {                      // four digits, or as many as tell times apart that are `beside` away
  const more = ps && beside ? Math.floor(Math.log10(ps)) - Math.floor(Math.log10(beside)) : 0, digits = Math.min(4 + Math.max(more, 0), 15);
  for (const [size, unit] of [[1e12, "s"], [1e9, "ms"], [1e6, "µs"], [1e3, "ns"]])
    if (ps >= size) return `${Number((ps / size).toPrecision(digits))} ${unit}`;
  return ps ? `${ps} ps` : "0";
}
function bytes(size) {
  if (look_of.unit) return `${Number((size / look_of.unit[0]).toPrecision(4))} ${look_of.unit[1]}`;
  for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (size >= unit) return `${Number((size / unit).toPrecision(4))} ${name}`;
  return `${size} B`;
}
const kindOf = (run, i) => run.kinds[run.bars.kind[i]];
const chunkOf = (run, i) => Math.max(run.bars.chunk[i], 0) % kindOf(run, i).colours.length;
const onPaper = (colour) => colour === "#000000" ? ink.ink : colour;    // black is light on dark paper
const colourOf = (run, i) => onPaper(kindOf(run, i).colours[chunkOf(run, i)]);
const numberOf = ({ microbatch, second }, i) => microbatch[i] < 0 ? "" : second[i] < 0 ? String(microbatch[i]) : `${microbatch[i]}+${second[i]}`;
const room = (text) => 6.5 * text.length + 2;         // pixels that a number needs
function nameOf(run, i) {
  const kind = kindOf(run, i), b = run.bars;
  if (kind.place === "op") return kind.name + numberOf(b, i);
  if (kind.place === "message") return kind.name + (b.microbatch[i] < 0 ? "" : ` ${b.microbatch[i]}`);
  return `${kind.name} of stage ${b.stage[i]}` + (b.chunk[i] < 0 ? "" : `, ${kind.place} ${b.chunk[i]}`);
}
function others(lane) {
  const count = lane.alike - 1;
  return count > 0 ? ` and ${count} other identical ${lane.group}${count > 1 ? "s" : ""}` : "";
}
const spanOf = (table, i) => {
  const from = table.start[i], length = table.length[i];
  return `start ${time(from, length)}, end ${time(from + length, length)}, took ${time(length)}`;
};
const laneOf = (run, number) => run.lanes[number];
const listed = (ranks) => ranks.length > 8 ? `${ranks.slice(0, 3).join(", ")}, …, ${ranks[ranks.length - 1]} (${ranks.length})` : ranks.join(", ");
function placeOfRank(run, { rank, alike, also, experts }) {   // and the ranks of its groups
  const axes = run.axes.map(([name, size, stride]) => [name, size, stride, Math.floor(rank / stride) % size]);
  const lines = [`rank ${rank}${axes.length ? `: ${axes.map(([name, , , at]) => `${name} ${at}`).join(", ")}` : ""}`];
  for (const [name, size, stride, at] of axes) lines.push(`${name} group: ranks ${listed([...Array(size).keys()].map((other) => rank + (other - at) * stride))}`);
  if (experts) lines.push(`ep group: ranks ${listed(experts)}`);
  if (alike > 1) lines.push(`drawn for ${alike} identical ranks: ${listed([rank, ...also])}`);
  return lines.join("\n");
}
function useAt({ run, band, links, count }, t) {      // of the links of a band, at a time; null: over the whole run
  const whole = t === null, span = whole ? run.duration : Math.max((view[1] - view[0]) * BIN / (width - LEFT), 1);
  const use = useOf({ run, band, links, count }, whole ? 0 : t - span / 2, span, 1);
  const parts = [...use].filter(([, [share]]) => share > 0).map(([kind, [share]]) => `${run.kinds[kind].label}: ${percent(share)}`);
  const more = band.inside.length ? ["collectives inside ops are drawn at the ends of their ops"] : [];
  if (band.hidden.length) more.push(`not drawn, as computation hides it: ${band.hidden.join(", ")}`);
  return [`${band.name} links${count ? ` (${count})` : ""}, mean use ${whole ? "over the whole run" : `around ${time(Math.round(t), span)}`}:`, ...(parts.length ? parts : ["none"]), ...more].join("\n");
}
const percent = (share) => `${(100 * share).toFixed(1)} %`;
function factsOf(run, i) {
  const b = run.bars, lane = laneOf(run, b.lane[i]), kind = kindOf(run, i), end = b.start[i] + b.length[i];
  const lines = [`${nameOf(run, i)} (${kind.label}) on ${lane.name}${others(lane)}`];
  const where = [["step", b.step[i]], ["stage", b.stage[i]], ["chunk", kind.place === "op" ? b.chunk[i] : -1]];
  lines.push(where.filter(([, v]) => v >= 0).map((pair) => pair.join(" ")).join(", "));
  if (b.from[i] >= 0) lines[1] += `, ${bytes(b.bytes[i])} from rank ${b.from[i]} to rank ${b.to[i]}`;
  if (b.waited[i]) lines.push(`asked ${time(b.start[i] - b.waited[i], b.waited[i])}, waited ${time(b.waited[i])}`);
  lines.push(spanOf(b, i));
  if (b.by[i] >= 0) lines.push(`released by ${nameOf(run, b.by[i])} on ${laneOf(run, b.lane[b.by[i]]).name}`);
  if (b.path[i]) lines.push("on the critical path");
  return lines.filter(Boolean).join("\n");
}

// -- drawing ---------------------------------------------------------------------------------------------------------
function prepare(canvas, tall) {
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${tall}px`;
  canvas.width = Math.round(full * scale); canvas.height = Math.round(tall * scale);
  const pen = canvas.getContext("2d");
  inColumn(pen, 0);
  pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
  pen.fillStyle = ink.paper; pen.fillRect(0, 0, full, tall);
  return pen;
}
function inColumn(pen, column) { const scale = window.devicePixelRatio || 1; pen.setTransform(scale, 0, 0, scale, scale * column * stride, 0); }
const xOf = (t) => LEFT + (t - view[0]) / (view[1] - view[0]) * (width - LEFT);
const tOf = (x) => view[0] + (x - LEFT) / (width - LEFT) * (view[1] - view[0]);
function drawRuler() {
  const pen = prepare(ruler, 22), span = view[1] - view[0];
  const rough = span / ((width - LEFT) / 110), power = 10 ** Math.floor(Math.log10(rough));
  const every = power * [1, 2, 5, 10].find((k) => k * power >= rough);
  pen.fillStyle = pen.strokeStyle = ink.dim; pen.textAlign = "left";
  for (let column = 0; column < columns; column++) {
    inColumn(pen, column);
    for (let t = Math.ceil(view[0] / every) * every; t <= view[1]; t += every) {
      pen.fillRect(xOf(t), 14, 1, 8); if (xOf(t) < width - 30) pen.fillText(time(Math.round(t), every), xOf(t) + 3, 9);
    }
  }
}
function draw() {
  const pen = prepare(chart, height);
  let painted = 0, bars = 0;
  for (const run of runs) run.numbered = numbers(run);
  for (const lane of lanes) {
    pen.textAlign = "left"; inColumn(pen, lane.column);
    if (lane.head) { drawHead(pen, lane); continue; }
    if (lane.memory) { drawMemory(pen, lane); continue; }
    if (lane.band && lane.links) { drawBand(pen, lane); continue; }
    pen.fillStyle = ink.lane; pen.fillRect(LEFT, lane.y, width - LEFT, lane.height);
    bars += drawLane(pen, lane); painted++;
    if (lane.before) drawGhost(pen, lane);
    pen.fillStyle = ink.paper; pen.fillRect(0, lane.y, LEFT - 4, lane.height);
    if (lane.height >= 9 || lane.number % 4 === 0) {
      pen.fillStyle = ink.ink;
      pen.fillText(`${lane.name}${lane.alike > 1 ? ` ×${lane.alike}` : ""}`.slice(-28), 0, lane.y + lane.height / 2, LEFT - 8);
    }
  }
  const joins = drawPath(pen);
  drawMarks(pen); drawChosen(pen); drawRuler();
  Object.assign(document.body.dataset, { lanes: painted, bars, joins });   // what was painted, for tests
}
function drawHead(pen, { run, head, y }) {            // a name in bold, and what is said of the run
  pen.fillStyle = ink.ink; pen.font = "bold 13px system-ui, sans-serif"; pen.fillText(head, 0, y + 10);
  const x = pen.measureText(head).width + 12;
  pen.font = "11px system-ui, sans-serif"; pen.fillStyle = ink.dim;
  if (run.note) pen.fillText(run.note, x, y + 10, width - x);
  if (run.refused) pen.fillText(run.refused, 0, y + 28, width);
}
function numbers(run) {                               // micro-batches are in all ops in view, or in none
  const scale = (width - LEFT) / (view[1] - view[0]), b = run.bars;
  for (const lane of lanes) {
    if (lane.run !== run || lane.group !== "rank") continue;
    for (const i of inView(b, lane.bars, lane.long, ...view)) if (b.length[i] && numberOf(b, i) && b.length[i] * scale <= room(numberOf(b, i)) && kindOf(run, i).place === "op") return false;
  }
  return true;
}
function drawGhost(pen, lane) {                       // the ops of the run before, above the lane
  const b = ghost.bars; let last = -1;
  pen.globalAlpha = 0.6;
  for (const i of inView(b, lane.before.bars, lane.before.long, ...view)) {
    const kind = kindOf(ghost, i), x = Math.max(xOf(b.start[i]), LEFT), wide = Math.min(xOf(b.start[i] + b.length[i]), width) - x;
    if ((kind.place !== "op" && kind.place !== "message") || (wide < 1 && Math.floor(x) === last)) continue;
    last = Math.floor(x);
    pen.fillStyle = colourOf(ghost, i);
    pen.fillRect(x, lane.y - 6, Math.max(wide - 0.5, 0.7), 4);
  }
  pen.globalAlpha = 1;
}
function drawMarks(pen) {                             // the end of the run before, and the time that is lit
  const line = (t, colour, name, column) => {
    inColumn(pen, column);
    if (t < view[0] || t > view[1]) return;
    pen.strokeStyle = pen.fillStyle = colour; pen.lineWidth = 1.5; pen.setLineDash([5, 4]);
    pen.beginPath(); pen.moveTo(xOf(t), 0); pen.lineTo(xOf(t), height); pen.stroke(); pen.setLineDash([]);
    if (!name) return;
    const room = pen.measureText(name).width + 8, x = xOf(t) > width - room ? xOf(t) - room : xOf(t) + 2;
    pen.fillStyle = ink.paper; pen.fillRect(x, 0, room - 2, 14); pen.fillStyle = colour; pen.fillText(name, x + 3, 8);
  };
  if (ghost) line(ghost.duration, ink.mark, `before: ${time(ghost.duration)}`, 0);
  if (lit !== null) for (let column = 0; column < columns; column++) line(lit, ink.mark, "", column);
}
function drawLane(pen, lane) {
  const { run, y, height: tall } = lane, b = run.bars, inside = lane.inside === undefined ? null : ofLane(run, lane.inside), strip = lane.group === "rank" || inside ? tall * STRIP : 0;
  let count = 0, colour = "";
  const paint = (next, x, top, wide, high) => { if (next !== colour) pen.fillStyle = colour = next; pen.fillRect(x, top, wide, high); };
  if (lane.group === "rank") {
    let after = -1;
    for (const i of inView(run.idle, lane.idle, Infinity, ...view)) {
      const x = xOf(run.idle.start[i]), wide = xOf(run.idle.start[i] + run.idle.length[i]) - x;
      if (wide < 0.7 && x < after) continue;
      const cause = run.causes[run.idle.cause[i]];
      paint(cause.colour, x, y, Math.max(wide, 0.7), tall); after = Math.floor(x) + 1;
      if (cause.hatch && wide > 3) paint(hatched(pen, cause.hatch), x, y, wide, tall);
    }
    colour = "";
  }
  const high = (tall - strip) / Math.min(lane.rows, 3), seen = {}, edge = tall >= 12;
  for (const i of inside ? inView(b, inside.bars, inside.long, ...view) : []) {
    if (!run.bands[lane.band].inside.includes(b.kind[i])) continue;
    const x = Math.max(xOf(b.start[i]), LEFT), wide = Math.min(xOf(b.start[i] + b.length[i]), width) - x;
    paint(colourOf(run, i), x, y + tall - strip, Math.max(wide, 0.7), strip - 1);
  }
  const rows = [...inView(b, lane.bars, lane.long, ...view)];
  if (lane.group === "link" && rows.length > (width - LEFT) / BIN && !query && lit === null) { drawUse(pen, { run, y, height: tall - strip }, rows); return rows.length; }
  for (const i of rows) {
    const x = Math.max(xOf(b.start[i]), LEFT), wide = Math.min(xOf(b.start[i] + b.length[i]), width) - x;
    const kind = kindOf(run, i), place = kind.place;
    count++;
    if (wide < 1) {                                   // one bar of a kind in each pixel
      const spot = (Math.floor(x) * 64 + b.kind[i]) * 8 + b.row[i];
      if (seen[b.kind[i]] === spot) continue;
      seen[b.kind[i]] = spot;
    }
    const top = place === "op" || place === "message" ? y + Math.min(b.row[i], 2) * high : y + tall - strip;
    const part = kind.name === "optimizer" ? 0.6 * high : place === "op" || place === "message" ? high - (edge ? 1 : 0) : strip - 1;
    pen.globalAlpha = query && !query(run, i) ? 0.15 : lit === null || (b.start[i] <= lit && lit < b.start[i] + b.length[i]) ? 1 : 0.3;
    const shade = colourOf(run, i);
    if (wide < 2) paint(shade, Math.floor(x), top, Math.max(Math.round(wide), 1), part);
    else paint(shade, x, top, wide - (edge && wide > 4 ? 0.7 : 0), part);
    const label = high < 12 || (place === "op" && !run.numbered) ? "" : numberOf(b, i);
    if (label && wide > room(label)) {
      pen.fillStyle = colour = kind.inks[chunkOf(run, i)]; pen.textAlign = "center";
      pen.fillText(label, x + wide / 2, top + part / 2 + 0.5); pen.textAlign = "left";
    }
  }
  pen.globalAlpha = 1;
  return count;
}
function hatched(pen, letter) {                       // a pattern that tells idle time apart without colours
  const known = ink.hatches ??= {};
  if (!known[letter]) {
    const tile = document.createElement("canvas"), line = tile.getContext("2d"), ends = HATCH[letter];
    tile.width = tile.height = 8; line.strokeStyle = ink.ink; line.globalAlpha = 0.45;
    line.beginPath(); for (let k = 0; k < ends.length; k += 4) { line.moveTo(ends[k], ends[k + 1]); line.lineTo(ends[k + 2], ends[k + 3]); } line.stroke();
    known[letter] = pen.createPattern(tile, "repeat");
  }
  return known[letter];
}
function binned(b, rows, from, unit, count) {         // by kind, the share of each bin of time that rows take; rows side by side share a link
  const shares = new Map(), sums = new Float64Array(count);
  for (const i of rows) {
    const begin = Math.max((b.start[i] - from) / unit, 0), end = Math.min((b.start[i] + b.length[i] - from) / unit, count);
    if (!shares.has(b.kind[i])) shares.set(b.kind[i], new Float64Array(count));
    for (let bin = Math.floor(begin); bin < end; bin++) {
      const share = Math.min(end, bin + 1) - Math.max(begin, bin);
      shares.get(b.kind[i])[bin] += share; sums[bin] += share;
    }
  }
  for (const all of shares.values()) for (let bin = 0; bin < count; bin++) all[bin] /= Math.max(sums[bin], 1);
  return shares;
}
function drawShares(pen, run, shares, y, tall) {      // stacked, of bins from the left
  const base = [];
  for (const [kind, all] of shares) {
    pen.fillStyle = run.kinds[kind].colours[0];
    for (let bin = 0; bin < all.length; bin++) {
      const high = (tall - 1) * all[bin], x = LEFT + bin * BIN;
      if (high) pen.fillRect(x, base[bin] = (base[bin] ?? y + tall - 1) - high, Math.min(BIN, width - x), high);
    }
  }
}
const bins = () => [view[0], (view[1] - view[0]) * BIN / (width - LEFT), Math.ceil((width - LEFT) / BIN)];
function drawUse(pen, { run, y, height: tall }, rows) {   // of messages too narrow to be told apart, how much of the time they take
  drawShares(pen, run, binned(run.bars, rows, ...bins()), y, tall);
}
function useOf({ run, band, links, count }, from, unit, bins) {   // mean use of all links of a kind: by messages, and by collectives inside ops
  const b = run.bars, whole = new Map(), ranks = run.lanes.filter((lane) => lane.group === "rank"), all = sum(ranks.map((lane) => lane.alike));
  const add = (lane, weight, fits) => {
    const rows = [...inView(b, lane.bars, lane.long, from, from + unit * bins)].filter((i) => fits(b.kind[i]));
    for (const [kind, shares] of binned(b, rows, from, unit, bins)) {
      if (!whole.has(kind)) whole.set(kind, new Float64Array(bins));
      const mine = whole.get(kind);
      for (let bin = 0; bin < bins; bin++) mine[bin] += weight * shares[bin];
    }
  };
  for (const lane of links) add(lane, lane.alike / count, () => true);
  if (band.inside.length) run.lanes.forEach((lane, number) => { if (lane.group === "rank") add(ofLane(run, number), lane.alike / all, (kind) => band.inside.includes(kind)); });
  const sums = new Float64Array(bins);
  for (const shares of whole.values()) for (let bin = 0; bin < bins; bin++) sums[bin] += shares[bin];
  for (const shares of whole.values()) for (let bin = 0; bin < bins; bin++) shares[bin] /= Math.max(sums[bin], 1);
  return whole;
}
function drawBand(pen, lane) {
  const { run, band, links, count, y, height: tall } = lane;
  pen.fillStyle = ink.lane; pen.fillRect(LEFT, y, width - LEFT, tall);
  drawShares(pen, run, useOf(lane, ...bins()), y, tall);
  band.busy ??= sum([...useOf(lane, 0, run.duration / FINE, FINE).values()].map((shares) => sum([...shares]) / FINE));
  pen.fillStyle = ink.ink; pen.fillText(`${links.length ? OPEN.has(band.name) ? "▾ " : "▸ " : ""}${band.name}${count ? ` ×${count}` : ""}`, 0, y + 8, LEFT - 8);
  pen.fillStyle = ink.dim; pen.fillText(`${band.hidden.length ? "≥ " : ""}${percent(band.busy)} used`, 10, y + 22, LEFT - 18);
}
function drawMemory(pen, lane) {
  const { run, y } = lane, m = run.memory, most = m.bytes.reduce((a, b) => Math.max(a, b), 1);
  const limit = run.gpuMemory, near = limit < 2.5 * most, top = near ? Math.max(limit, most) : most, up = (v) => y + MEMORY - 4 - (MEMORY - 18) * v / top;
  pen.fillStyle = ink.dim; pen.fillText(LEFT < 80 ? "memory" : "memory held", 0, y + 6, LEFT - 8);
  pen.fillStyle = ink.line; pen.fillRect(LEFT, up(0), width - LEFT, 1);
  if (near) { pen.strokeStyle = ink.mark; pen.setLineDash([6, 4]); pen.beginPath(); pen.moveTo(LEFT, up(limit)); pen.lineTo(width, up(limit)); pen.stroke(); pen.setLineDash([]); }
  let free = y + 19;                                  // labels of heights, from the top, below each other
  pen.fillStyle = ink.dim;
  for (const [size, text] of [[limit, `GPU ${bytes(limit)}`], [most, bytes(most)], [0, "0"]].filter(([size]) => near || size !== limit).sort(([a], [b]) => b - a)) {
    const at = Math.max(up(size), free);
    if (at > y + MEMORY) break;
    pen.fillText(text, 0, at, LEFT - 8); free = at + 12;
  }
  const count = m.rows ? m.lane[m.rows - 1] + 1 : 0, hueOf = (number) => `hsl(${Math.round(280 * number / Math.max(count, 1))} 65% 50%)`;
  nameCurves(pen, run, y + 6, hueOf);
  for (let low = 0; low < m.rows; ) {
    const number = m.lane[low], high = first(m.lane, number + 1);
    const from = Math.max(first(m.time, view[0], low, high) - 1, low);
    pen.strokeStyle = hueOf(number); pen.lineWidth = 1.2; pen.beginPath();
    let last = NaN, least = 0, greatest = 0;
    for (let i = from; i < high && m.time[i] <= view[1]; i++) {   // within one pixel only the extremes
      const x = Math.max(xOf(m.time[i]), LEFT), v = up(m.bytes[i]);
      if (Math.floor(x) === last) { if (v < least || v > greatest) pen.lineTo(x, v); least = Math.min(v, least); greatest = Math.max(v, greatest); continue; }
      if (i > from) pen.lineTo(x, up(m.bytes[i - 1])); else pen.moveTo(x, v);
      pen.lineTo(x, v); last = Math.floor(x); least = greatest = v;
    }
    pen.lineTo(xOf(Math.min(view[1], run.duration)), up(m.bytes[Math.max(first(m.time, view[1] + 1, low, high) - 1, low)])); pen.stroke();
    low = high;
  }
}
function nameCurves(pen, run, y, hueOf) {             // of many curves some: the colours in between follow the ranks
  const all = [...new Set(run.memory.lane)], every = Math.ceil(all.length / NAMED);
  run.curves = all.filter((_, i) => i % every === 0 || i === all.length - 1).map((number) => laneOf(run, number));
  let x = LEFT + 4;
  for (const { name, alike, rank } of run.curves) {
    const text = `${name}${alike > 1 ? ` ×${alike}` : ""}`;
    if (x + 16 + pen.measureText(text).width > width) break;
    pen.fillStyle = hueOf(run.lanes.findIndex((lane) => lane.rank === rank)); pen.fillRect(x, y - 1, 12, 3);
    pen.fillStyle = ink.dim; pen.fillText(text, x + 16, y); x += pen.measureText(text).width + 30;
  }
}
function placeOf(run, i) {                            // of a bar on the chart, if its lane is shown
  const number = run.bars.lane[i], lane = lanes.find((one) => one.run === run && one.number === number) ?? lanes.find((one) => one.run === run && one.links && one.band === run.bands?.[laneOf(run, number).band]);
  return lane && [Math.max(xOf(run.bars.start[i]), LEFT), lane.y, Math.min(xOf(run.bars.start[i] + run.bars.length[i]), width), lane.height];
}
function drawPath(pen) {                              // what takes time, and thinner what leads from one to the next
  let joins = 0;                                      // stops too narrow to be told apart are not joined: zoom in for them
  pen.strokeStyle = ink.mark;
  for (const run of runs) {
    inColumn(pen, run.column);
    const order = run.path ??= [...run.bars.path.keys()].filter((i) => run.bars.path[i]).sort((a, b) => run.bars.start[a] - run.bars.start[b]);
    const shown = order.filter((i) => run.bars.start[i] + run.bars.length[i] >= view[0] && run.bars.start[i] <= view[1]).map((i) => placeOf(run, i)).filter(Boolean);
    const wide = shown.filter(([x, , end]) => end - x >= JOINED);
    pen.globalAlpha = 0.4; pen.lineWidth = 1; pen.beginPath();
    for (let i = 1; i < wide.length; i++, joins++) {
      const [, y, end, tall] = wide[i - 1], [next, below, , high] = wide[i];
      pen.moveTo(Math.min(end, next), y + tall - 2); pen.lineTo(next, below + high - 2);
    }
    pen.stroke();
    pen.globalAlpha = 1; pen.lineWidth = 2; pen.beginPath();
    for (const [x, y, end, tall] of shown) { pen.moveTo(x, y + tall - 2); pen.lineTo(Math.max(end, x + 1), y + tall - 2); }
    pen.stroke();
  }
  return joins;
}
function drawChosen(pen) {
  const place = chosen && placeOf(...chosen);
  if (!place) return;
  const [x, y, end, tall] = place;
  inColumn(pen, chosen[0].column);
  pen.strokeStyle = ink.mark; pen.lineWidth = 2; pen.strokeRect(x - 1, y - 1, Math.max(end - x, 1) + 2, tall + 2);
}

// -- asking ----------------------------------------------------------------------------------------------------------
const columnOf = (x) => Math.min(Math.max(Math.floor(x / stride), 0), columns - 1);
function at(x, y) {                                   // what is at a place of the chart
  const column = columnOf(x), lane = lanes.find((one) => one.column === column && !one.head && y >= one.y && y <= one.y + one.height);
  x -= column * stride;
  if (!lane) return null;
  if (lane.links) return [lane.run, x < LEFT ? null : tOf(x), "band", lane];
  if (x < LEFT) return lane.group === "rank" ? [lane.run, 0, "rank", lane] : null;
  if (lane.memory) return [lane.run, tOf(x), "memory"];
  const near = (view[1] - view[0]) / (width - LEFT), t = tOf(x), b = lane.run.bars, rank = lane.group === "rank";
  const low = rank && y > lane.y + lane.height * (1 - STRIP), part = Math.floor((y - lane.y) / (lane.height / Math.min(lane.rows, 3)));
  let best = null;
  for (const i of inView(b, lane.bars, lane.long, t - near, t + near)) {
    if (!rank && Math.min(b.row[i], 2) !== Math.min(part, 2)) continue;
    const fits = rank && low === (kindOf(lane.run, i).place !== "op") ? 1 : 0, inside = b.start[i] <= t && t <= b.start[i] + b.length[i] ? 1 : 0;
    if (best === null || 2 * inside + fits >= best[1]) best = [i, 2 * inside + fits];
  }
  const inside = best || lane.inside === undefined ? null : ofLane(lane.run, lane.inside);
  for (const i of inside ? inView(b, inside.bars, inside.long, t, t) : []) if (lane.run.bands[lane.band].inside.includes(b.kind[i])) best = [i];
  if (best) return [lane.run, best[0]];
  for (const i of inView(lane.run.idle, lane.idle, Infinity, t, t)) return [lane.run, i, "idle", lane];
  return null;
}
function said(hit) {
  const [run, i, idle, lane] = hit;
  if (!idle) return factsOf(run, i);
  if (idle === "memory") return heldAt(run, i);
  if (idle === "rank") return placeOfRank(run, hit[3]);
  if (idle === "band") return useAt(hit[3], i);
  const table = run.idle;
  return `${lane.name} idle: ${run.causes[table.cause[i]].name}\n${spanOf(table, i)}`;
}
function heldAt(run, t) {                             // by the ranks drawn, most first
  const m = run.memory, held = [];
  for (let low = 0, high; low < m.rows; low = high) {
    high = first(m.lane, m.lane[low] + 1);
    held.push([m.bytes[Math.max(first(m.time, t + 1, low, high) - 1, low)], laneOf(run, m.lane[low]).name]);
  }
  return [`memory held at ${time(Math.round(t), (view[1] - view[0]) / 10)}`, ...held.sort(([a], [b]) => b - a).slice(0, 12).map(([size, name]) => `${name}: ${bytes(size)}`)].join("\n");
}
function choose(hit) {
  if (hit && !hit[2]) reveal(...hit);
  chosen = hit && !hit[2] ? hit : null;
  if (hit) $("facts").textContent = said(hit); else hint();
  address(); draw();
}
function hint() { $("facts").textContent = NOTHING + ($("unfold").hidden ? "" : FOLDED); }
function address() {
  const parts = [`t=${view[0] / 1e12}`, `to=${view[1] / 1e12}`];
  if (chosen) {
    const [run, i] = chosen, lane = laneOf(run, run.bars.lane[i]);
    parts[0] = `t=${(run.bars.start[i] + run.bars.length[i] / 2) / 1e12}`;
    parts.push(lane.group === "rank" ? `rank=${lane.rank}` : `link=${encodeURIComponent(lane.name)}`);
    if (runs.length > 1) parts.push(`run=${runs.indexOf(run)}`);
  }
  const whole = view[0] === 0 && view[1] === total;
  history.replaceState(null, "", whole && !chosen ? "#" : `#${parts.filter((one) => !whole || !one.startsWith("to=")).join("&")}`);
}
function goTo(hash) {                                 // #t=1.25&rank=3: that time, and what the rank does then
  const said = new URLSearchParams(hash.slice(1)), t = Number(said.get("t") ?? NaN) * 1e12;
  if (!Number.isFinite(t)) return;
  const run = runs[Number(said.get("run") ?? 0)] ?? runs[0], rank = said.get("rank"), link = said.get("link");
  const number = run.lanes.findIndex((lane) => link ? lane.name === link || lane.also.includes(link) : rank !== null && lane.group === "rank" && (lane.rank === Number(rank) || lane.also.includes(Number(rank))));
  if (run.bands?.[run.lanes[number]?.band] && !OPEN.has(run.bands[run.lanes[number].band].name)) unfold([run.bands[run.lanes[number].band].name]);
  const lane = lanes.find((one) => one.run === run && one.number === number);
  const span = said.has("to") ? Number(said.get("to")) * 1e12 - t : rank || link ? 0 : total - t;
  if (span > 0) look(t - (rank || link ? span : 0), t + span);
  if (!lane) return;
  const hits = [...inView(run.bars, lane.bars, lane.long, t, t)];
  choose(hits.length ? [run, hits.find((i) => kindOf(run, i).place === "op") ?? hits[0]] : null);
  window.scrollTo(0, chart.offsetTop + lane.y - 300);
}
function look(from, to) {
  const span = Math.min(Math.max(to - from, 1), total);
  from = Math.min(Math.max(from, 0), total - span);
  view = [from, from + span]; address(); draw();
}
const zoom = (factor, share) => { const t = view[0] + share * (view[1] - view[0]), span = (view[1] - view[0]) * factor; look(t - share * span, t + (1 - share) * span); };
function search(text) {                               // every word has to fit: B3, rank 4, stage 2, step 0, part of a name
  const words = text.toLowerCase().replace(/\b(rank|stage|step|chunk|bucket)\s+(\d+)/g, "$1$2").split(/\s+/).filter(Boolean);
  const tests = words.map((word) => {
    const [, letters, digits] = /^([a-z]+)(\d+)$/.exec(word) ?? [];
    const rank = letters === "rank", column = { stage: "stage", step: "step", chunk: "chunk", bucket: "chunk" }[letters];
    if (rank) return (run, i) => { const lane = laneOf(run, run.bars.lane[i]), r = Number(digits); return lane.rank === r || lane.also.includes(r) || run.bars.from[i] === r || run.bars.to[i] === r; };
    if (column) return (run, i) => run.bars[column][i] === Number(digits);
    return (run, i) => (letters && run.bars.microbatch[i] === Number(digits) && kindOf(run, i).name.toLowerCase() === letters)
      || kindOf(run, i).name.toLowerCase() === word || kindOf(run, i).label.includes(word) || laneOf(run, run.bars.lane[i]).name.toLowerCase().includes(word);
  });
  query = tests.length ? (run, i) => tests.every((test) => test(run, i)) : null;
  let count = 0;
  if (query) for (const run of runs) for (let i = 0; i < run.bars.rows; i++) if (query(run, i)) { count++; reveal(run, i); }
  $("found").textContent = query ? `${count} found` : "";
  draw();
}
function next() {                                     // the first found after the chosen bar, round and round
  const all = runs.flatMap((run) => { const hits = []; for (let i = 0; i < run.bars.rows; i++) if (query?.(run, i)) hits.push([run, i]); return hits; });
  all.sort(([run, i], [other, k]) => run.bars.start[i] - other.bars.start[k]);
  const here = chosen ? all.findIndex(([run, i]) => run === chosen[0] && i === chosen[1]) : -1;
  const hit = all[(here + 1) % all.length];
  if (!hit) return;
  const [run, i] = hit, t = run.bars.start[i] + run.bars.length[i] / 2, span = view[1] - view[0];
  if (t < view[0] || t > view[1]) look(t - span / 2, t + span / 2);
  choose(hit);
}

// -- start -----------------------------------------------------------------------------------------------------------
function dress() {                                    // colours of the page, and its width
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "dim", "paper", "lane", "line", "mark"]) ink[name] = style.getPropertyValue(`--${name}`).trim();
  ink.hatches = {};
  if (!chart.clientWidth) return;                     // it is behind a tab
  full = chart.clientWidth; columns = look_of.columns(full); stride = (full + GAP) / columns; width = stride - GAP;
  LEFT = Math.min(look_of.left, 0.28 * width); MEMORY = look_of.memory;
  if (runs.length) { arrange(); draw(); }
}
function legend() {
  const used = new Map();
  for (const part of [0, 1, 2]) for (const run of runs) {   // kinds, shades, idle time
    for (const [label, colours, hatch = ""] of run.key[part] ?? []) used.set(label, [colours.map((one) => one === "#000000" ? "var(--ink)" : one), hatch]);
    if (part === 1 && run.bars.path.includes(1)) used.set("critical path", [["var(--mark)"], ""]);
  }
  $("legend").textContent = "";
  for (const [label, [colours, hatch]] of used) {
    const item = document.createElement("span");
    colours.forEach((colour, i) => { const box = document.createElement("i"); box.style.backgroundColor = colour; box.dataset.hatch = hatch; if (i + 1 < colours.length) box.style.marginRight = 0; item.append(box); });
    item.append(label); $("legend").append(item);
  }
  $("notes").textContent = runs.flatMap((run) => run.left_out.map((text) => `Not drawn${runs.length > 1 ? ` of ${run.name}` : ""}: ${text}; timeline.csv has them.`)).join("\n");
}
function listen() {
  const place = (event) => { const box = chart.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  let from = null;
  chart.onmousedown = (event) => { from = [event.clientX, view, false]; };
  window.onmouseup = () => { from = null; };
  chart.onmousemove = (event) => {
    const [x, y] = place(event);
    pointer = Math.min(Math.max((x - columnOf(x) * stride - LEFT) / (width - LEFT), 0), 1);
    if (from && Math.abs(event.clientX - from[0]) > 3) {
      const moved = (event.clientX - from[0]) / (width - LEFT) * (from[1][1] - from[1][0]);
      from[2] = true; look(from[1][0] - moved, from[1][1] - moved);
    }
    const hit = from ? null : at(x, y), tip = $("tip");
    tip.hidden = !hit;
    if (hit) { tip.textContent = said(hit); tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 430)}px`; tip.style.top = `${Math.min(event.clientY + 14, innerHeight - 130)}px`; }
  };
  chart.onmouseleave = () => { $("tip").hidden = true; };
  chart.onclick = (event) => { if (Math.abs(event.clientX - (from?.[0] ?? event.clientX)) < 4) { const hit = at(...place(event)); if (hit?.[2] === "band") unfold([hit[3].band.name]); else choose(hit); } };
  chart.ondblclick = (event) => { const hit = at(...place(event)); if (hit && !hit[2]) { const [run, i] = hit, b = run.bars; look(b.start[i] - 4 * b.length[i], b.start[i] + 5 * b.length[i]); } };
  chart.onwheel = (event) => { if (event.ctrlKey || event.shiftKey) { event.preventDefault(); zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, pointer); } };
  $("search").oninput = (event) => search(event.target.value);
  $("all").onclick = () => look(0, total);
  $("unfold").onclick = () => unfold(OPEN.size ? [...OPEN] : new Set(lanes.filter((lane) => lane.links?.length).map((lane) => lane.band.name)));
  $("theme").onclick = () => { const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches; root.dataset.theme = dark ? "light" : "dark"; dress(); };
  window.onkeydown = (event) => {
    if (event.key === "Escape") { $("search").value = ""; $("search").blur(); search(""); choose(null); return; }
    const within = (fields) => event.target !== $("search") && event.target.matches?.(fields);
    if (event.key === "Enter" && !within("input, select, textarea, button, a, summary")) { next(); return; }
    if (event.target === $("search") || within("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const span = view[1] - view[0];
    const keys = { w: () => zoom(0.7, pointer), s: () => zoom(1 / 0.7, pointer), a: () => look(view[0] - span / 5, view[1] - span / 5), d: () => look(view[0] + span / 5, view[1] + span / 5), 0: () => look(0, total), "/": () => $("search").focus() };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  };
  window.onresize = dress;
  window.onhashchange = () => goTo(location.hash);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", dress);
}
function begin() {                                    // once there is something to draw
  listen();
  const asked = location.hash;
  dress(); goTo(asked);
  document.body.dataset.ready = "yes";
}
