"""The figures of a summary, computed from the rows of a timeline."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import isclose
from typing import Any

from system.fuzzing.facts import SECOND
from system.fuzzing.recount import Recount, Row

PIPELINE = ("activation", "gradient")
SHARE = Fraction(43, 100)  # of an activation that a split backward leaves to W: REFERENCE, workload.memory.weight_share
FREED = {"B": Fraction(1), "I": 1 - SHARE, "W": SHARE}


class Totals:
    """Moments of each step on each rank, as far as the rows tell: after some reductions only bounds are known."""

    def __init__(self, one: Recount) -> None:
        self.one, self.facts = one, one.facts
        self.steps, self.ranks = range(one.facts.steps), range(one.facts.ranks)

    def begin(self, step: int, rank: int) -> int:
        return self.one.ops[step, rank][0].asked

    def sent(self, step: int, rank: int) -> int:
        """When a rank has finished its ops and its blocking sends."""
        row, action = self.one.actions[step, rank][-1]
        times = [row.end]
        if self.facts.blocking:
            name = {"F": "activation", "B": "gradient", "I": "gradient"}
            keys = [(step, row.replica, name.get(kind), stage, i) for kind, stage, i in action]
            times += [at for key in keys if (at := self.one.arrivals.get(key)) is not None]
        return max(times)

    @cached_property
    def _reduced(self) -> dict[tuple[int, int], list[Row]]:
        """(step, rank) → the last rows, per message, of what the rank receives in reductions."""
        found = defaultdict(list)
        for row in self.one.messages:
            if row.kind not in PIPELINE and row.peer in self.facts.place_of:
                found[row.step, row.peer].append(row)
        return found

    def reduced(self, step: int, rank: int) -> int | None:
        """When the gradients of a rank are reduced; None if the rows do not tell."""
        rows = self._reduced[step, rank]
        if (step, rank) in self.one.optimizer:
            return self.one.optimizer[step, rank].start
        if not rows:
            return self.sent(step, rank) if not self.one.messages or not self._reduces(rank) else None
        if any(row.kind != "ring" for row in rows):
            return None
        arrivals = self._ring_arrivals(rows)
        return None if arrivals is None else max(self.sent(step, rank), *arrivals)

    def _reduces(self, rank: int) -> list[int]:
        """The stages whose gradients a rank reduces with others."""
        held = [stage for (at, _), stage in self.facts.stage_of.items() if at == self.facts.place_of[rank][1]]
        return [stage for stage in held if self.facts.parameters[stage] and len(self.facts.members(stage)) > 1]

    def late(self, step: int, rank: int) -> int | None:
        """How much of a rank's wait at the end of a step it owes to members of its groups that were reduced later."""
        members = {member for stage in self._reduces(rank) for member in self.facts.members(stage)}
        ends, done = [self._last(step, member) for member in members], self.done(step, rank)
        if None in ends:
            return None
        if self.facts.barrier or step == self.facts.steps - 1:
            over = max(self.done(step, other) for other in self.ranks)
            return min(max(max(ends, default=0) - self.reduced(step, rank), 0), over - done)
        return 0

    def _last(self, step: int, rank: int) -> int | None:
        """When the last reduction of a rank ends; None if the rows do not tell."""
        if not self.one.overlap or not self._reduces(rank):
            return self.reduced(step, rank)
        rows = self._reduced[step, rank]
        if not rows or any(row.kind != "ring" for row in rows):
            return None
        arrivals = self._ring_arrivals(rows)
        return None if arrivals is None else max(arrivals)

    def _ring_arrivals(self, rows: list[Row]) -> list[int] | None:
        """When a rank's ring messages are there: those of one stage and link come one after the other."""
        hops = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row.start, row.end)):
            hops[row.stage, row.rank, row.hop].append(row)
        arrivals = []
        for stage, sender, _ in {(s, r, 0): None for s, r, _ in hops}:
            way = [
                hops[stage, sender, hop] for hop in range(1 + max(h for s, r, h in hops if (s, r) == (stage, sender)))
            ]
            arrivals += [self.one.arrival(chain) for chain in zip(*way, strict=True)]
        return None if None in arrivals else arrivals

    def done(self, step: int, rank: int) -> int | None:
        """When a rank ends a step."""
        row = self.one.optimizer.get((step, rank))
        return row.end if row else self.reduced(step, rank)

    def over(self) -> tuple[int, int | None]:
        """When the run ends: the last row's end, and exactly if the rows tell."""
        rows = [row.end for row in (*self.one.messages, *self.one.optimizer.values())]
        rows += [row.end for found in self.one.ops.values() for row in found]
        ends = [self.done(self.facts.steps - 1, rank) for rank in self.ranks]
        return max(rows), None if None in ends else max(ends)

    def dependency(self) -> int:
        """Picoseconds, of all ranks, in which an op's last producer on another rank was not done."""
        total = 0
        for (step, rank), actions in self.one.actions.items():
            replica = self.facts.place_of[rank][0]
            for row, action in actions:
                ends = [end for op in action for end in self._producers(step, replica, op, rank)]
                total += max(min(max(ends, default=0), row.start) - row.asked, 0)
        return total

    def _producers(self, step: int, replica: int, op: tuple[str, int, int], rank: int) -> list[int]:
        kind, stage, i = op
        at = {"F": stage - 1, "B": stage + 1, "I": stage + 1}.get(kind, -1)
        names = ("F",) if kind == "F" else ("B", "I")
        rows = [self.one.done.get((step, replica, name, at, i)) for name in names]
        return [row.end for row in rows if row is not None and row.rank != rank]


