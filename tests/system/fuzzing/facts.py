"""What a scenario says, in whole picoseconds and bytes, read without the package: ranks, costs, stages.

The scenarios are those of `valid.py`, which gives every figure; defaults that come from a catalogue are not known here.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

SECOND = 10**12
TIMES = {"s": 1, "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}
SIZES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "Gb": Fraction(10**9, 8),
}
FOLDED = ("hanayo", "dualpipe-v", "v-half", "v-min", "zb-v")
TWO_WAY = ("chimera", "dualpipe")
SPLIT = ("zb-h1", "zb-h2", "zb-auto", "zb-v", "v-half", "v-min")
Place = tuple[int, int]  # pipeline rank, chunk


def number(value: Any) -> Fraction:
    """A quantity in seconds, bytes or bytes per second."""
    if not isinstance(value, str):
        return Fraction(str(value))
    figure, unit = re.fullmatch(r"([\d.e+-]+) ?(\S*)", value).groups()
    unit = unit.removesuffix("/s")
    return Fraction(figure) * (TIMES | SIZES | {"": 1, "%": Fraction(1, 100)})[unit]


def picoseconds(value: Any) -> int:
    return round(number(value) * SECOND)


class Facts:
    """A scenario's figures.

    Attributes:
        p, d, m, steps: pipeline ranks, replicas, micro-batches, training steps.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        parallel, schedule = values.get("parallel", {}), values["schedule"]
        self.p, self.d = parallel.get("pipeline", 1), parallel.get("data", 1)
        self.m, self.kind, self.steps = schedule["microbatches"], schedule["kind"], values.get("steps", 1)
        self.barrier = values.get("barrier", True)
        self.blocking = schedule.get("p2p") == "blocking"
        self.fused_time = number(schedule.get("fused_time", 1))
        self.visits = 2 if self.kind in FOLDED and self.kind != "hanayo" else schedule.get("chunks", 1)
        self.order = parallel.get("order", ["tensor", "data", "pipeline"])
        self.workload = values["workload"]

    @property
    def ranks(self) -> int:
        return self.p * self.d

    def rank(self, replica: int, place: int) -> int:
        """The global rank: the first axis of the order varies fastest."""
        first = next(axis for axis in self.order if axis != "tensor")
        return place * self.d + replica if first == "data" else replica * self.p + place

    @cached_property
    def place_of(self) -> dict[int, tuple[int, int]]:
        """Global rank → replica, pipeline rank."""
        return {self.rank(*at): at for at in product(range(self.d), range(self.p))}

    @property
    def stages(self) -> int:
        return self.p * (1 if self.kind in TWO_WAY else self.visits)

    @cached_property
    def paths(self) -> list[list[Place]]:
        """The ways that a micro-batch may take, stage by stage."""
        p = self.p
        if self.kind in TWO_WAY:
            return [[(s, 0) for s in range(p)], [(p - 1 - s, 1) for s in range(p)]]
        folded = self.kind in FOLDED
        return [[(p - 1 - s % p if folded and s // p % 2 else s % p, s // p) for s in range(self.stages)]]

    @cached_property
    def stage_of(self) -> dict[Place, int]:
        return {place: stage for path in self.paths for stage, place in enumerate(path)}

    def per_rank(self, key: str, default: Any = 0, shared: bool = True) -> list[Fraction]:
        """One number per pipeline rank; for `per: model` an equal share."""
        value = self.workload.get(key, default)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [number(one) for one in value]
        share = self.p if shared and self.workload.get("per") == "model" else 1
        return [number(value) / share] * self.p

    @cached_property
    def times(self) -> dict[str, list[Fraction]]:
        """Seconds of one micro-batch on each pipeline rank: F, whole B, W and the optimizer step."""
        forward, whole = self.per_rank("forward"), self.per_rank("backward")
        weight = self.workload.get("weight", "50 %")
        share = isinstance(weight, str) and weight.endswith("%")
        weights = [number(weight) * time for time in whole] if share else self.per_rank("weight")
        ends = self.workload.get("ends", {})
        for rank in (0, self.p - 1):
            forward[rank] += number(ends.get("forward", 0))
            whole[rank] += number(ends.get("backward", 0))
        again = number(self.workload.get("recompute", 0))
        whole = [back + again * time for back, time in zip(whole, forward, strict=True)]
        return {"F": forward, "B": whole, "W": weights, "optimizer": self.per_rank("optimizer")}

    def duration(self, rank: int, ops: Sequence[tuple[str, int]]) -> Fraction:
        """Exact picoseconds of an action of a global rank: kinds with their micro-batches, one or a fused pair."""
        place = self.place_of[rank][1]
        of = {kind: times[place] * SECOND / self.visits for kind, times in self.times.items()}
        of["I"] = of["B"] - of["W"]
        time = sum(of[kind] for kind, _ in ops)
        return (time if len(ops) == 1 else self.fused_time * time) / self.speed(rank)

    def optimizer(self, rank: int) -> Fraction:
        return self.times["optimizer"][self.place_of[rank][1]] * SECOND / self.speed(rank)

    def speed(self, rank: int) -> Fraction:
        nodes = self.values["cluster"]["nodes"]
        kind = {} if isinstance(nodes, int) else nodes[rank // self.values["cluster"]["gpus_per_node"]]
        return number(kind.get("speed", 1))

    @cached_property
    def message(self) -> list[int]:
        """Bytes of an activation that leaves each pipeline rank."""
        return [round(size) for size in self.per_rank("activation", shared=False)]

    @cached_property
    def parameters(self) -> list[Fraction]:
        """Per stage, exact; the package rounds shares to whole numbers that sum up."""
        held = self.per_rank("parameters")
        return [held[rank] / self.visits_of_copy for rank, _ in self.paths[0]]

    @property
    def visits_of_copy(self) -> int:
        return 1 if self.kind in TWO_WAY else self.visits

    @cached_property
    def memory(self) -> list[tuple[Fraction, Fraction]]:
        """Per pipeline rank: bytes for its parameters, and bytes kept per chunk and micro-batch."""
        given = self.workload.get("memory", {})
        each, kept = given.get("per_parameter", 16), given.get("activation", 0)
        share = self.p if self.workload.get("per") == "model" and not isinstance(kept, list) else 1
        per_rank = [number(one) for one in kept] if isinstance(kept, list) else [number(kept) / share] * self.p
        held = [
            sum(self.parameters[stage] for (at, _), stage in self.stage_of.items() if at == r) for r in range(self.p)
        ]
        return [(number(each) * held[r], per_rank[r] / self.visits_of_copy) for r in range(self.p)]

    def members(self, stage: int) -> list[int]:
        """The global ranks that hold a stage, in all replicas and copies."""
        return sorted(self.rank(replica, path[stage][0]) for replica in range(self.d) for path in self.paths)
