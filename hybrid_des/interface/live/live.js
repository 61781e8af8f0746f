// The page of `hybrid-des live`: every change of a control is asked for at once, and the newest answer is drawn.
const STEPS = 300, PAUSE = 800;                       // positions of a slider; milliseconds after which a change begins anew
const UNITS = { time: [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]], size: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]] };
UNITS.bandwidth = UNITS.size.map(([size, name]) => [size, `${name}/s`]);
const WHERE = ["gpu", "node", "stage", "nic", "link"];
const { files, file, overrides, server } = JSON.parse($("about").textContent).more;
try { localStorage.setItem("hybrid-des live", JSON.stringify({ server, page: location.pathname })); } catch { /* not kept: entry.html asks for the address */ }
let state = { file, changes: {} }, past = [], future = [], pins = [];
let asked = 0, answer = null, settled = null, touched = ["", 0], ranges = {}, drawing = Promise.resolve(), held = false;
const sent = new Map();                               // the state of every request that may still be answered
let reasons = 0, pause = 0, told = {}, possible = {}, pinning = [];   // the request for reasons, the timer before it, and what is known of its answer; values that are possible; states still to be pinned
const IDLE = 500;                                     // milliseconds without a change after which reasons are asked for

// -- asking ----------------------------------------------------------------------------------------------------------
const send = connect((found) => {
  if ("yaml" in found) { save(found); return; }
  if (found.number === reasons) { reason(found.problems ? { advice: { label: "Change", lines: [], none: found.problems.join("\n") } } : found); return; }
  if ("why" in found || "possible" in found) return;                     // of an older state
  if (found.number < asked && found.problems) return;                    // of a value that has changed again
  drawing = drawing.then(() => {                                         // in turn, or the picture of an older state would take the problem away
    if (found.problems) { if (found.number === asked) refuse(found.problems, found.fields, found.others); return null; }
    return found.number < (answer?.number ?? 0) ? null : draw_answer(found);
  }).catch((error) => refuse([String(error)]));
}, (why) => refuse([why]));
function ask() {
  asked = send({ file: state.file, changes: state.changes });
  sent.set(asked, state);
  $("status").textContent = "simulating";
  clearTimeout(pause); reasons = 0; told = {}; $("why").classList.add("old"); delete document.body.dataset.why;
  for (const one of document.querySelectorAll("#why button")) one.disabled = true;   // what they set belongs to the state before
  buttons();
}
function ask_why() { reasons = send({ want: "why", file: state.file, changes: state.changes }); }
function become(next, path = "") {                    // another state; changes of one value in a row are one step of undo
  const now = performance.now(), same = path && path === touched[0] && (held || now - touched[1] < PAUSE);
  touched = [path, now];
  if (!same) { past.push(state); settled = answer; }
  future = []; state = next; ask();
}
function change(path, text) {
  const changes = { ...state.changes };
  delete changes[path];
  if (text !== "") changes[path] = text;
  become({ ...state, changes }, path);
}
function back(from, to) {                             // undo and redo
  if (!from.length) return;
  to.push(state); state = from.pop(); touched = ["", 0]; settled = answer; ask();
}
function refuse(problems, fields = null, others = problems) {   // the picture stays; each problem is said at its control, and above the page if it belongs to none
  const last = touched[0];
  unmark();
  let wrong = Object.entries(fields ?? {});
  if (fields && !wrong.length && last in state.changes) { wrong = [[last, others.join("\n")]]; others = []; }
  for (const [path, text] of wrong) mark(path, text);
  $("problem").textContent = others.join("\n"); $("status").textContent = "";
  document.querySelector("main").classList.add("old");
  document.body.dataset.problems = problems.length;
}
function mark(path, text) {                           // what is wrong with a value, at its control: values without one are set by the last field
  const home = $(`wrong-${path}`) ? path : "other", said = $(`wrong-${home}`);
  said.textContent = home === path ? text : `${path}: ${text}`; said.hidden = false;
  ($(`value-${home}`) ?? $(home === "slow" ? "add-slow" : home))?.setAttribute("aria-invalid", "true");
  for (let group = said.closest("details"); group; group = group.parentElement.closest("details")) group.open = true;
}
function unmark() {
  for (const said of document.querySelectorAll(".wrong")) { said.textContent = ""; said.hidden = true; }
  for (const field of document.querySelectorAll("[aria-invalid=true]")) field.setAttribute("aria-invalid", "false");
}

