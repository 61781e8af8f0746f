"""Fit the figures of hybrid_des/collectives/timing.py to NVIDIA's tables of nccl-tests, by one rule.

    python scenarios/validation/nccl_fit.py rows.csv [--leave-out]     rows as nccl.py makes them

Per generation, from the rows of all its GPUs from 1 KiB up: of each table the median of its repeats, all tables alike,
each with the rules of its release (`cluster.nccl`). What the tuner takes is not fitted. The numbers have
the least mean of e^1.5, of which no row counts e = |predicted/measured - 1| beyond 0.3, plus, from 1 MiB up,
0.05 (e / 10 %)^8, which counts what is beyond 10 % and little else; of all-reduces e / 6 %. Of that no row counts
beyond 12 %, which these forms cannot meet. They are found by a pattern search from those in the file, so that a second
run changes nothing. What rings reach of NVLinks is kept: efficiency.network of the catalogue is the same number; with
LL128, hops that reduce and that only gather are taken to be alike; how releases differ is kept where all tables are of
one, and sends begin as much later as rings. Rings, and sends and receives, take closed forms on
idle links, which tests/collectives/test_timing.py compares with the simulator; passages through a switch are simulated.

Printed are the numbers, how many rows they rest on, the mean error and, with --leave-out, that of each curve (one
collective over one number of GPUs) which is left out of the fit; where there is one curve, of each size; and that of
each GPU of several.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import combinations, permutations
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des import load
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives import codecs, configured
from hybrid_des.collectives.benchmark import run_collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.nccl_sends import CHUNK, Call
from hybrid_des.collectives.timing import LL_CHUNK, MICROSECOND, SLOTS, Sends, Timing
from hybrid_des.collectives.tuning import PROTOCOLS, SHARE, Wiring
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.units import grouped_by

GPUS: Mapping[str, Sequence[str]] = {  # one of a generation → all of it
    "a100-80gb": ["a100-80gb"], "h100": ["h100", "h200"], "b200": ["b200", "b300", "gb200", "gb300"],
}  # fmt: skip
RELEASES = ("2.28.9", "2.29.2")
LEAST, LARGE = 2**10, 2**20  # bytes
ENOUGH = 1e-6  # that a move makes the loss smaller
WORST = 0.3  # that a row counts
MISS, CAP = 0.1, 0.12  # errors that no large row should have, and from which on it counts no more
OF_ALL_REDUCES = 0.06  # the same as `MISS`
WEIGHT, STEEP = 0.05, 8  # of what is beyond
STEPS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)  # by which the logarithm of a number is changed, in turn
DOES = {"nccl": "all-reduce", "nccl-reduce-scatter": "reduce-scatter", "nccl-all-gather": "all-gather"}
Vector = list[float]
Array = NDArray[np.float64]
Takes = Callable[[Vector], Array]  # numbers → microseconds


class Key(NamedTuple):
    """What is measured: a collective of so many bytes over so many GPUs, with the rules of a release."""

    nccl: str
    name: str
    ranks: int
    size: int


class Measured(NamedTuple):
    """The median of a GPU's table, in microseconds."""

    key: Key
    us: float
    gpu: str


@dataclass(frozen=True)
class Problem:
    """Rows that share numbers.

    Attributes:
        keys, us: what was measured, and the microseconds.
        takes: what the rows take with some numbers.
        kept: places of numbers that stay as they are.
    """

    keys: Sequence[Key]
    us: Array
    takes: Takes
    kept: Sequence[int] = ()

    def errors(self, numbers: Vector) -> Array:
        """|predicted/measured − 1|."""
        return np.abs(self.takes(numbers) / self.us - 1)


Posed = Callable[[Sequence[Measured]], Problem]  # by its rows


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

    def carrier(self, name: str, ranks: int, size: int) -> str:
        """What carries a collective: sends, a ring or a switch."""
        return "sends" if name not in DOES else self.wiring(ranks).choice(DOES[name], size).algorithm

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


