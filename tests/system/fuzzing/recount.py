"""A timeline checked against its scenario by code that shares nothing with the package.

From the scenario as a mapping, the exported order, the timeline's CSV and the summary: every op once, in order, as
early as the rank and its inputs allow and as long as the scenario says; messages over the right links, one at a time
(`fifo`) or within the bandwidth (`fair`); and every figure of the summary computed again (`totals.py`).
"""

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

from system.fuzzing.facts import SECOND, SPLIT, Facts
from system.fuzzing.wiring import Wiring

Action = tuple[tuple[str, int, int], ...]  # kind, stage, micro-batch
TIMES = ("asked_s", "start_s", "end_s")
NUMBERS = ("step", "rank", "replica", "pipeline_rank", "microbatch", "chunk", "stage", "peer", "bytes", "hop")


@dataclass(frozen=True)
class Row:
    """One row of the timeline; times are picoseconds."""

    lane: str
    kind: str
    step: int
    rank: int
    replica: int | None
    pipeline_rank: int | None
    microbatch: int | None
    chunk: int | None
    stage: int | None
    asked: int
    start: int
    end: int
    peer: int | None
    bytes: int | None
    hop: int | None


def rows_of(text: str) -> list[Row]:
    rows = []
    for line in csv.DictReader(io.StringIO(text)):
        times = {key[:-2]: round(Fraction(line[key]) * SECOND) for key in TIMES}
        numbers = {key: int(float(line[key])) if line[key] else None for key in NUMBERS}
        rows.append(Row(line["lane"], line["kind"], **times, **numbers))
    return rows


def order_of(text: str) -> list[list[Action]]:
    """The actions of each pipeline rank."""
    pattern = re.compile(r"(\d+)([FBIW])(\d+)")
    return [
        [tuple((kind, int(stage), int(i)) for stage, kind, i in pattern.findall(cell)) for cell in line.split(",")]
        for line in text.splitlines()
    ]


class Recount:
    """The rows of a run, arranged for checks."""

    def __init__(self, values: Mapping[str, Any], order: str, timeline: str) -> None:
        self.facts = Facts(values)
        self.wiring = Wiring(values["cluster"])
        self.rings: dict[int, list[list[int]]] = {}  # by stage
        self.fifo = values["cluster"].get("sharing", "fifo") == "fifo"
        self.overlap = values.get("gradients", {}).get("overlap", False)
        self.programs = order_of(order)
        rows = rows_of(timeline)
        self.messages = [row for row in rows if row.lane != "compute"]
        self.optimizer = {(row.step, row.rank): row for row in rows if row.kind == "optimizer"}
        self.ops: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in sorted(
            (r for r in rows if r.lane == "compute" and r.kind != "optimizer"), key=lambda r: (r.start, r.end)
        ):
            self.ops[row.step, row.rank].append(row)
        for found in self.ops.values():  # ops that take no time share their start: as in the program
            found.sort(key=lambda row: (row.asked, row.start, row.end))

    @cached_property
    def actions(self) -> dict[tuple[int, int], list[tuple[Row, Action]]]:
        """(step, rank) → its rows with the actions of its program."""
        return {
            key: list(zip(rows, self.programs[self.facts.place_of[key[1]][1]], strict=False))
            for key, rows in self.ops.items()
        }

    @cached_property
    def done(self) -> dict[tuple[int, int, str, int, int], Row]:
        """(step, replica, kind, stage, micro-batch) → the row of that op."""
        found = {}
        for (step, rank), actions in self.actions.items():
            for row, action in actions:
                for kind, stage, microbatch in action:
                    found[step, self.facts.place_of[rank][0], kind, stage, microbatch] = row
        return found

    @cached_property
    def arrivals(self) -> dict[tuple[int, int, str, int, int], int | None]:
        """(step, replica, kind, stage of the sender, micro-batch) → when a pipeline message is there."""
        hops = defaultdict(list)
        for row in self.messages:
            if row.kind in ("activation", "gradient"):
                hops[row.step, row.replica, row.kind, row.stage, row.microbatch].append(row)
        return {key: self.arrival(sorted(rows, key=lambda row: row.hop)) for key, rows in hops.items()}

    def arrival(self, hops: Sequence[Row]) -> int | None:
        """When a message is there, by the rows of its links; None if they are not what the route says."""
        way = self.wiring.route(hops[0].rank, hops[0].peer)
        if [row.lane for row in hops] != [name for name, _ in way]:
            return None
        if not self.fifo:
            return hops[-1].end + sum(latency for _, latency in way)
        head, slowest = hops[0].asked, 0
        for row, (_, latency) in zip(hops, way, strict=True):
            if row.asked != head:
                return None
            end = max(row.end, head + slowest)
            slowest = max(slowest, row.end - row.start)
            head = (row.start if row.hop == 0 else end - slowest) + latency
            last = end + latency
        return last


