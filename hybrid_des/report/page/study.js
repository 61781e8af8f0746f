// Pages of studies: tables that are sorted by a click on a head, charts as wide as the page, points that open what they stand for.
// No more is read than `about.more`: charts, and texts of plans by number. Used beside timeline.js or alone.
const study = (() => {
const NS = "http://www.w3.org/2000/svg", MARKS = 6, RADIUS = 4.5, LETTER = 6.4, LINE = 34;   // shapes of points; pixels: of a point, of a letter, of the axis below
const more = JSON.parse(document.getElementById("about").textContent).more ?? {};
const SCALES = {
  seconds: [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
  bytes: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  share: [[0.01, "%"]], number: [[1e9, "bn"], [1e6, "m"], [1e3, "k"], [1, ""]],
};
function unitOf(kind, most) {                          // in which the values of an axis are written
  const known = SCALES[kind] ?? [[1, ""]];
  return known.find(([size]) => Math.abs(most) >= size) ?? known[known.length - 1];
}
const written = (value, [size, unit]) => `${Number((value / size).toPrecision(3))}${unit && " " + unit}`;
const make = (name, facts, text) => {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(facts)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const colourOf = (series) => series.colour === "#000000" ? "var(--ink)" : series.colour;

// -- tables ----------------------------------------------------------------------------------------------------------
const keyOf = (row, place) => { const cell = row.cells[place], text = cell.dataset.value ?? cell.textContent, number = Number(text); return text === "" ? null : Number.isNaN(number) ? text : number; };
function compared(a, b) {                              // numbers by size, texts as people order them, nothing last
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}
function sort(table, place) {                          // by a column; again: the other way round
  const head = table.tHead.rows[0].cells[place], down = head.getAttribute("aria-sort") === "ascending";
  const rows = [...table.tBodies[0].rows].map((row, i) => [row, keyOf(row, place), i]);
  rows.sort(([, a, i], [, b, k]) => (a === null || b === null || !down ? compared(a, b) : compared(b, a)) || i - k);
  for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  table.tBodies[0].append(...rows.map(([row]) => row));
}

// -- charts ----------------------------------------------------------------------------------------------------------
function ticks(low, high, most) {                      // round numbers
  const raw = (high - low) / Math.max(most, 1) || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((one) => one * power >= raw) ?? 10), found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}
function mark(shape, x, y, colour, hollow, size = RADIUS) {
  const r = size, corners = (...places) => make("path", { d: `M${places.map(([a, b]) => `${x + a * r} ${y + b * r}`).join("L")}Z` });
  const made = [
    () => make("circle", { cx: x, cy: y, r }), () => corners([-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]),
    () => corners([0, -1.2], [1.2, 1], [-1.2, 1]), () => corners([0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]),
    () => corners([0, 1.2], [1.2, -1], [-1.2, -1]),
    () => corners([-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]),
  ][shape % MARKS]();
  for (const [key, value] of Object.entries({ fill: hollow ? "var(--paper)" : colour, stroke: colour, "stroke-width": 1.5 })) made.setAttribute(key, value);
  return made;
}
function apart(named, scale) {                         // the ticks that have room beside the last one
  let end = -Infinity;
  return named.filter(([place, text]) => {
    const half = (LETTER * text.length) / 2 + 4, fits = place * scale - half >= end;
    if (fits) end = place * scale + half;
    return fits;
  });
}
function axis(facts, values, others, room) {                   // places of values, and the ticks that have room
  if (facts.names) {
    const every = Math.max(1, Math.ceil(facts.names.length * (LETTER * Math.min(14, Math.max(...facts.names.map((name) => name.length))) + 10) / room));
    const shown = facts.names.map((name, i) => [i, name.length > 14 ? `${name.slice(0, 13)}…` : name]).filter((_, i) => i % every === 0);
    return { low: -0.5, high: facts.names.length - 0.5, to: (v) => v, ticks: shown };
  }
  const to = facts.log ? Math.log10 : (v) => v, places = [...values, ...others].map(to);
  let low = Math.min(...places), high = Math.max(...places);
  if (facts.zero) low = Math.min(0, low);
  const space = 0.06 * (high - low || Math.abs(high) || 1);
  [low, high] = [facts.zero && low === 0 ? 0 : low - space, high + space];
  const unit = unitOf(facts.kind, Math.max(...values.map(Math.abs))), write = (v) => written(v, facts.log ? unitOf(facts.kind, v) : unit);
  const most = Math.min(6, Math.max(2, Math.floor(room / 70)));
  if (facts.texts) return { low, high, to, ticks: apart(facts.texts.map(([v, text]) => [to(v), text]), room / (high - low)) };
  if (!facts.log) return { low, high, to, ticks: ticks(low / unit[0], high / unit[0], most).map((v) => [v * unit[0], write(v * unit[0])]) };
  const each = [...new Set(values)].sort((a, b) => a - b);
  return { low, high, to, ticks: apart(each.map((v) => [to(v), write(v)]), room / (high - low)) };
}
function draw(host, spec) {
  const width = Math.max(host.clientWidth, 240), height = spec.height ?? 220, left = 64, right = 14, top = 10, bottom = height - LINE;
  const points = spec.series.flatMap((series) => series.points), svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": spec.title ?? spec.y.label });
  host.textContent = "";
  if (!points.length) return;
  const across = axis(spec.x, points.map(([x]) => x), (spec.marks ?? []).map((one) => one.at), width - left - right), up = axis(spec.y, points.map(([, y]) => y), [], 70 * (bottom - top) / 36);
  const X = (v) => left + (across.to(v) - across.low) / (across.high - across.low) * (width - left - right);
  const Y = (v) => bottom - (up.to(v) - up.low) / (up.high - up.low) * (bottom - top);
  const raised = (place) => bottom - (place - up.low) / (up.high - up.low) * (bottom - top), placed = (place) => left + (place - across.low) / (across.high - across.low) * (width - left - right);
  for (const [place, text] of up.ticks) svg.append(make("path", { d: `M${left} ${raised(place)}H${width - right}`, class: "grid" }), make("text", { x: left - 6, y: raised(place) + 4, "text-anchor": "end" }, text));
  for (const [place, text] of across.ticks) svg.append(make("path", { d: `M${placed(place)} ${bottom}v4`, class: "grid" }), make("text", { x: placed(place), y: bottom + 16, "text-anchor": "middle" }, text));
  svg.append(make("path", { d: `M${left} ${bottom}H${width - right}`, class: "axis" }), make("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle", class: "label" }, spec.x.label));
  let row = 0;
  for (const one of spec.marks ?? []) {                // lines across, each with its name to the side that has room
    const x = X(one.at), before = x > (left + width) / 2;
    svg.append(make("path", { d: `M${x} ${top}V${bottom}`, class: "limit" }), make("text", { x: x + (before ? -4 : 4), y: spec.low ? bottom - 6 - 14 * row++ : top + 10 + 14 * row++, "text-anchor": before ? "end" : "start" }, one.name));
  }
  spec.series.forEach((series, number) => {
    const colour = colourOf(series), drawn = series.points.map(([x, y]) => `${X(x)} ${Y(y)}`);
    if (series.line && drawn.length > 1) svg.append(make("path", { d: `M${drawn.join("L")}`, fill: "none", stroke: colour, "stroke-width": 1.6, ...(series.dash ? { "stroke-dasharray": series.dash } : {}) }));
    for (const [x, y, said, row, hollow] of series.points) {
      const point = mark(series.mark ?? number, X(x), Y(y), colour, hollow || series.hollow, series.size);
      point.append(make("title", {}, said ?? ""));
      if (row !== undefined && row !== null) { point.dataset.row = row; point.classList.add("open"); point.setAttribute("tabindex", 0); point.onclick = () => open(row); point.onkeydown = (event) => { if (event.key === "Enter") open(row); }; }
      svg.append(point);
    }
  });
  host.append(svg);
}
function legend(host, charts) {
  const seen = new Map();
  for (const chart of charts) chart.series.forEach((series, i) => { if (series.name && !seen.has(series.name)) seen.set(series.name, [series, i]); });
  host.textContent = "";
  for (const [name, [series, i]] of seen) {
    const item = document.createElement("span"), svg = make("svg", { width: 16, height: 12 });
    svg.append(mark(series.mark ?? i, 8, 6, colourOf(series), series.hollow));
    item.append(svg, name); host.append(item);
  }
}

// -- what is open ----------------------------------------------------------------------------------------------------
function open(row) {                                   // a case or plan: its row is marked, and so are its points
  for (const one of document.querySelectorAll("[data-row]")) one.classList.toggle("chosen", one.dataset.row === String(row));
  const about = document.getElementById("plan");
  if (about && more.plans?.[row]) about.innerHTML = more.plans[row];
  else document.querySelector(`tr[data-row="${row}"]`)?.scrollIntoView({ block: "nearest" });
  document.body.dataset.open = row;
}
async function copy(button) {
  const text = button.parentElement.querySelector("code").textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(button.parentElement.querySelector("code")); button.textContent = "selected"; }
}
function redraw() {
  for (const host of document.querySelectorAll("[data-chart]")) draw(host, more.charts[host.dataset.chart]);
  for (const host of document.querySelectorAll("[data-legend]")) legend(host, host.dataset.legend.split(" ").map((name) => more.charts[name]));
  if (document.body.dataset.open) open(document.body.dataset.open);
}
function start() {
  for (const table of document.querySelectorAll("table.sorted")) {
    [...table.tHead.rows[0].cells].forEach((head, place) => { head.querySelector("button").onclick = () => sort(table, place); });
    for (const row of table.tBodies[0].rows) if (row.dataset.row) row.onclick = () => open(row.dataset.row);
  }
  document.addEventListener("click", (event) => { if (event.target.matches?.("button.copy")) copy(event.target); });
  const theme = document.getElementById("light");
  if (theme) theme.onclick = () => { const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches; root.dataset.theme = dark ? "light" : "dark"; };
  redraw();
  if (more.first !== undefined) open(more.first);
  addEventListener("resize", redraw);
}
return { start, sort, open };
})();