class Rings:
    """Collectives around rings, on idle links."""

    def __init__(self, cases: Sequence[tuple[Wiring, str, int]]) -> None:
        wirings, names, sizes = zip(*cases, strict=True)
        does = [DOES[name] for name in names]
        chosen = [wiring.choice(do, size).protocol for wiring, do, size in zip(wirings, does, sizes, strict=True)]
        self.protocol = np.array([PROTOCOLS.index(protocol) for protocol in chosen])
        self.share = np.array([float(SHARE[protocol]) for protocol in chosen])
        self.ranks = np.array([wiring.ranks for wiring in wirings])
        self.shard = np.array(sizes) / self.ranks
        self.older = np.array([wiring.older for wiring in wirings])
        self.nominal = np.array([nominal(wiring) for wiring in wirings])
        self.reduces, self.gathers = (np.array([do in (half, "all-reduce") for do in does])
                                      for half in ("reduce-scatter", "all-gather"))  # fmt: skip

    def take(self, timing: Timing) -> Array:
        """Microseconds."""
        lines, simple = self.protocol == 0, self.protocol == 2
        kinds = np.where(self.reduces, 0, 1)
        ll = np.array([float(share) for share in timing.ll])[kinds]
        rate = self.nominal * np.where(lines, ll, float(timing.rate) * self.share)
        rate *= np.where(self.older, float(timing.before), 1)
        shard = self.shard
        moved = np.where(lines, np.maximum(shard, timing.lines * np.minimum(LL_CHUNK, shard)), shard) / rate
        steps = np.zeros(len(shard))
        for half, takes_part, hops in ((0, self.reduces, timing.hop), (1, self.gathers, timing.passing)):
            step = np.array(hops)[self.protocol] + moved
            step = np.where(simple, np.maximum(timing.step[half], step), step)
            steps += np.where(takes_part, (self.ranks - 1) * step, 0)
        last = np.array([timing.reduced, timing.gathered])[kinds, self.protocol] * shard
        last += np.where(simple, np.minimum(timing.drained * shard, SLOTS), 0)
        return np.array(timing.start)[self.protocol] + np.where(self.older, timing.later, 0) + steps + last / rate