def differences(values: Mapping[str, Any], order: str, timeline: str, summary: Mapping[str, Any]) -> list[str]:
    """What the timeline and the summary say that the scenario does not; empty if all is right."""
    from system.fuzzing.totals import totals
    from system.fuzzing.traffic import links, ring, shapes, turns

    one = Recount(values, order, timeline)
    for checks in ((stages,), (programs,), (shapes, pipeline_messages), (durations, moments, links, ring, turns)):
        found = [difference for check in checks for difference in check(one)]
        if found:  # later checks look up what these have found to be there
            return found
    return list(totals(one, summary))


def stages(one: Recount) -> Iterator[str]:
    """Every chunk holds the stage that the schedule's layout puts there, and every rank its optimizer step."""
    updated = {
        (step, rank) for step in range(one.facts.steps) for rank in one.facts.place_of if one.facts.optimizer(rank)
    }
    if updated != one.optimizer.keys():
        yield "not one optimizer step per rank and step"
    for rows in one.ops.values():
        for row in rows:
            if one.facts.stage_of.get((row.pipeline_rank, row.chunk)) != row.stage:
                yield f"stage {row.stage} on pipeline rank {row.pipeline_rank}, chunk {row.chunk}"
            if one.facts.place_of.get(row.rank) != (row.replica, row.pipeline_rank):
                yield f"rank {row.rank} as replica {row.replica}, pipeline rank {row.pipeline_rank}"


def programs(one: Recount) -> Iterator[str]:
    """The order has every op once, on a rank of its stage, and every rank follows it in every step."""
    facts = one.facts
    counts = Counter((kind, stage, i) for program in one.programs for action in program for kind, stage, i in action)
    for stage, i in product(range(facts.stages), range(facts.m)):
        split = counts["W", stage, i]
        wanted = {"F": 1, "B": 1 - split, "I": split}
        if split > 1 or any(counts[kind, stage, i] != count for kind, count in wanted.items()):
            yield f"stage {stage}, micro-batch {i}: not every op once"
        if facts.kind in SPLIT and not split:
            yield f"stage {stage}, micro-batch {i}: the backward is not split"
        if split and facts.kind not in SPLIT and not facts.kind.startswith("dualpipe"):
            yield f"stage {stage}, micro-batch {i}: the backward is split"
    if sum(counts.values()) != sum(
        3 if counts["W", s, i] else 2 for s, i in product(range(facts.stages), range(facts.m))
    ):
        yield "ops of other stages or micro-batches"
    for step, rank in product(range(facts.steps), range(facts.ranks)):
        program = one.programs[facts.place_of[rank][1]]
        rows = one.ops[step, rank]
        if [_described(action) for action in program] != [(row.kind, row.stage, row.microbatch) for row in rows]:
            yield f"rank {rank}, step {step}: not the order of its program"


def _described(action: Action) -> tuple[str, int, int]:
    """How the timeline shows an action: a pair by its forward, the input part of a backward as B."""
    if len(action) == 2:
        _, stage, i = next(op for op in action if op[0] == "F")
        return "FB", stage, i
    kind, stage, i = action[0]
    return ("B" if kind == "I" else kind), stage, i


def durations(one: Recount) -> Iterator[str]:
    """Every op takes as long as the scenario says; shares of a picosecond may be rounded either way."""
    for (step, rank), actions in one.actions.items():
        for row, action in actions:
            exact = one.facts.duration(rank, [(kind, i) for kind, _, i in action])
            if abs(row.end - row.start - exact) > (0 if _whole(one, rank) else 3 * _rounding(one, rank)):
                op = f"{row.kind}{row.microbatch}"
                yield f"step {step}, rank {rank}: {op} takes {row.end - row.start} ps, not {exact}"
    for (_, rank), row in one.optimizer.items():
        if row.asked != row.start:
            yield f"rank {rank}: the optimizer waits"
        if abs(row.end - row.start - one.facts.optimizer(rank)) > _rounding(one, rank, one.facts.optimizer(rank)):
            yield f"rank {rank}: the optimizer takes {row.end - row.start} ps, not {one.facts.optimizer(rank)}"