// -- the address: its state can be sent, and stays when the page is read again ---------------------------------------
const texts_of = ({ file, changes }) => [["file", file], ...Object.entries(changes).map(([path, text]) => ["set", `${path}=${text}`])];
function state_in(parameters) {
  const changes = {};
  for (const text of parameters.getAll("set")) { const at = text.indexOf("="); if (at > 0) changes[text.slice(0, at)] = text.slice(at + 1); }
  return { file: parameters.get("file") ?? file, changes };
}
function remember() {                                 // the state that is drawn
  const parameters = new URLSearchParams(texts_of(answer));
  for (const one of pins) parameters.append("pin", new URLSearchParams(texts_of(one)));
  history.replaceState(null, "", `#${parameters}`);
}
const link = () => `${location.origin}/${location.hash}`;   // without the token, which entry.html adds in a browser that knows it
function recall() {                                   // the state that the address has; pinned runs are simulated first
  const parameters = new URLSearchParams(location.hash.slice(1));
  if (!parameters.has("file")) { if (!answer) ask(); return; }   // a time of a rank, see timeline.js
  const next = state_in(parameters), kept = parameters.getAll("pin").slice(0, 2).map((text) => state_in(new URLSearchParams(text)));
  if (JSON.stringify(texts_of(next)) === JSON.stringify(texts_of(state)) && answer && kept.length === pins.length) return;
  pins = []; pinning = [...kept, next]; state = pinning.shift(); touched = ["", 0]; ask();
}