class Exchanges:
    """All-to-alls, on idle links."""

    def __init__(self, cases: Sequence[tuple[Wiring, int]]) -> None:
        calls = [Call(size // wiring.ranks, wiring.ranks - 1, wiring.ranks) for wiring, size in cases]
        pairs = [(call, wiring) for call, (wiring, _) in zip(calls, cases, strict=True)]
        self.by_ll = np.array([call.by_ll(wiring) for call, wiring in pairs])
        self.peers = np.array([call.peers for call in calls])
        self.part = np.array([call.largest / call.channels(wiring) for call, wiring in pairs])
        self.together = np.array([call.together(wiring) for call, wiring in pairs])
        self.older = np.array([wiring.older for wiring, _ in cases])
        self.nominal = np.array([nominal(wiring) for wiring, _ in cases])

    def take(self, timing: Timing) -> Array:
        """Microseconds."""
        sends = timing.sends
        link = self.nominal * float(sends.peer) / self.together  # bytes per microsecond of a channel
        share = 1000 * np.where(self.older, float(sends.before), 1)
        channel = share * float(sends.channel)
        first, rest = np.minimum(self.part, CHUNK), np.maximum(self.part - CHUNK, 0)
        both = np.minimum(link, channel)
        chunks = first / np.minimum(link, 2 * channel) + (1 + sends.apart) * first / (2 * channel) + rest / both
        lines = self.part / np.minimum(link, share * float(sends.lines))
        begun = np.where(self.by_ll, sends.early, sends.start) + sends.each * self.peers
        begun += np.where(self.older, timing.later, 0)
        return begun + np.where(self.by_ll, lines, chunks)


def nominal(wiring: Wiring) -> float:
    """Bytes per microsecond of a GPU's NVLinks."""
    assert wiring.within is not None
    return float(wiring.within / wiring.generation.nvlink) / MICROSECOND


def rows_of(file: Path, gpus: Sequence[str]) -> Mapping[tuple[str, str, Key], float]:
    """GPU, table and what it measured → the median of the microseconds."""
    found: dict[tuple[str, str, Key], list[float]] = defaultdict(list)
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            key = Key(
                row["cluster.nccl"], row["collective.name"], int(row["parallel.data"]), int(row["collective.bytes"])
            )
            if row["cluster.gpu"] in gpus and key.size >= LEAST:
                table = row["cluster.gpu"], row["release"], key
                found[table].append(float(row["measured.collective_time_s"]) * 1e6)
    return {key: median(times) for key, times in found.items()}


def timing_of(numbers: Vector, known: Timing) -> Timing:
    """The figures of rings; with LL128 all hops are alike."""
    ll, start, hop, passing, last = numbers[:2], numbers[2:5], numbers[5:8], numbers[8:10], numbers[10:]
    step, reduced, gathered, (drained, lines, before, later) = last[:2], last[2:5], last[5:8], last[8:]
    return known._replace(
        ll=tuple(map(Fraction, ll)), start=tuple(start), hop=tuple(hop), passing=(passing[0], hop[1], passing[1]),
        step=tuple(step), reduced=tuple(reduced), gathered=tuple(gathered), drained=drained, lines=lines,
        before=Fraction(before), later=later,
    )  # fmt: skip


def numbers_of(timing: Timing) -> Vector:
    """Those of rings."""
    return [
        *map(float, timing.ll), *timing.start, *timing.hop, timing.passing[0], timing.passing[2], *timing.step,
        *timing.reduced, *timing.gathered, timing.drained, timing.lines, float(timing.before), timing.later,
    ]  # fmt: skip


def sends_of(numbers: Vector) -> Sends:
    """The figures of sends and receives."""
    peer, channel, before, start, each, apart, early, lines = numbers
    return Sends(*map(Fraction, (peer, channel, before)), start, each, apart, early, Fraction(lines))


def numbers_of_sends(sends: Sends) -> Vector:
    """The same, as numbers."""
    return [float(number) for number in sends]


def loss_of(problem: Problem) -> Callable[[Vector], float]:
    """What is made small: between the mean error and that of its squares, and what is beyond 10 % from 1 MiB up."""
    large = np.array([key.size >= LARGE for key in problem.keys])
    miss = np.array([OF_ALL_REDUCES if key.name == "nccl" else MISS for key in problem.keys])

    def loss(numbers: Vector) -> float:
        errors = problem.errors(numbers)
        missed = WEIGHT * (np.minimum(errors, CAP) / miss) ** STEEP
        return float(np.mean(np.minimum(errors, WORST) ** 1.5 + np.where(large, missed, 0)))

    return loss


def fitted(problem: Problem, numbers: Vector, steps: Sequence[float] = STEPS) -> Vector:
    """Numbers with a smaller loss, found by changing one after the other, and two at a time."""
    loss = loss_of(problem)
    best = loss(numbers)
    places = [place for place in range(len(numbers)) if place not in problem.kept]
    moves = [{place: sign} for place in places for sign in (1, -1)]
    moves += [{place: 1, other: -1} for place, other in permutations(places, 2)]
    moves += [{place: sign, other: sign} for place, other in combinations(places, 2) for sign in (1, -1)]
    for step in steps:
        better = True
        while better:
            better = False
            for move in moves:
                tried = [number * (1 + step) ** move.get(place, 0) for place, number in enumerate(numbers)]
                if (now := loss(tried)) < best - ENOUGH:
                    numbers, best, better = tried, now, True
    return numbers


class Form(NamedTuple):
    """What carries collectives.

    Attributes:
        names: of the numbers.
        takes: what some rows take with them.
        numbers: those in the file.
        releases: places of those that say how releases differ.
    """

    names: str
    takes: Callable[[Sequence[Key]], Takes]
    numbers: Vector
    releases: Sequence[int]


class Forms:
    """What the rows of one kind of GPUs take with some numbers, and those in the file, by what carries them."""

    def __init__(self, gpu: str) -> None:
        self.machines = {nccl: Machine(gpu, nccl) for nccl in RELEASES}
        self.known = self.machines["2.29.2"].wiring(8).generation.timing
        known = self.known
        self.carriers = {
            "ring": Form(
                "ll, start, hop, passing, step, reduced, gathered, drained, lines, before, later", self.rings,
                numbers_of(known), (20, 21),
            ),
            "sends": Form(
                "peer, channel, before, start, each, apart, early, lines", self.exchanges,
                numbers_of_sends(known.sends), (2,),
            ),
            "nvls": Form(
                "through, switch, loop", self.passages, [float(known.through), known.switch, known.loop], (),
            ),
        }  # fmt: skip

    def carrier(self, key: Key) -> str:
        """What carries a collective."""
        return self.machines[key.nccl].carrier(key.name, key.ranks, key.size)

    def rings(self, keys: Sequence[Key]) -> Takes:
        """Of collectives around rings."""
        rings = Rings([(self.machines[key.nccl].wiring(key.ranks), key.name, key.size) for key in keys])
        return lambda numbers: rings.take(timing_of(numbers, self.known))

    def exchanges(self, keys: Sequence[Key]) -> Takes:
        """Of all-to-alls."""
        exchanges = Exchanges([(self.machines[key.nccl].wiring(key.ranks), key.size) for key in keys])
        return lambda numbers: exchanges.take(self.known._replace(sends=sends_of(numbers)))

    def passages(self, keys: Sequence[Key]) -> Takes:
        """Of all-reduces through the switch, the same with all releases."""

        def takes(numbers: Vector) -> Array:
            through, switch, loop = numbers
            timing = self.known._replace(through=Fraction(through), switch=switch, loop=loop)
            simulated = cache(self.machines["2.29.2"].simulated)
            return np.array([simulated(key.ranks, key.size, timing) for key in keys])

        return takes


def problems_of(
    gpu: str, file: Path
) -> Iterator[tuple[str, Callable[[Sequence[Measured]], Problem], Sequence[Measured], Vector]]:
    """What carries collectives of a generation: names of the numbers, rows, and numbers in the file."""
    forms = Forms(gpu)
    rows = [Measured(key, us, of) for (of, _, key), us in rows_of(file, GPUS[gpu]).items()]
    carried = grouped_by(rows, lambda row: forms.carrier(row.key))
    for carrier, form in forms.carriers.items():
        if own := carried.get(carrier):
            yield form.names, partial(problem_of, form), own, form.numbers


def problem_of(form: Form, rows: Sequence[Measured]) -> Problem:
    """Some rows, and what they take."""
    keys = [row.key for row in rows]
    kept = form.releases if len({key.nccl for key in keys}) < len(RELEASES) else ()
    return Problem(keys, np.array([row.us for row in rows]), form.takes(keys), kept)


def left_out(problem: Posed, groups: Mapping[Hashable, Sequence[Measured]], numbers: Vector) -> Iterator[float]:
    """The mean error of each group with numbers that are fitted to the others, and of all."""
    errors = []
    for group, own in groups.items():
        others = [row for other, apart in groups.items() if other != group for row in apart]
        errors.append(problem(own).errors(fitted(problem(others), numbers, STEPS[2:4])))
        yield float(np.mean(errors[-1]))
    yield float(np.mean(np.concatenate(errors)))


def print_left_out(problem: Posed, rows: Sequence[Measured], numbers: Vector) -> None:
    """Of each curve, or of each size of a single one, and of each GPU of several."""
    several = len({row.key[1:3] for row in rows}) > 1
    curves = grouped_by(rows, lambda row: row.key[1:3] if several else row.key.size)
    *_, every = left_out(problem, curves, numbers)
    print(f"    {100 * every:.1f} % with each curve left out", flush=True)
    gpus = grouped_by(rows, lambda row: row.gpu)
    if len(gpus) > 1:
        own = [f"{gpu} {100 * error:.1f} %" for gpu, error in zip(gpus, left_out(problem, gpus, numbers), strict=False)]
        print(f"    {', '.join(own)} with each GPU left out", flush=True)


def main() -> None:
    """Print the numbers of each GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="as nccl.py makes them")
    parser.add_argument("--leave-out", action="store_true", help="also fit without each curve, which takes minutes")
    parser.add_argument("--gpu", choices=GPUS, help="only this one")
    given = parser.parse_args()
    for gpu in [given.gpu] if given.gpu else GPUS:
        for name, problem, rows, numbers in problems_of(gpu, given.rows):
            whole = problem(rows)
            found = fitted(whole, numbers)
            before, now = (100 * whole.errors(each).mean() for each in (numbers, found))
            print(f"{gpu}, {name}: {' '.join(f'{number:.3g}' for number in found)}")
            print(
                f"    {len(rows)} rows, mean error {now:.1f} % ({before:.1f} % with the numbers of the file)",
                flush=True,
            )
            if given.leave_out:
                print_left_out(problem, rows, found)


if __name__ == "__main__":
    main()