def _rounding(one: Recount, rank: int, exact: Fraction = Fraction(1, 2)) -> Fraction:
    """The largest sum of rounding errors, at the speed of a rank."""
    return Fraction(0) if exact.denominator == 1 else 1 / one.facts.speed(rank) + Fraction(1, 2)


def _whole(one: Recount, rank: int) -> bool:
    """Whether nothing has to be rounded in the durations of a rank."""
    place, facts = one.facts.place_of[rank][1], one.facts
    parts = [times[place] * SECOND / facts.visits_of_copy for kind, times in facts.times.items() if kind != "optimizer"]
    exact = [part / facts.speed(rank) * share for part in parts for share in {1, facts.fused_time}]
    return all(part.denominator == 1 for part in [*parts, *exact])


def moments(one: Recount) -> Iterator[str]:
    """Every op starts as soon as its rank is free and its inputs are there."""
    for (step, rank), actions in one.actions.items():
        replica = one.facts.place_of[rank][0]
        for at, (row, action) in enumerate(actions):
            about = f"step {step}, rank {rank}: {row.kind} of stage {row.stage}, micro-batch {row.microbatch}"
            if at and row.asked != (free := _free(one, step, replica, actions[at - 1])):
                yield f"{about} is asked for at {row.asked}, but the rank is free at {free}"
            ready = [row.asked]
            for op in action:
                ready += _inputs(one, step, replica, op, rank)
            if None in ready:
                yield f"{about}: an input is missing or came another way"
            elif row.start != max(ready):
                yield f"{about} starts at {row.start}, but may start at {max(ready)}"


def _free(one: Recount, step: int, replica: int, before: tuple[Row, Action]) -> int:
    """When a rank is free after an action: with blocking sends, when its messages have arrived."""
    row, action = before
    sent = []
    if one.facts.blocking:
        for kind, stage, i in action:
            name = {"F": "activation", "B": "gradient", "I": "gradient"}.get(kind)
            sent.append(one.arrivals.get((step, replica, name, stage, i)))
    return max([row.end, *(at for at in sent if at is not None)])


def _inputs(one: Recount, step: int, replica: int, op: tuple[str, int, int], rank: int) -> list[int | None]:
    """When each input of an op is there."""
    kind, stage, i = op
    if kind == "W":
        wanted = [("I", stage)]
    elif kind == "F":
        wanted = [("F", stage - 1)] if stage else []
    else:
        wanted = [("F", stage)] + ([("B", stage + 1)] if stage + 1 < one.facts.stages else [])
    ready: list[int | None] = []
    for name, at in wanted:
        row = one.done.get((step, replica, name, at, i)) or one.done.get((step, replica, "I", at, i))
        if row is None:
            ready.append(None)
        elif row.rank == rank:
            ready.append(row.end)
        else:
            carries = "activation" if name == "F" else "gradient"
            ready.append(one.arrivals.get((step, replica, carries, at, i)))
    return ready


def pipeline_messages(one: Recount) -> Iterator[str]:
    """A message for every input from another rank and no other, sent when its op ends, of the scenario's size."""
    wanted = {}
    for (step, replica, kind, stage, i), row in one.done.items():
        after = stage + 1 if kind == "F" else stage - 1
        if kind == "W" or not 0 <= after < one.facts.stages:
            continue
        path = next(path for path in one.facts.paths if path[stage] == (row.pipeline_rank, _chunk(one, row, stage)))
        receiver = path[after][0]
        if receiver != row.pipeline_rank:
            size = one.facts.message[row.pipeline_rank if kind == "F" else receiver]
            name = "activation" if kind == "F" else "gradient"
            wanted[step, replica, name, stage, i] = (row.end, row.rank, one.facts.rank(replica, receiver), size)
    found = {
        (row.step, row.replica, row.kind, row.stage, row.microbatch): (row.asked, row.rank, row.peer, row.bytes)
        for row in one.messages
        if row.kind in ("activation", "gradient") and row.hop == 0
    }
    for key in sorted({*wanted, *found}):
        if wanted.get(key) != found.get(key):
            yield f"{key[2]} of stage {key[3]}, micro-batch {key[4]}: {found.get(key)}, not {wanted.get(key)}"


def _chunk(one: Recount, row: Row, stage: int) -> int:
    """The chunk of a stage on the rank of a row, which a fused pair's row gives for its forward only."""
    return next(
        chunk for (rank, chunk), held in one.facts.stage_of.items() if (rank, held) == (row.pipeline_rank, stage)
    )
