"""PyTorch's pipeline order format, both ways: one CSV row per rank, one cell per action.

    0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3
    1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3

A cell is the global stage, F, B, I or W, and the micro-batch (B: the whole backward, I: its input gradient, W: its
weight gradient); `(0F3;3B1)OVERLAP_F_B` is a fused pair; an empty cell means nothing. PyTorch
loads the files by `_PipelineScheduleRuntime._load_csv(…, format="compute_only")` of torch.distributed.pipelining.
"""

import csv
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple, cast

from hybrid_des.errors import PlanError
from hybrid_des.options import Number, Options
from hybrid_des.pipeline.grid import draw_grid
from hybrid_des.pipeline.plan import Kind, Op, Path, Place, Plan, carried

_OP = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_OTHER = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*")


class OrderFile(Options):
    """What a scenario may say about an order file."""

    fused_time: Number = Fraction(1)
    """Time of a fused pair divided by the time of its parts."""


class _Cell(NamedTuple):
    """An op as a file names it, with its rank and the index of its action."""

    rank: int
    action: int
    stage: int
    kind: Kind
    microbatch: int

    @property
    def name(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


_Programs = Sequence[Sequence[tuple[_Cell, ...]]]


def write_order(plan: Plan) -> str:
    """Write a plan as PyTorch's CSV, one line per rank, for the actions that it calls compute-only."""
    lines = []
    for rank, program in enumerate(plan.programs):
        names = ([plan.name(rank, op) for op in action] for action in program)
        lines.append(",".join(n[0] if len(n) == 1 else f"({';'.join(n)})OVERLAP_F_B" for n in names))
    return "".join(f"{line}\n" for line in lines)


def read_order(text: str, where: str, pipeline: int | None = None, fused_time: Fraction = Fraction(1)) -> Plan:
    """Read a plan from PyTorch's CSV; the rank of each stage follows from the rows in which it appears.

    A stage lives on one rank (a loop, a V, waves, anything), or, where the model has two copies, each stage on two
    ranks and each micro-batch on one of the two paths.

    Args:
        text: the file's content.
        where: the file's name, for errors.
        pipeline: required number of ranks; None: the number of rows.
        fused_time: time of a fused pair divided by the time of its parts.

    Raises:
        PlanError: the order cannot be read or executed; the message says why and, if the error has a position,
            marks it in an action × rank grid.
    """
    try:
        programs = _parse(text, pipeline)
        paths, path_of = _placement(programs)
        chunk_of = {(index, stage): place[1] for index, path in enumerate(paths) for stage, place in enumerate(path)}

        def op(cell: _Cell) -> Op:
            return Op(cell.kind, cell.microbatch, chunk_of[path_of[cell.microbatch], cell.stage])

        rows = [[tuple(map(op, action)) for action in program] for program in programs]
        plan = Plan.of(rows, paths, path_of, fused_time)
        plan.check()
    except PlanError as error:
        raise type(error)(f"{where}: {error}") from None
    return plan


def crossed_messages(plan: Plan) -> list[str]:
    """Warn about each directed pair of ranks whose messages are sent in one order and awaited in another.

    Messages matched by tag still arrive. A runtime that pairs sends with receives by their order, such as
    PyTorch with `defer_pp_recv`, computes wrong gradients on such a plan without an error.
    """
    sent: dict[tuple[int, int], list[str]] = {}
    awaited: dict[tuple[int, int], list[str]] = {}
    for rank, op in plan.ops():
        source, target = plan.source(rank, op), plan.target(rank, op)
        if target is not None:
            sent.setdefault((rank, target[0]), []).append(_message(plan, (rank, op.chunk), op))
        if source is not None:
            awaited.setdefault((source[0], rank), []).append(_message(plan, source, op))
    return [_describe(pair, sent[pair], awaited[pair]) for pair in sorted(sent) if sent[pair] != awaited.get(pair, [])]


def _message(plan: Plan, sender: Place, op: Op) -> str:
    return f"{carried(op)} of stage {plan.stage_of[sender]}, micro-batch {op.microbatch}"


def _describe(pair: tuple[int, int], sent: list[str], awaited: list[str]) -> str:
    at = next(i for i, (a, b) in enumerate(zip(sent, awaited, strict=True)) if a != b)
    return (
        f"rank {pair[0]} → rank {pair[1]}: message {at} is sent as {sent[at]}, but awaited as {awaited[at]}; a runtime "
        f"that pairs messages by their order (PyTorch with defer_pp_recv) would mix them up"
    )


def _parse(text: str, pipeline: int | None) -> list[list[tuple[_Cell, ...]]]:
    rows = list(csv.reader(text.splitlines()))
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    if not rows:
        raise PlanError("the order is empty; expected one row of operations for each pipeline rank")
    if pipeline is not None and len(rows) != pipeline:
        raise PlanError(f"the order has {len(rows)} rows, one for each rank, but the pipeline has {pipeline} ranks")
    programs = []
    for rank, row in enumerate(rows):
        cells = [(column, cell.strip()) for column, cell in enumerate(row) if cell.strip()]
        programs.append([_parse_action(cell, rank, i, column) for i, (column, cell) in enumerate(cells)])
        if not cells:
            raise PlanError(f"row {rank + 1}: rank {rank} has nothing to do")
    return programs


def _parse_action(text: str, rank: int, index: int, column: int) -> tuple[_Cell, ...]:
    pair = _PAIR.fullmatch(text)
    names = [name.strip() for name in pair.groups()] if pair else [text]
    matches = [_OP.fullmatch(name) for name in names]
    where = f"row {rank + 1} (rank {rank}), cell {column + 1}"
    if _OTHER.fullmatch(text):
        raise PlanError(f'{where}: "{text}" is not a computation; export the order as compute-only')
    cells = tuple(_Cell(rank, index, int(m[1]), cast(Kind, m[2]), int(m[3])) for m in matches if m)
    if len(cells) < len(names):
        raise PlanError(
            f'{where}: "{text}" is not an operation; expected stage, F, B, I or W, and micro-batch, such as 0F3, or a '
            f"pair such as (0F3;3B1)OVERLAP_F_B"
        )
    if pair and sorted(c.kind == "F" for c in cells) != [False, True]:
        raise PlanError(f'{where}: "{text}": a fused pair is one forward and one backward')
    return cells


def _placement(programs: _Programs) -> tuple[list[Path], list[int]]:
    """Deduce the paths, and the path of each micro-batch, from the rows in which stages appear."""
    ranks: dict[int, Counter[int]] = {}  # stage → number of its ops on each rank
    places: dict[tuple[int, int], set[int]] = {}  # (micro-batch, stage) → ranks
    for cell in _cells(programs):
        ranks.setdefault(cell.stage, Counter())[cell.rank] += 1
        places.setdefault((cell.microbatch, cell.stage), set()).add(cell.rank)
    stages = _count("stage", ranks)
    microbatches = _count("micro-batch", {microbatch for microbatch, _ in places})
    if all(len(ranks[stage]) == 1 for stage in range(stages)):
        way = tuple(rank for stage in range(stages) for rank in ranks[stage])
        return _paths([way]), [0] * microbatches
    if all(len(ranks[stage]) > 1 for stage in range(stages)):
        return _two_copies(programs, stages, microbatches, places)
    raise _astray(programs, {stage: counts.most_common(1)[0][0] for stage, counts in ranks.items()})


def _cells(programs: _Programs) -> list[_Cell]:
    return [cell for program in programs for action in program for cell in action]


def _count(noun: str, numbers: Collection[int]) -> int:
    """Number of stages or micro-batches; none below the largest may be missing."""
    missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
    if missing < len(numbers):
        raise PlanError(f"{noun} {missing} has no operations, but {noun} {max(numbers)} has")
    return missing


def _two_copies(
    programs: _Programs, stages: int, microbatches: int, places: Mapping[tuple[int, int], set[int]]
) -> tuple[list[Path], list[int]]:
    """The two paths through the model, and the index of each micro-batch's path."""

    def wrong(microbatch: int, how: str, among: Collection[int]) -> PlanError:
        copies = f"every stage appears on several ranks, as if the model had two copies, but micro-batch {microbatch}"
        astray = [one for one in _cells(programs) if one.microbatch == microbatch and one.stage in among]
        return _marked(programs, f"{copies} {how}", astray)

    for microbatch, stage in product(range(microbatches), range(stages)):
        ranks = sorted(places.get((microbatch, stage), ()))
        if len(ranks) != 1:
            how = f"runs stage {stage} on ranks {' and '.join(map(str, ranks))}" if ranks else f"skips stage {stage}"
            raise wrong(microbatch, how, [stage] if ranks else range(stages))
    ways = [tuple(rank for s in range(stages) for rank in places[i, s]) for i in range(microbatches)]
    both = sorted(way for way, _ in Counter(ways).most_common(2))
    apart = len(both) == 2 and all(a != b for a, b in zip(*both, strict=True))
    for microbatch, way in enumerate(ways):
        if way not in both or not apart:
            how = f"visits ranks {', '.join(map(str, way))}, which is neither of two disjoint paths"
            raise wrong(microbatch, how, range(stages))
    return _paths(both), [both.index(way) for way in ways]


def _paths(ways: Sequence[tuple[int, ...]]) -> list[Path]:
    """Number the chunks of each rank in the order in which the ways visit it, one way after the other."""
    held: Counter[int] = Counter()
    paths = []
    for way in ways:
        path = []
        for rank in way:
            path.append((rank, held[rank]))
            held[rank] += 1
        paths.append(tuple(path))
    visits = [Counter(way) for way in ways]
    if any(visit != visits[0] for visit in visits):
        raise PlanError("the model has two copies, but some rank holds more stages of one than of the other")
    return paths


def _astray(programs: _Programs, home: Mapping[int, int]) -> PlanError:
    """An error for ops that are not on the rank of most ops of their stage."""
    astray = [cell for cell in _cells(programs) if home[cell.stage] != cell.rank]
    first = astray[0]
    return _marked(
        programs,
        f"rank {first.rank}, action {first.action}: {first.name} does not belong there: stage {first.stage} is on rank "
        f"{home[first.stage]} (only where the model has two copies does each stage live on two ranks, and each "
        f"micro-batch pass one copy)",
        astray,
    )


def _marked(programs: _Programs, problem: str, astray: Collection[_Cell]) -> PlanError:
    """An error with the grid, in which the faulty places are marked."""
    names = [["+".join(cell.name for cell in action) for action in program] for program in programs]
    return PlanError(f"{problem}\n{draw_grid(names, frozenset((cell.rank, cell.action) for cell in astray))}")