// -- the answer ------------------------------------------------------------------------------------------------------
async function draw_answer(found) {
  if (answer && answer.file !== found.file) { settled = null; pins = []; ranges = {}; $("controls").dataset.kinds = ""; }
  const before = answer;
  answer = found; answer.changes = { ...sent.get(found.number).changes };
  for (const number of sent.keys()) if (number < found.number) sent.delete(number);
  if (pinning.length && found.number === asked) { pins.push(answer); state = pinning.shift(); ask(); return; }
  try { await timelines(); } catch (error) { answer = before; throw error; }   // all of the page changes, or nothing
  document.querySelector("main").classList.remove("old");
  $("problem").textContent = ""; delete document.body.dataset.problems;
  texts(); controls(); unmark(); slow(); buttons(); remember();
  if (found.number === asked) { clearTimeout(pause); pause = setTimeout(ask_why, IDLE); }
  if (!document.body.dataset.ready) begin();
  if (found.number === asked) $("status").textContent = "";
  Object.assign(document.body.dataset, { frame: found.number, step: found.summary.step_time_s });   // what is drawn, for tests
}
async function timelines() {
  const runs = shown();
  runs.forEach(([name, one]) => { one.run.head = name; one.run.note = noteOf(one); });
  const before = runs.length === 1 && settled && settled !== answer ? settled.run : null;
  await show(runs.map(([, one]) => one.run), runs.map(([, one]) => one.data), before);
  compare(runs);
}
function reason(part) {                               // parts of the answer as they are found: why the step takes as long as it does, what is possible, what to change
  told = { ...told, ...part };
  const { label, lines, none, hardware } = told.advice ?? { label: "Change", lines: [], none: "looking for settings that make the step shorter …" };
  const rows = Object.entries(told.why ?? {}).map(([name, texts]) => [name, texts.join("\n")]);
  rows.push([label, ...(none ? [none] : lines.map(offer))], ...(hardware ? [["Hardware", hardware]] : []));
  $("why").replaceChildren(...rows.flatMap(([name, ...texts]) => { const text = element("dd"); text.append(...texts); return [element("dt", name), text]; }));
  $("why").classList.remove("old");
  if (part.possible) { possible = part.possible; for (const one of answer.controls) limits(one); }
  if (told.advice) document.body.dataset.why = Object.values(told.why ?? {}).join();
}
function offer(line) {                                // a change as a button that makes it
  const sets = Object.entries(line.changes), keys = sets.map((pair) => pair.join("=")).join(", "), box = element("div", "", { className: "offer" });
  const button = element("button", line.change, { title: `set ${keys}` });
  button.onclick = () => {
    const kept = Object.entries(state.changes).filter(([path]) => !(path in line.changes));
    become({ ...state, changes: Object.fromEntries([...kept, ...sets]) });
  };
  box.append(button, line.outcome.replaceAll(" %", "\u00a0%"), element("small", line.flags || keys));
  return box;
}
function shown() {                                    // the pinned runs, and the present one unless it is pinned
  const names = pins.map((one, i) => ["AB"[i], one]);
  return pins.some((one) => one === answer) ? names : [...names, ["now", answer]];
}
const noteOf = (one) => [time(one.run.duration), ...Object.entries(one.changes).map((pair) => pair.join("="))].join(" · ");
const element = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
function texts() {
  document.title = $("name").textContent = answer.summary.name;
  $("description").textContent = answer.description; $("setup").textContent = answer.setup.join("\n");
  $("alarm").textContent = answer.alarm; $("command").textContent = answer.command;
  $("more").textContent = [...answer.resources.map((one) => [one.label, one.value, one.note].filter(Boolean).join(" ")), answer.limits].join(". ");
  $("cards").replaceChildren(...answer.cards.map((card) => {
    const box = element("div"), before = settled?.cards.find((one) => one.label === card.label)?.value;
    box.append(element("b", card.value), ` ${card.label}`);
    if (before && before !== card.value) box.append(element("s", ` (before: ${before})`));
    box.append(element("small", card.note));
    return box;
  }));
  $("shares").replaceChildren(...answer.shares.map((one) => { const bar = element("i", "", { title: `${one.label} ${share(one.fraction)}` }); bar.style.width = `${100 * one.fraction}%`; bar.style.background = one.colour; return bar; }));
  $("causes").replaceChildren(...answer.shares.filter((one) => one.fraction >= 0.0005).map((one) => {
    const item = element("span"), box = element("i"), before = settled?.shares.find((other) => other.label === one.label)?.fraction;
    box.style.background = one.colour; item.append(box, `${one.label} ${share(one.fraction)} `);
    if (before !== undefined && share(before) !== share(one.fraction)) item.append(element("s", `(${share(before)}) `));
    return item;
  }));
  const values = new URLSearchParams();
  for (const [name, path, number] of [["pipeline", "parallel.pipeline", 1], ["microbatches", "schedule.microbatches", 1], ["chunks", "schedule.chunks", 1], ["forward", "workload.forward", 0], ["backward", "workload.backward", 0]]) {
    const one = answer.controls.find((other) => other.path === path);
    if (one?.number && (!number || Number.isInteger(one.number))) values.set(name, one.number);
  }
  $("schedules").href = `schedules?${values}`;
}
const share = (fraction) => `${(100 * fraction).toFixed(1)} %`;
const signed = (number, unit) => Math.abs(number) < 0.05 ? "" : `${number > 0 ? "+" : "−"}${Math.abs(number).toFixed(1)} ${unit}`;
function said_as(number, unit) {
  if (number === undefined) return "";
  if (unit === "s") return time(Math.round(number * 1e12));
  return unit === "share" ? share(number) : unit === "bytes" ? bytes(number) : String(Number(number.toPrecision(4)));
}
function compare(runs) {
  if (runs.length < 2) { $("compared").textContent = ""; return; }
  const table = element("table"), add = (cells, tag) => { const row = element("tr"); row.append(...cells.map((text) => element(tag, text))); table.append(row); };
  const first = runs[0][1], last = runs[runs.length - 1][1];
  add(["", ...runs.map(([name]) => name), `${runs[runs.length - 1][0]} against ${runs[0][0]}`], "th");
  for (const { label, unit, value } of first.numbers) {
    const values = runs.map(([, one]) => one.numbers.find((other) => other.label === label)?.value), end = values[values.length - 1];
    const change = end === undefined ? "" : unit === "share" ? signed(100 * (end - value), "points") : value ? signed(100 * (end / value - 1), "%") : "";
    add([label, ...values.map((one) => said_as(one, unit)), change], "td");
  }
  for (const label of new Set(runs.flatMap(([, one]) => one.shares.map((part) => part.label)))) {
    const parts = runs.map(([, one]) => one.shares.find((part) => part.label === label)?.seconds ?? 0);
    if (Math.max(...parts) > 0.001 * first.summary.step_time_s) add([label, ...parts.map((one) => said_as(one, "s")), ""], "td");
  }
  for (const path of new Set([...Object.keys(first.changes), ...Object.keys(last.changes)]))
    add([path, ...runs.map(([, one]) => one.changes[path] ?? "as in the file"), ""], "td");
  $("compared").replaceChildren(table);
}

