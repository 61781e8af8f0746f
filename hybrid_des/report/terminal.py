"""The report on the terminal: headline, a small Gantt chart in characters, idle time by cause, memory, bytes.

A report is lines of (text, style) parts; styles only matter where colour is wanted, and only then is rich imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hybrid_des.analysis.timeline import OP_KINDS
from hybrid_des.report.plots.bars import Bars, bars_of_run
from hybrid_des.report.plots.style import LABELS
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bytes, format_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybrid_des.scenario import Scenario
    from hybrid_des.simulation.run import Run

Part = tuple[str, str]  # text, style
Line = list[Part]

KINDS = (*OP_KINDS, "reduction", "idle")
LETTERS = {"F": "F", "B": "B", "W": "W", "FB": "X", "optimizer": "o", "reduction": "~", "idle": "·"}
MEANINGS = {**LABELS, "idle": "idle"}
STYLES = {  # Okabe and Ito's colours, as in the pictures
    "F": "bold #56B4E9",
    "B": "#E69F00",
    "W": "#009E73",
    "FB": "#CC79A7",
    "optimizer": "bold",
    "reduction": "#D55E00",
    "idle": "dim",
}
CAUSES = {
    "busy": "busy",
    "dependency": "waiting for another rank",
    "pipeline_message": "waiting for a pipeline message",
    "gradient_reduction": "gradient reduction",
    "end_of_step": "waiting for the end of the step",
}
MOST_LINES = 16
LABEL = 24


class Source(Protocol):
    """What a report is made from; `hybrid_des.result.Result` is one."""

    @property
    def run(self) -> Run:
        """The run itself."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """The summary."""


def render(source: Source, color: bool = False, width: int = 100) -> str:
    """Write the report, `width` columns wide, with terminal colours if wanted; no newline at the end."""
    width = max(width, 40)
    scenario, facts = source.run.scenario, source.summary
    blocks = [
        _title(scenario, facts),
        _headline(facts),
        _chart(source.run, width),
        _causes(facts, width),
        _resources(scenario, facts),
        [[(line, "dim")] for line in _wrap("Not modelled: " + _limits(scenario), width)],
    ]
    lines: list[Line] = []
    for block in blocks:
        lines += [*block, []] if block else []
    return (
        _paint(lines[:-1], width)
        if color
        else "\n".join("".join(text for text, _ in line).rstrip() for line in lines[:-1])
    )


def _title(scenario: Scenario, facts: Mapping[str, Any]) -> list[Line]:
    parallel, schedule, cluster = scenario.parallel, scenario.schedule, scenario.cluster
    layout = [f"{parallel.pipeline} pipeline ranks" if parallel.pipeline > 1 else "", _many(parallel.data, "replica")]
    names = ", ".join(dict.fromkeys(kind.gpu.name for kind in cluster.kinds))
    if parallel.tensor > 1:
        layout.append(f"{parallel.tensor} tensor ranks")
    about = (
        f"{_many(facts['ranks'], 'GPU')} ({names}): {' × '.join(filter(None, layout))}; "
        f"{schedule.kind or schedule.file}, {_many(schedule.microbatches, 'micro-batch')} a replica"
        f"{'; ' + _many(scenario.steps, 'step') if scenario.steps > 1 else ''}"
    )
    headline: Line = [(scenario.name, "bold")]
    if scenario.description:
        headline.append((f": {scenario.description}", ""))
    return [headline, [(about, "dim")]]


def _headline(facts: Mapping[str, Any]) -> list[Line]:
    hidden = facts["gradient_communication_s"]["hidden"]
    beside = ("hidden communication", format_seconds(hidden), f"of the {facts['algorithm']} all-reduce beside compute")
    rows = (
        ("step time", format_seconds(facts["step_time_s"]), f"{facts['microbatches_per_s']:.4g} micro-batches/s"),
        ("bubble", f"{facts['bubble_ratio']:.1%}", f"of the pipeline's {format_seconds(facts['pipeline_time_s'])}"),
        ("exposed communication", f"{facts['exposed_communication_ratio']:.1%}", "of the step spent waiting for bytes"),
        *((beside,) if hidden else ()),
        (
            "speed-up",
            f"{facts['speedup']:.2f}×",
            f"on {_many(facts['ranks'], 'GPU')}, {facts['efficiency']:.1%} efficient",
        ),
    )
    return [[(f"{name:<{LABEL}}", ""), (f"{value:>10}", "bold"), (f"   {note}", "dim")] for name, value, note in rows]


def _chart(run: Run, width: int) -> list[Line]:
    """The first step, a line a rank; of many ranks the first replica, of a long pipeline its two ends."""
    bars = bars_of_run(run)
    steps = run.trace.steps.table()
    first = steps["step"] == 0
    begin, end = (int(pick(steps[name][first])) for name, pick in (("begin", np.min), ("end", np.max)))
    if end <= begin:
        return []
    shown, note = _shown(bars)
    label = max(len(f"rank {bars.ranks[i]}") for i in shown) + 2
    cells = _cells(bars, shown, begin / PICOSECONDS_PER_SECOND, end / PICOSECONDS_PER_SECOND, width - label)
    lines: list[Line] = []
    previous = -1
    for i in shown:
        if previous >= 0 and i > previous + 1:
            lines.append([(" " * label + "⋮", "dim")])
        lines.append([(f"{f'rank {bars.ranks[i]}':<{label}}", ""), *_runs(cells[i])])
        previous = i
    scale = format_seconds((end - begin) / PICOSECONDS_PER_SECOND)
    lines.append([(f"{'':<{label}}{'0':<{width - label - len(scale)}}{scale}", "dim")])
    used = [kind for i, kind in enumerate(KINDS) if (cells[shown] == i).any()]
    key: Line = [(" " * label, "")]
    for kind in used:
        key += [(LETTERS[kind], STYLES[kind]), (f" {MEANINGS[kind]}   ", "dim")]
    return [*lines, key, *([[(" " * label + note, "dim")]] if note else [])]


def _shown(bars: Bars) -> tuple[list[int], str]:
    """Which lines of the chart have room, and what to say about the others."""
    count = len(bars.ranks)
    if count <= MOST_LINES:
        return list(range(count)), ""
    replicas = len(set(bars.replicas))
    mine = [i for i in range(count) if bars.replicas[i] == bars.replicas[0]]
    note = f"the first of {replicas} replicas" if replicas > 1 else ""
    if len(mine) > MOST_LINES:
        left_out = len(mine) - MOST_LINES
        note = ", ".join(filter(None, [note, f"without {left_out} ranks in its middle"]))
        mine = mine[: MOST_LINES // 2] + mine[-MOST_LINES // 2 :]
    return mine, f"({note})"


def _cells(bars: Bars, shown: list[int], begin: float, end: float, columns: int) -> NDArray[np.int64]:
    """What a cell shows, line × column, as a place in `KINDS`: what fills most of it, reduction in place of idle."""
    width = (end - begin) / columns
    filled = np.zeros((len(bars.ranks), columns, len(KINDS)))
    idle, reduction = KINDS.index("idle"), KINDS.index("reduction")
    waits = bars.waits.T
    line = np.concatenate([bars.line, waits[0].astype(np.int64)])
    kind = np.concatenate([bars.kind, np.full(len(bars.waits), reduction)])
    start, stop = (np.concatenate(pair) for pair in ((bars.start, waits[1]), (bars.end, waits[2])))
    inside = (start < end) & np.isin(line, shown)
    for row, what, low, high in zip(*(column[inside].tolist() for column in (line, kind, start, stop)), strict=True):
        last = min(int((high - begin) / width), columns - 1)
        for column in range(min(int((low - begin) / width), last), last + 1):
            left = begin + column * width
            filled[row, column, what] += max(min(high, left + width) - max(low, left), 0.0)
    filled[..., idle] = width - filled[..., : len(OP_KINDS)].sum(axis=2)
    reduced = filled[..., reduction].copy()
    filled[..., reduction] = 0.0
    cells = np.asarray(filled.argmax(axis=2), dtype=np.int64)
    cells[(cells == idle) & (reduced >= filled[..., idle] / 2)] = reduction
    return cells


def _runs(cells: Sequence[int]) -> Line:
    """Neighbouring cells of one kind as one part."""
    line: Line = []
    for cell in cells:
        letter, style = LETTERS[KINDS[cell]], STYLES[KINDS[cell]]
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + letter, style)
        else:
            line.append((letter, style))
    return line


def _causes(facts: Mapping[str, Any], width: int) -> list[Line]:
    step = facts["step_time_s"]
    lines: list[Line] = [[("a rank's step, on average", "bold")]]
    room = max(width - 36 - 24, 8)
    for name, seconds in {"busy": facts["busy_s"], **facts["idle_s"]}.items():
        share = seconds / step if step else 0.0
        style = "#0072B2" if name == "busy" else STYLES["reduction"]
        label = CAUSES.get(name, name.replace("_", " "))
        row = f"  {label:<34}{format_seconds(seconds):>10}{share:>9.1%}  "
        lines.append([(row, ""), ("█" * round(share * room), style)])
    return lines


def _resources(scenario: Scenario, facts: Mapping[str, Any]) -> list[Line]:
    limits = sorted({kind.gpu.memory for kind in scenario.cluster.kinds})
    limit = " or ".join(format_bytes(limit) for limit in limits)
    held, kept = facts["peak_memory_bytes"], facts["peak_activations"]
    verdict = "OUT OF MEMORY" if facts["out_of_memory"] else "fits"
    worst = max(range(len(held)), key=held.__getitem__)
    lines: list[Line] = [
        [
            (f"{'memory':<{LABEL}}", ""),
            (verdict, "bold red" if facts["out_of_memory"] else "bold"),
            (f"   at most {format_bytes(held[worst])} of {limit}, on pipeline rank {worst}", ""),
        ],
        [(f"{'  by pipeline rank':<{LABEL}}{_few([format_bytes(size) for size in held])}", "dim")],
        [(f"{'micro-batches in flight':<{LABEL}}{_few([f'{value:g}' for value in kept])}", "")],
    ]
    sizes = [
        f"{format_bytes(facts[key])} {name}"
        for key, name in (("bytes_pipeline", "pipeline"), ("bytes_gradients", "gradients"), ("bytes_scales", "scales"))
        if facts[key]
    ]
    sent = f"{_many(facts['messages'], 'message')} a step{': ' + ', '.join(sizes) if sizes else ''}"
    lines.append([(f"{'sent':<{LABEL}}{sent}", "")])
    if facts.get("loss"):
        lines += _training(facts)
    real = f"{format_seconds(facts['wall_s'])} for {_many(facts['events'], 'event')}"
    lines.append([(f"{'real time':<{LABEL}}{real}", "dim")])
    return lines


def _training(facts: Mapping[str, Any]) -> list[Line]:
    """What the small model learnt, and how far its gradients were from serial training's."""
    losses = [f"{value:.4g}" for value in facts["loss"]]
    accuracies = [f"{value:.1%}" for value in facts["accuracy"]]
    difference = facts["replica_difference"]
    replicas = "replicas bit-identical" if difference == 0 else f"replicas differ by {difference:.2g}"
    return [
        [(f"{'loss':<{LABEL}}{_few(losses)}", "")],
        [(f"{'accuracy':<{LABEL}}{_few(accuracies)}", "")],
        [(f"{'gradients':<{LABEL}}{facts['gradient_error']:.2g} off serial training's at worst; {replicas}", "")],
    ]


def _limits(scenario: Scenario) -> str:
    sends = (
        "sends block as in plain Megatron-LM 1F1B"
        if scenario.schedule.p2p == "blocking"
        else "sends are asynchronous, where plain Megatron-LM 1F1B blocks (schedule.p2p: blocking)"
    )
    return f"kernel launches, the host, jitter, and compute slowed by communication; {sends}."


def _many(count: float, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _few(values: Sequence[str]) -> str:
    """All of up to eight values, else both ends."""
    return "  ".join(values if len(values) <= 8 else [*values[:4], "…", *values[-3:]])


def _wrap(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width)


def _paint(lines: Sequence[Line], width: int) -> str:
    """Add terminal colours."""
    import io

    from rich.console import Console
    from rich.text import Text

    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, color_system="256", width=width, no_color=False, legacy_windows=False
    )
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)
    return file.getvalue().rstrip("\n")