def totals(one: Recount, summary: Mapping[str, Any]) -> Iterator[str]:
    """Figures of the summary that the rows contradict."""
    count = Totals(one)
    yield from steps(count)
    for name, wanted in figures(count).items():
        found: Any = summary
        for key in name.split("."):
            found = found[key]
        if not isclose(found, float(wanted), rel_tol=1e-9, abs_tol=1e-12):
            yield f"{name}: {found}, not {float(wanted)}"
    last, exact = count.over()
    found = summary["step_time_s"] * one.facts.steps * SECOND
    if (exact is not None and not isclose(found, exact, rel_tol=1e-9, abs_tol=1)) or found < last * (1 - 1e-9) - 1:
        yield f"step_time_s: {found} ps in all; the last row ends at {last}, the last rank at {exact}"
    idle = sum(summary["idle_s"].values())
    if not isclose(idle + summary["busy_s"], summary["step_time_s"], rel_tol=1e-9, abs_tol=1e-15):
        yield f"busy and idle time: {idle + summary['busy_s']}, not {summary['step_time_s']}"
    yield from memory(count, summary)
    yield from latest_inputs(count)


def steps(count: Totals) -> Iterator[str]:
    """Steps begin together after the slowest rank, or each rank by itself."""
    if any(count.begin(0, rank) for rank in count.ranks):
        yield "the first step begins late"
    for step in count.steps[1:]:
        ends = [count.done(step - 1, rank) for rank in count.ranks]
        for rank, end in enumerate(ends):
            wanted = (None if None in ends else max(ends)) if count.facts.barrier else end
            if wanted is not None and count.begin(step, rank) != wanted:
                yield f"step {step}, rank {rank}: begins at {count.begin(step, rank)}, not {wanted}"
    if count.facts.barrier and any(len({count.begin(s, rank) for rank in count.ranks}) > 1 for s in count.steps):
        yield "ranks begin a step at different times"