// -- controls --------------------------------------------------------------------------------------------------------
function written(number, kind) {                      // a quantity as in a file, with three digits
  const units = UNITS[kind];
  if (!units) return kind === "whole" ? String(Math.round(number)) : String(Number(number.toPrecision(3)));
  const [size, name] = units.find(([size]) => number >= 0.9995 * size) ?? units[units.length - 1];
  return `${Number((number / size).toPrecision(3))} ${name}`;
}
const scaled = (one) => !["whole", "share"].includes(one.kind);   // on a logarithmic scale, whose first position is 0
function toPosition(one, number) {
  const [least, most] = ranges[one.path];
  if (!scaled(one)) return number;
  return number <= 0 ? 0 : Math.max(1, Math.round(STEPS * Math.log(number / least) / Math.log(most / least)));
}
function fromPosition(one, position) {
  const [least, most] = ranges[one.path];
  if (!scaled(one)) return position;
  return position === 0 && one.kind !== "bandwidth" ? 0 : least * (most / least) ** (position / STEPS);
}
const kindsOf = (list) => list.map((one) => [one.path, one.kind, one.number === null, ...one.choices].join()).join(";");
function controls() {
  if ($("controls").dataset.kinds !== kindsOf(answer.controls)) build();
  for (const one of answer.controls) {
    const field = $(`value-${one.path}`), slider = $(`slider-${one.path}`);
    field.closest(".control").classList.toggle("changed", one.path in state.changes);
    if (state.changes[one.path] !== answer.changes[one.path] || (document.activeElement === field && typed(field))) continue;   // a newer value
    if (one.kind === "flag") field.checked = one.value === "true"; else put(field, one.value);
    if (slider && !held) slider.value = toPosition(one, one.number);
  }
}
function put(field, text) { if (field.tagName === "INPUT") field.defaultValue = text; field.value = text; }
const typed = (field) => field.tagName === "INPUT" && field.value !== field.defaultValue;   // a text that is not yet a change
function build() {
  const open = new Set([...document.querySelectorAll("#controls details:not([open])")].map((group) => group.dataset.group)), focus = document.activeElement?.id;
  const groups = new Map();
  for (const one of answer.controls) {
    if (!groups.has(one.group)) {
      const group = element("details", "", { open: !open.has(one.group) });
      group.dataset.group = one.group; group.append(element("summary", one.group)); groups.set(one.group, group);
    }
    groups.get(one.group).append(row(one));
  }
  $("controls").replaceChildren(...groups.values());
  $("controls").dataset.kinds = kindsOf(answer.controls);
  answer.controls.forEach(limits);
  if (focus) $(focus)?.focus();
}
function row(one) {
  const box = element("div", "", { className: `control ${one.kind}`, title: `${one.path}: ${one.about}` });
  const field = one.kind === "choice" ? element("select") : element("input", "", { type: one.kind === "flag" ? "checkbox" : "text" });
  field.id = `value-${one.path}`;
  field.setAttribute("aria-describedby", `wrong-${one.path} range-${one.path}`);
  const range = element("small", "", { id: `range-${one.path}`, className: "range" }), wrong = element("small", "", { id: `wrong-${one.path}`, className: "wrong", hidden: true, role: "alert" });
  for (const name of one.choices) field.append(element("option", name, { value: name }));
  field.oninput = () => { if (one.kind === "choice" || one.kind === "flag") change(one.path, one.kind === "flag" ? String(field.checked) : field.value); };
  field.onchange = () => { if (one.kind !== "choice" && one.kind !== "flag") { put(field, field.value.trim()); change(one.path, field.value); } };
  const label = element("label", one.label, { htmlFor: field.id });
  if (one.kind === "flag") { box.append(field, label, wrong); return box; }
  box.append(label);
  if (one.number === null || one.kind === "choice" || one.kind === "text") { field.className = "wide"; box.append(field, range, wrong); return box; }
  const known = ranges[one.path];
  ranges[one.path] = known ? [Math.min(known[0], one.number || Infinity), Math.max(known[1], one.number)] : [one.least, one.most];
  const [least, most] = scaled(one) ? [0, STEPS] : ranges[one.path];
  const slider = element("input", "", { type: "range", id: `slider-${one.path}`, min: least, max: most, step: one.kind === "share" ? 0.01 : 1 });
  slider.setAttribute("aria-label", one.label); slider.setAttribute("aria-describedby", field.getAttribute("aria-describedby"));
  slider.oninput = () => { put(field, written(fromPosition(one, Number(slider.value)), one.kind)); change(one.path, field.value); };
  box.append(slider, field, range, wrong);
  return box;
}
function limits(one) {                                // which values are possible while the others stay
  const said = $(`range-${one.path}`), values = possible[one.path];
  if (!said || !values) return;
  if (one.kind === "choice") for (const option of $(`value-${one.path}`).options) option.disabled = !values.includes(option.value);
  else said.textContent = values.length < 2 ? "no other value is possible now" : `possible: ${spans(values.map(Number))}${Number(values[values.length - 1]) === 32 ? " and more" : ""}`;
}
function spans(numbers) {                             // 1, 2, 3, 8 as 1–3, 8
  const parts = [];
  for (const number of numbers) { const last = parts[parts.length - 1]; if (last && last[1] === number - 1) last[1] = number; else parts.push([number, number]); }
  const said = parts.map(([from, to]) => from === to ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`);
  return said.length > 8 ? `${said.slice(0, 7).join(", ")} … ${said[said.length - 1]}` : said.join(", ");
}
function slow() {
  const parts = () => [...$("slow").querySelectorAll("select, input, button")], focus = parts().indexOf(document.activeElement);
  if (focus >= 0 && (held || typed(document.activeElement))) return;
  const all = answer.slow, set = (items) => change("slow", items.length ? JSON.stringify(items) : "none");
  const others = (i, next) => set(all.map((one, k) => k === i ? next : one));
  $("slow").replaceChildren(...all.map((item, i) => {
    const box = element("div", "", { className: "slow", title: JSON.stringify(item) }), kind = WHERE.find((name) => name in item) ?? "gpu";
    const what = element("select"), which = element("input", "", { defaultValue: item[kind], size: 6 });
    for (const name of WHERE) what.append(element("option", name, { value: name, selected: name === kind }));
    what.setAttribute("aria-label", "kind of slow part"); which.setAttribute("aria-label", "which one");
    const target = () => { which.defaultValue = which.value; const { [kind]: _, ...rest } = item; const text = which.value.trim(); others(i, { [what.value]: /^\d+$/.test(text) ? Number(text) : text, ...rest }); };
    what.onchange = () => { if (/^\d+$/.test(which.value) === ["nic", "link"].includes(what.value)) which.value = { nic: "node0/nic0", link: "node0/nic0/out" }[what.value] ?? 0; target(); };
    which.onchange = target;
    const factor = element("input", "", { type: "range", min: 0.05, max: 1.5, step: 0.05, value: item.factor ?? 1, disabled: !("factor" in item) }), said = element("output", "factor" in item ? `× ${item.factor}` : "");
    factor.setAttribute("aria-label", "speed");
    factor.oninput = () => { item.factor = Number(factor.value); said.textContent = `× ${factor.value}`; set(all); };
    const away = element("button", "✕", { title: "remove" });
    away.onclick = () => set(all.filter((_, k) => k !== i));
    box.append(what, which, factor, said, away);
    return box;
  }));
  parts()[focus]?.focus();
}

// -- buttons ---------------------------------------------------------------------------------------------------------
function buttons() {
  $("undo").disabled = !past.length; $("redo").disabled = !future.length;
  $("pin").textContent = pins.length === 2 ? "pin instead of B" : pins.length ? "pin as B" : "pin as A";
  $("links").hidden = pins.length === 0; $("links").textContent = look_of.brief ? "show links and memory" : "hide links and memory";
  $("pin").disabled = !answer || pins.includes(answer);
  $("file").value = state.file;
  const chips = Object.entries(state.changes).map(([path, text]) => chip(`${path}=${text}`, () => change(path, "")));
  const kept = pins.map((one, i) => chip(`${"AB"[i]} pinned: ${noteOf(one)}`, () => { pins.splice(i, 1); remember(); timelines().then(buttons); }));
  $("changes").replaceChildren(...overrides.map((text) => element("span", text, { className: "chip" })), ...chips, ...kept);
}
function chip(text, away) {
  const item = element("span", text, { className: "chip" }), button = element("button", "✕", { title: "remove" });
  button.onclick = away; item.append(button);
  return item;
}
function save({ yaml, name }) {
  const link = element("a", "", { href: URL.createObjectURL(new Blob([yaml], { type: "application/yaml" })), download: name.replace(/(\.ya?ml)?$/, "_changed.yaml") });
  link.click(); setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  $("status").textContent = `saved ${link.download}`; document.body.dataset.saved = yaml.length;
}
async function copy(text, shown) {
  shown.textContent = text;
  try { await navigator.clipboard.writeText(text); $("status").textContent = "copied"; }
  catch { shown.closest("details").open = true; getSelection().selectAllChildren(shown); $("status").textContent = "press Ctrl+C to copy"; }
}
for (const name of files) $("file").append(element("option", name, { value: name }));
$("file").onchange = () => { if ($("file").value !== state.file) become({ file: $("file").value, changes: {} }); };
$("undo").onclick = () => back(past, future);
$("redo").onclick = () => back(future, past);
$("pin").onclick = () => { pins = [...pins.slice(0, 1), answer]; remember(); timelines().then(buttons); };
$("links").onclick = () => { look_of.brief = !look_of.brief; dress(); buttons(); };
look_of.brief = true;
$("save").onclick = () => send({ want: "yaml", file: state.file, changes: state.changes });
$("copy").onclick = () => copy(answer.command, $("command"));
$("copy-link").onclick = () => copy(link(), $("link"));
$("add-slow").onclick = () => change("slow", JSON.stringify([...(answer?.slow ?? []), { gpu: 0, factor: 0.5 }]));
$("other").onchange = (event) => {
  const [, path, text] = /^\s*([\w.-]+)\s*=\s*(.*?)\s*$/.exec(event.target.value) ?? [];
  if (path) { change(path, text); event.target.value = ""; } else if (event.target.value) mark("other", `${event.target.value}: expected a path and a value, such as seed=1`);
};
window.addEventListener("pointerdown", () => { held = true; touched = ["", 0]; }, true);
for (const name of ["pointerup", "pointercancel", "blur"]) window.addEventListener(name, () => { held = false; }, true);
window.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.closest?.("aside") && event.target.type === "text") event.target.value = event.target.defaultValue;
  if (!(event.ctrlKey || event.metaKey) || (event.target.matches?.("input[type=text], input:not([type]), input[type=search]") && typed(event.target))) return;   // a text that is being typed has its own undo
  const key = event.key.toLowerCase();
  if (key === "z" && !event.shiftKey) { event.preventDefault(); back(past, future); }
  else if (key === "y" || key === "z") { event.preventDefault(); back(future, past); }
});
const narrow = matchMedia("(max-width: 900px)");
narrow.onchange = () => { $("panel").open = !narrow.matches; };
narrow.onchange();
window.addEventListener("hashchange", recall);
if (location.hash.length > 1) recall(); else ask();
