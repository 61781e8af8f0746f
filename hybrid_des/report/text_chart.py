"""A small Gantt chart in characters: the first step, one line per pipeline rank.

A letter shows what fills most of its time. If ops would be shorter than a letter, the middle of the step is left out,
so that warm-up, some of the steady state and the end are seen op by op:

    rank 0  FFFF······BBBFBBB  ┊  BBBFBBB·BBB·BBB
            0          80 ms   ┊ 350 ms    410 ms

If even that does not fit, letters show shares: the share of F in a rank's line is its share of time in forwards.
Replicas with the same lines are shown once, as "rank 0 ×4".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil
from typing import NamedTuple

import numpy as np

from hybrid_des.planning.program_table import OP_KINDS, Column
from hybrid_des.report.bars import Bars, Seconds, bars_of
from hybrid_des.report.palette import ACTIVITIES, BLACK
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds, grouped_by

Part = tuple[str, str]  # text, style


Line = list[Part]


KINDS = (*OP_KINDS, "reduction", "exchange", "idle")


IDLE, REDUCTION_LETTER, EXCHANGE = KINDS.index("idle"), KINDS.index("reduction"), KINDS.index("exchange")


FORWARD, OPTIMIZER = KINDS.index("F"), KINDS.index("optimizer")


MOST_LINES = 16


MARK = "  ┊  "  # where time is left out


SAME = "(× counts replicas with the same lines)"


LETTERS = (2, 1)  # of the shortest op, where time is left out


NEGLIGIBLE = 1e-6  # of a cell


PERIODS = 2  # forwards and backwards shown after the warm-up


class Window(NamedTuple):
    """A stretch of time: begin and end in seconds, and columns."""

    begin: float
    end: float
    columns: int


def style_of(kind: str) -> str:
    """The terminal style of an activity: its colour, bold default for black, dim for idle."""
    colour = ACTIVITIES[kind].colour
    return "dim" if kind == "idle" else "bold" if colour == BLACK else colour


def chart_of(timeline: Timeline, width: int, *, apart: bool = False, inside: Column | None = None) -> list[Line]:
    """The lines of the chart: only the first replica if there are many, and only the two ends of a long pipeline.

    Tensor and context ranks share the stages of one line, unless context ranks compute different documents (`apart`).
    `inside` are picoseconds of collectives inside each op, which are shown at its end.
    """
    layout, steps = timeline.layout, timeline.steps
    first = steps["step"] == 0
    begin, end = int(steps["begin"][first].min()), int(steps["end"][first].max())
    if end <= begin:
        return []
    inner = [axis for axis in layout.order if axis not in ("data", "pipeline", *(["context"] if apart else []))]
    ranks, replicas = np.unique(steps["rank"]), layout.sizes["data"]
    many = np.count_nonzero(layout.first(ranks, *inner) == ranks) > MOST_LINES
    bars = bars_of(timeline, every=replicas if many else 1, inside=inside)
    alike = [layout.group(rank, *inner) for rank in bars.lines.rank.tolist()]
    firsts = [i for i, group in enumerate(alike) if bars.lines.rank[i] == group[0]]
    shown, note = _shown(bars, firsts, len(alike[0]), replicas)
    name = max(len(_name(alike[i])) for i in shown)
    for label in (name + 2, name + len(f" ×{replicas}") + 2):
        whole = Window(begin / PICOSECONDS_PER_SECOND, end / PICOSECONDS_PER_SECOND, width - label)
        windows, shares = _windows(bars, shown, whole)
        blocks = [_cells(bars, shown, window, shares) for window in windows]
        times = _times(np.concatenate(blocks, axis=1), bars.lines.replica[shown].tolist())
        if max(times) == 1:
            break  # no line needs room for its number
    lines = _lines(blocks, [_name(alike[i]) for i in shown], times, label, "without" in note)
    lines.append([(" " * label + _scale(windows), "dim")])
    key: Line = [(" " * label, "")]
    seen = np.unique(np.concatenate([cells.ravel() for cells in blocks]))
    for kind in map(KINDS.__getitem__, seen.tolist()):
        key += [(ACTIVITIES[kind].letter, style_of(kind)), (f" {ACTIVITIES[kind].label}   ", "dim")]
    notes = [
        *([note] if note else []),
        *([SAME] if max(times) > 1 else []),
        *(["(letters show shares of time, since ops are shorter)"] if shares else []),
    ]
    return [*lines, key, *([(" " * label + line, "dim")] for line in notes)]


def _lines(blocks: Sequence[Column], names: Sequence[str], times: Sequence[int], label: int, gap: bool) -> list[Line]:
    """The lines of ranks, those of equal replicas once, with a mark in the middle if ranks are left out there."""
    lines: list[Line] = []
    for number, (name, many) in enumerate(zip(names, times, strict=True)):
        if gap and number == MOST_LINES // 2:
            lines.append([(" " * label + "⋮", "dim")])
        if many:
            head = f"{name} ×{many}" if many > 1 else name
            lines.append([(f"{head:<{label}}", ""), *_join([_parts(cells[number]) for cells in blocks])])
    return lines


def _times(cells: Column, replicas: Sequence[int]) -> list[int]:
    """How many replicas each line stands for; 0 if an earlier replica has the same lines."""
    of = np.array(replicas)
    same = grouped_by(dict.fromkeys(replicas), lambda replica: cells[of == replica].tobytes())
    times = {first: 1 + len(others) for first, *others in same.values()}
    return [times.get(replica, 0) for replica in replicas]


def _name(ranks: Sequence[int]) -> str:
    """The ranks of a line: "rank 3", "ranks 0-7", "ranks 0 … 28"."""
    first, last = ranks[0], ranks[-1]
    if len(ranks) == 1:
        return f"rank {first}"
    return f"ranks {first}-{last}" if last - first == len(ranks) - 1 else f"ranks {first} … {last}"


def _shown(bars: Bars, lines: list[int], ranks: int, replicas: int) -> tuple[list[int], str]:
    """The lines to show in the chart, of `ranks` ranks each, and a note about the others."""
    if len(lines) <= MOST_LINES and len(set(bars.lines.replica)) == replicas:
        return lines, ""
    mine = [i for i in lines if bars.lines.replica[i] == bars.lines.replica[0]]
    note = f"the first of {replicas:,} replicas" if replicas > 1 else ""
    if len(mine) > MOST_LINES:
        left_out = (len(mine) - MOST_LINES) * ranks
        note = ", ".join(filter(None, [note, f"without its middle {left_out} ranks"]))
        mine = mine[: MOST_LINES // 2] + mine[-MOST_LINES // 2 :]
    return mine, f"({note})"


def _windows(bars: Bars, shown: list[int], whole: Window) -> tuple[list[Window], bool]:
    """The stretches of the step to show, and whether letters show shares."""
    ops = bars.ops
    inside = (ops.start < whole.end) & np.isin(ops.line, shown)
    drawn = bars.kept(inside & (ops.kind != OPTIMIZER) & (ops.end > ops.start))
    if not drawn.typical:
        return [whole], False
    shortest, period = min(drawn.typical.values()), sum(drawn.typical.values())
    if shortest >= max(LETTERS) * (whole.end - whole.begin) / whole.columns:
        return [whole], False
    forwards, others = drawn.ops[drawn.ops.kind == FORWARD], drawn.ops[drawn.ops.kind != FORWARD]
    last_in = max((others.start[others.line == i].min(initial=whole.end) for i in shown), default=whole.end)
    first_out = min((forwards.end[forwards.line == i].max(initial=whole.begin) for i in shown), default=whole.begin)
    needed = last_in - whole.begin + PERIODS * period, whole.end - first_out + period
    for letters in LETTERS:
        cell, columns = shortest / letters, whole.columns - len(MARK)
        left, right = (ceil(part / cell - NEGLIGIBLE) for part in needed)
        if left + right <= columns:
            left += (columns - left - right) // 2
            right = columns - left
            if columns * cell >= whole.end - whole.begin:
                return [whole], False
            return [Window(whole.begin, whole.begin + left * cell, left),
                    Window(whole.end - right * cell, whole.end, right)], False  # fmt: skip
    return [whole], True


def _cells(bars: Bars, shown: list[int], window: Window, shares: bool) -> Column:
    """Content of each cell, shown line × column, as an index into `KINDS`."""
    width = (window.end - window.begin) / window.columns
    filled = _filled(bars, shown, window)
    reduced = filled[..., REDUCTION_LETTER].copy()
    filled[..., REDUCTION_LETTER] = 0.0
    filled[..., IDLE] = width - filled[..., : len(OP_KINDS)].sum(axis=2) - filled[..., EXCHANGE]
    if shares:
        filled[..., REDUCTION_LETTER] = np.minimum(reduced, filled[..., IDLE])
        filled[..., IDLE] -= filled[..., REDUCTION_LETTER]
        return _shares(filled / width)
    cells = np.asarray(filled.argmax(axis=2), dtype=np.int64)
    cells[(cells == IDLE) & (reduced >= filled[..., IDLE] / 2)] = REDUCTION_LETTER
    return cells


def _filled(bars: Bars, shown: list[int], window: Window) -> Seconds:
    """How long each kind lasts in each cell, shown line × column × kind, in seconds."""
    begin, end, columns = window
    width = (end - begin) / columns
    filled, row_of = np.zeros((len(shown), columns, len(KINDS))), {line: i for i, line in enumerate(shown)}
    waits, within, computed = bars.waits, bars.ops.inside > 0, bars.ops.end - bars.ops.inside
    line = np.concatenate([bars.ops.line, bars.ops.line[within], waits.line])
    letters = np.full_like(bars.ops.kind[within], EXCHANGE), np.full(len(waits), REDUCTION_LETTER)
    kind = np.concatenate([bars.ops.kind, *letters])
    start = np.concatenate([bars.ops.start, computed[within], waits.start])
    stop = np.concatenate([computed, bars.ops.end[within], waits.end])
    inside = (start < end) & (stop >= begin) & np.isin(line, shown)
    for row, what, low, high in zip(*(column[inside].tolist() for column in (line, kind, start, stop)), strict=True):
        last = min(int((high - begin) / width), columns - 1)
        for column in range(max(min(int((low - begin) / width), last), 0), last + 1):
            left = begin + column * width
            filled[row_of[row], column, what] += max(min(high, left + width) - max(low, left), 0.0)
    return filled


def _shares(filled: Seconds) -> Column:
    """Letters in proportion to time: in each cell, the kind in it that the line has under-represented most so far."""
    count, columns, kinds = filled.shape
    owed = np.zeros((count, kinds))
    cells = np.zeros((count, columns), dtype=np.int64)
    lines = np.arange(count)
    for column in range(columns):
        here = filled[:, column]
        owed += here
        cells[:, column] = np.where(here > NEGLIGIBLE, owed, -np.inf).argmax(axis=1)
        owed[lines, cells[:, column]] -= 1.0
    return cells


def _scale(windows: Sequence[Window]) -> str:
    """The times at the ends of the windows."""
    begin, end = windows[0].begin, windows[-1].end
    last = format_seconds(end - begin)
    if len(windows) == 1:
        return f"{'0':<{windows[0].columns - len(last)}}{last}"
    left, right = windows
    until, since = (format_seconds(time - begin) for time in (left.end, right.begin))
    return (
        f"{'0':<{left.columns - len(until)}}{until}"[: left.columns] + MARK
        + f"{since:<{right.columns - len(last)}}{last}"[-right.columns :]
    )  # fmt: skip


def _join(pieces: Sequence[Line]) -> Line:
    first, *others = pieces
    return [*first, *(part for piece in others for part in [(MARK, "dim"), *piece])]


def _parts(cells: Column) -> Line:
    """Merge adjacent cells of equal style into parts."""
    kinds = (KINDS[cell] for cell in cells.tolist())
    return [("".join(ACTIVITIES[kind].letter for kind in same), style) for style, same in groupby(kinds, key=style_of)]