def figures(count: Totals) -> dict[str, Fraction | float]:
    """Name in the summary → value."""
    one, facts = count.one, count.facts
    n = facts.steps * facts.ranks
    ops = {key: rows for key, rows in one.ops.items() if rows}
    compute = sum(row.end - row.start for rows in ops.values() for row in rows)
    optimizer = sum(row.end - row.start for row in one.optimizer.values())
    spans, lengths = [], []
    for step in count.steps:
        spans.append(max(ops[step, rank][-1].end - ops[step, rank][0].start for rank in count.ranks))
        lengths.append(0)
        for replica in range(facts.d):
            rows = [row for place in range(facts.p) for row in ops[step, facts.rank(replica, place)]]
            lengths[-1] = max(lengths[-1], max(row.end for row in rows) - min(row.start for row in rows))
    pipeline = Fraction(sum(lengths), facts.steps)
    sent = [row for row in one.messages if row.hop == 0]
    gaps = sum(row.start - row.asked for rows in ops.values() for row in rows)
    dependency = count.dependency()
    found: dict[str, Fraction | float] = {
        "ranks": facts.ranks,
        "pipeline_time_s": pipeline / SECOND,
        "span_s": Fraction(sum(spans), facts.steps * SECOND),
        "bubble_ratio": 1 - Fraction(compute, facts.steps) / (facts.ranks * pipeline) if pipeline else 0,
        "busy_s": Fraction(compute + optimizer, n * SECOND),
        "idle_s.dependency": Fraction(dependency, n * SECOND),
        "messages": Fraction(len(sent), facts.steps),
        "bytes_pipeline": Fraction(sum(row.bytes for row in sent if row.kind in PIPELINE), facts.steps),
    }
    if not facts.blocking:
        found["idle_s.pipeline_message"] = Fraction(gaps - dependency, n * SECOND)
    reduced = {(step, rank): count.reduced(step, rank) for step, rank in product(count.steps, count.ranks)}
    if None not in reduced.values():
        waited = sum(at - count.sent(*key) for key, at in reduced.items())
        late = [count.late(*key) for key in reduced]
        if None not in late:
            found["idle_s.gradient_reduction"] = Fraction(waited + sum(late), n * SECOND)
    _, exact = count.over()
    if exact:
        found["efficiency"] = Fraction(compute + optimizer, facts.ranks * exact)
        found["speedup"] = Fraction(compute + optimizer, exact)
        found["microbatches_per_s"] = Fraction(facts.m * facts.d * facts.steps * SECOND, exact)
    return found


def memory(count: Totals, summary: Mapping[str, Any]) -> Iterator[str]:
    """Peaks of activations and bytes, and the bytes of gradients on the wire."""
    one, facts = count.one, count.facts
    for place in range(facts.p):
        resident, kept = facts.memory[place]
        most = Fraction(0)
        for action_rows in (rows for (_, rank), rows in one.actions.items() if facts.place_of[rank][1] == place):
            held = Fraction(0)
            for _, action in action_rows:
                held += sum(kind == "F" for kind, _, _ in action)
                most = max(most, held)
                held -= sum(FREED.get(kind, 0) for kind, _, _ in action)
        told, wanted = summary["peak_activations"][place], most / facts.visits_of_copy
        if not isclose(told, wanted):
            yield f"pipeline rank {place}: {told} activations, not {wanted}"
        told, size = summary["peak_memory_bytes"][place], resident + kept * most
        if abs(told - size) > most + 16 * facts.visits:  # shares of a parameter or a byte
            yield f"pipeline rank {place}: {told} bytes, not {float(size)}"
    reduced = [row for row in one.messages if row.hop == 0 and row.kind not in PIPELINE]
    switched = [row for row in reduced if row.kind == "in-switch" and row.rank not in facts.place_of]
    bytes_sent = sum(row.bytes for row in reduced) - sum(row.bytes for row in switched)
    told = (summary["bytes_gradients"] + summary["bytes_scales"]) * facts.steps
    if not isclose(told, bytes_sent, rel_tol=1e-9):
        yield f"bytes_gradients and bytes_scales: {told} in all, not {bytes_sent}"


def latest_inputs(count: Totals) -> Iterator[str]:
    """No optimizer step starts before what its rank receives in reductions is there, nor before its ops."""
    for (step, rank), row in count.one.optimizer.items():
        latest = max([count.sent(step, rank), *(r.end for r in count._reduced[step, rank])])
        if row.start < latest or (not count._reduces(rank) and row.start != latest):
            yield f"step {step}, rank {rank}: the optimizer starts at {row.start}, its inputs are there at {latest}"
        rows = count._reduced[step, rank]
        if rows and all(one.kind == "ring" for one in rows):
            arrivals = count._ring_arrivals(rows)
            if arrivals is None or row.start != max(count.sent(step, rank), *arrivals):
                yield f"step {step}, rank {rank}: the optimizer starts at {row.start}, not when its ring ends"
