"""Fit the figures of hybrid_des/collectives/timing.py to NVIDIA's tables of nccl-tests, by one rule.

    python scenarios/validation/nccl_fit.py rows.csv [--leave-out]     rows as nccl.py makes them

Per generation, from the rows of A100, H100 and B200 alone: of each collective, number of GPUs and size from 1 KiB up,
the median of the tables by the newest rules that there are (`cluster.nccl`), and of those by older rules where another
protocol carried it. What the tuner takes is not fitted. The numbers have the least mean of e^1.5, of which no row
counts e = |predicted/measured - 1| beyond 0.3, plus, from 1 MiB up, 0.05 (e / 10 %)^8, which counts what is beyond 10 %
and little else, and of that no row beyond 12 %, which these forms cannot meet; by a pattern search from those in the
file, so that a second run changes nothing. What rings reach of NVLinks is kept: efficiency.network of the catalogue is
the same number. Rings, and sends and receives, take closed forms on idle links, which tests/collectives/test_timing.py
compares with the simulator; passages through a switch are simulated.

Printed are the numbers, how many rows they rest on, the mean error and, with --leave-out, that of each curve (one
collective over one number of GPUs) which is left out of the fit; where there is one curve, of each row.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import permutations
from pathlib import Path
from statistics import mean, median

from hybrid_des import load
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives import codecs, configured
from hybrid_des.collectives.benchmark import run_collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.timing import MICROSECOND, Ramp, Sends, Timing
from hybrid_des.collectives.tuning import PROTOCOLS, SHARE, Wiring
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.simulation.planning.wiring import fabric_of, times_of
from hybrid_des.units import grouped_by

GPUS = ("a100-80gb", "h100", "b200")
LEAST, LARGE = 2**10, 2**20  # bytes
ENOUGH = 1e-6  # that a move makes the loss smaller
WORST = 0.3  # that a row counts
MISS, CAP = 0.1, 0.12  # errors that no large row should have, and from which on it counts no more
WEIGHT, STEEP = 0.05, 8  # of what is beyond
STEPS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)  # by which the logarithm of a number is changed, in turn
DOES = {"nccl": "all-reduce", "nccl-reduce-scatter": "reduce-scatter", "nccl-all-gather": "all-gather"}
Vector = list[float]
Takes = Callable[[Vector], float]  # numbers → microseconds


@dataclass(frozen=True)
class Measured:
    """A row.

    Attributes:
        curve: the collective and the number of GPUs.
        takes: the microseconds that it takes with some numbers.
        us: those measured.
        large: whether it has at least 1 MiB.
    """

    curve: tuple[str, int]
    takes: Takes
    us: float
    large: bool


def rows_of(file: Path, gpu: str) -> Mapping[str, Mapping[tuple[str, int, int], float]]:
    """Release → collective, number of GPUs and bytes → the median of the measured microseconds; the newest first."""
    found: dict[str, dict[tuple[str, int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            size = int(row["collective.bytes"])
            if row["cluster.gpu"] == gpu and size >= LEAST:
                key = row["collective.name"], int(row["parallel.data"]), size
                found[row["cluster.nccl"]][key].append(float(row["measured.collective_time_s"]) * 1e6)
    return {nccl: {key: median(each) for key, each in found[nccl].items()} for nccl in sorted(found, reverse=True)}


class Machine:
    """Groups on a node of one kind of GPUs, with the rules of a release."""

    def __init__(self, gpu: str, nccl: str = "2.29.2") -> None:
        scenario = load({
            "cluster": {"gpu": gpu, "nodes": 1, "nccl": nccl}, "parallel": {"data": 8},
            "gradients": {"algorithm": "nccl"}, "schedule": {"kind": "gpipe", "microbatches": 1},
            "workload": {"forward": 0, "backward": 0},
        })  # fmt: skip
        self.fabric = fabric_of(scenario)
        self.times = times_of(scenario, self.fabric)

        self.wiring = cache(self._wiring)

    def _wiring(self, ranks: int) -> Wiring:
        """What the tuner knows about a group."""
        wiring: Wiring = self.times.process_group("nccl", range(ranks), None).tuned
        return wiring

    def protocol(self, name: str, ranks: int, size: int) -> str:
        """What carries a collective."""
        wiring = self.wiring(ranks)
        if name == "nccl-all-to-all":
            return "LL" if size / ranks <= wiring.small else "Simple"
        return str(wiring.choice(DOES[name], size))

    def simulated(self, ranks: int, size: int, timing: Timing) -> float:
        """The microseconds of an all-reduce with other figures."""
        group = self.times.process_group("nccl", range(ranks), None)
        known: Wiring = group.tuned
        assert known.within is not None
        generation = known.generation._replace(timing=timing)
        in_switch = known.within / generation.nvlink * timing.through
        group = replace(group, tuned=known._replace(generation=generation, in_switch=in_switch))
        network = Transport(Links(Environment(), self.fabric, "fifo"), Recorder())
        buffer = Buffer(size // 2, codecs.find("fp16").build())
        members = [(group, place) for place in range(len(group.ranks))]
        return run_collective(network, configured("nccl"), members, lambda *_: buffer).duration / MICROSECOND


def ring(wiring: Wiring, name: str, size: int, timing: Timing) -> float:
    """The microseconds of a collective around rings, on idle links."""
    does = DOES[name]
    choice = wiring.choice(does, size)
    protocol, shard = PROTOCOLS.index(choice.protocol), size / wiring.ranks
    assert wiring.within is not None
    nominal = float(wiring.within / wiring.generation.nvlink)
    rate = nominal * float(timing.rate * SHARE[choice.protocol]) / MICROSECOND  # bytes per microsecond
    steps = (wiring.ranks - 1) * (2 if does == "all-reduce" else 1)
    step = timing.hop[protocol] + timing.least(protocol, shard) / rate
    if choice.protocol == "Simple":
        step = max(timing.step, step)
    return timing.start[protocol] + steps * step + timing.last(protocol, shard, gathered=does == "all-gather") / rate


def exchange(wiring: Wiring, size: int, sends: Sends) -> float:
    """The microseconds of an all-to-all on idle links."""
    shard, others = size / wiring.ranks, wiring.ranks - 1
    assert wiring.within is not None
    nominal, sent = float(wiring.within / wiring.generation.nvlink) / MICROSECOND, round(shard * others)
    if shard <= wiring.small:
        ramps = sends.late._replace(most=sends.early).of(sent) / MICROSECOND + sent / sends.lines / 1000
    else:
        ramps = (sends.fill.of(sent) + sends.late.of(sent)) / MICROSECOND
    return sends.start + ramps + shard / sends.own / 1000 + sent / (nominal * float(sends.peer))


def timing_of(times: Vector, known: Timing) -> Timing:
    """The figures of rings."""
    start, hop, (step, *last) = times[:3], times[3:6], times[6:]
    reduced, gathered, (drained, lines) = last[:3], last[3:6], last[6:]
    return known._replace(start=tuple(start), hop=tuple(hop), step=step, reduced=tuple(reduced),
                          gathered=tuple(gathered), drained=drained, lines=lines)  # fmt: skip


def sends_of(numbers: Vector) -> Sends:
    """The figures of sends and receives."""
    peer, own, start, *ramps, early, lines = numbers
    return Sends(Fraction(peer), own, start, Ramp(*ramps[:2]), Ramp(*ramps[2:]), early, lines)


def error(rows: Sequence[Measured], numbers: Vector) -> float:
    """The mean of |predicted/measured − 1|."""
    return mean(abs(row.takes(numbers) / row.us - 1) for row in rows)


def loss(rows: Sequence[Measured], numbers: Vector) -> float:
    """What is made small: between the mean error and that of its squares, and what is beyond 10 % from 1 MiB up."""
    errors = [(abs(row.takes(numbers) / row.us - 1), row.large) for row in rows]
    missed = (WEIGHT * (min(off, CAP) / MISS) ** STEEP for off, large in errors if large)
    return mean(min(off, WORST) ** 1.5 for off, _ in errors) + sum(missed) / len(rows)


def fitted(rows: Sequence[Measured], numbers: Vector, steps: Sequence[float] = STEPS) -> Vector:
    """Numbers with a smaller loss, found by changing one after the other, and two at a time in opposite directions."""
    best, count = loss(rows, numbers), len(numbers)
    moves = [{place: sign} for place in range(count) for sign in (1, -1)]
    moves += [{place: 1, other: -1} for place, other in permutations(range(count), 2)]
    for step in steps:
        better = True
        while better:
            better = False
            for move in moves:
                tried = [number * (1 + step) ** move.get(place, 0) for place, number in enumerate(numbers)]
                if (now := loss(rows, tried)) < best - ENOUGH:
                    numbers, best, better = tried, now, True
    return numbers


def measured_of(gpu: str, file: Path) -> Iterator[tuple[Machine, str, int, int, float]]:
    """The rows that are fitted: a machine, the collective, the number of GPUs, bytes, and microseconds.

    All by the newest rules that there are, and of older ones those that another protocol carried.
    """
    newest: Machine | None = None
    for nccl, rows in rows_of(file, gpu).items():
        machine = Machine(gpu, nccl)
        for (name, ranks, size), us in rows.items():
            if newest is None or machine.protocol(name, ranks, size) != newest.protocol(name, ranks, size):
                yield machine, name, ranks, size, us
        newest = newest or machine


def problems_of(gpu: str, file: Path) -> Mapping[str, tuple[list[Measured], Vector]]:
    """Rings, exchanges and passages through the switch of a GPU: rows, and the numbers in the file."""
    known = Machine(gpu).wiring(8).generation.timing
    rings, exchanges, passages = list[Measured](), list[Measured](), list[Measured]()
    for machine, name, ranks, size, us in measured_of(gpu, file):
        wiring, curve = machine.wiring(ranks), (name, ranks)
        if name == "nccl-all-to-all":
            takes: Takes = lambda x, w=wiring, s=size: exchange(w, s, sends_of(x))  # noqa: E731
            rows = exchanges
        elif wiring.choice(DOES[name], size).algorithm == "ring":
            takes = lambda x, w=wiring, n=name, s=size: ring(w, n, s, timing_of(x, known))  # noqa: E731
            rows = rings
        else:
            takes = lambda x, m=machine, r=ranks, s=size: m.simulated(  # noqa: E731
                r, s, known._replace(through=Fraction(x[0]), switch=x[1], loop=x[2])
            )
            rows = passages
        rows.append(Measured(curve, takes, us, size >= LARGE))
    sends = known.sends
    problems = {
        "rings: start, hop, step, reduced, gathered, drained, lines": (
            rings,
            [*known.start, *known.hop, known.step, *known.reduced, *known.gathered, known.drained, known.lines],
        ),
        "sends: peer, own, start, fill, late, early, lines": (
            exchanges,
            [float(sends.peer), sends.own, sends.start, *sends.fill, *sends.late, sends.early, sends.lines],
        ),
        "through, switch, loop": (passages, [float(known.through), known.switch, known.loop]),
    }  # fmt: skip
    return {name: problem for name, problem in problems.items() if problem[0]}


def left_out(rows: Sequence[Measured], numbers: Vector) -> float:
    """The mean error of each curve with numbers that are fitted to the others; of a single curve, of each row."""
    several = len({row.curve for row in rows}) > 1
    groups = grouped_by(enumerate(rows), lambda row: row[1].curve if several else row[0])
    errors = []
    for own in groups.values():
        numbered = dict(own)
        again = fitted([row for number, row in enumerate(rows) if number not in numbered], numbers, STEPS[2:4])
        errors += [abs(row.takes(again) / row.us - 1) for row in numbered.values()]
    return mean(errors)


def main() -> None:
    """Print the numbers of each GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="as nccl.py makes them")
    parser.add_argument("--leave-out", action="store_true", help="also fit without each curve, which takes minutes")
    parser.add_argument("--gpu", choices=GPUS, help="only this one")
    given = parser.parse_args()
    for gpu in [given.gpu] if given.gpu else GPUS:
        for name, (rows, numbers) in problems_of(gpu, given.rows).items():
            found = fitted(rows, numbers)
            before, now = (100 * error(rows, one) for one in (numbers, found))
            print(f"{gpu}, {name}: {' '.join(f'{one:.3g}' for one in found)}")
            print(
                f"    {len(rows)} rows, mean error {now:.1f} % ({before:.1f} % with the numbers of the file)",
                flush=True,
            )
            if given.leave_out:
                print(f"    {100 * left_out(rows, found):.1f} % with each curve left out", flush=True)


if __name__ == "__main__":
    main()
