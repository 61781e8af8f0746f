"""Groups of replicas that seldom exchange: inner steps, and the exchange between the groups every H of them.

    step 1 ─ step 2 ─ … ─ step H ─ step H+1 ─ …            every group by itself, in the same time
                              └── exchange ──┤              over all replicas; due `overlap` steps later
                                             wait

One inner step of one group is simulated exactly; the groups share no link within a step and are alike. The exchange, an
all-reduce of the groups' changes over all replicas, is simulated by messages on the whole wiring, fragment by fragment.
Then H inner steps are run with it: an exchange begins when its step ends and the one before is over, and the step by
which it is due waits for it. While they overlap, the exchange and the messages of inner steps do not disturb each
other.

After Douillard et al., DiLoCo (arXiv 2311.08105), Streaming DiLoCo (arXiv 2501.18512); costs as in appendix A of
arXiv 2503.09799.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import Any

from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import NOTHING, Outcome
from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Environment, Process
from hybrid_des.folding.times import Concurrent
from hybrid_des.gradients.groups import replica_groups
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.scenario import Scenario, scenario_from, to_mapping
from hybrid_des.scenario.sections.outer import Outer, ranks_of_group
from hybrid_des.units import PICOSECONDS_PER_SECOND, split_evenly

PERIODS = 3  # simulated; the last one counts, which the first exchanges do not distort


@dataclass(frozen=True)
class Period:
    """What exchanges cost: H inner steps and their exchanges, over and over.

    Attributes:
        groups, ranks: number of groups, and of GPUs in all of them.
        every: inner steps from one exchange to the next.
        outer: the options of the exchange.
        steps: durations of inner steps, repeated in this order, in picoseconds.
        exchanges: for each fragment, how long it takes alone and what is sent.
    """

    groups: int
    ranks: int
    every: int
    outer: Outer
    steps: Sequence[int]
    exchanges: Sequence[Outcome]

    @cached_property
    def lasts(self) -> int:
        """Picoseconds of a period: H inner steps, and the time for which they wait for exchanges."""
        ends = self._ends()
        return ends[-1] - ends[-1 - self.every]

    @property
    def computing(self) -> int:
        """Picoseconds of its inner steps."""
        steps = list(islice(cycle(self.steps), PERIODS * self.every))
        return sum(steps[-self.every :])

    @property
    def step(self) -> float:
        """Picoseconds per inner step, with its part of the exchanges."""
        return self.lasts / self.every

    def _ends(self) -> list[int]:
        """When each inner step is over, and what it waits for has arrived."""
        env, ends = Environment(), list[int]()
        env.process(self._train(env, ends))
        env.run()
        return ends

    def _train(self, env: Environment, ends: list[int]) -> Routine:
        due = deque[tuple[int, Process]]()
        for number, time in enumerate(islice(cycle(self.steps), PERIODS * self.every), start=1):
            yield env.timeout(time)
            for fragment, exchange in enumerate(self.exchanges):
                if number % self.every == (fragment + 1) * self.every // len(self.exchanges) % self.every:
                    before = due[-1][1] if due else None
                    due.append((number + self.outer.overlap, env.process(_exchange(env, exchange, before))))
            while due and due[0][0] <= number:
                _, exchanging = due.popleft()
                if exchanging.is_alive:
                    yield exchanging
            ends.append(env.now)

    def facts(self) -> dict[str, Any]:
        """The figures by public key: seconds, bytes."""
        total = sum(one.duration for one in self.exchanges)
        return {
            "groups": self.groups,
            "ranks": self.ranks,
            "every": self.every,
            "algorithm": self.outer.algorithm,
            "codec": self.outer.codec,
            "fragments": len(self.exchanges),
            "overlap_steps": self.outer.overlap,
            "exchange_s": total / PICOSECONDS_PER_SECOND,
            "exposed_s": (self.lasts - self.computing) / PICOSECONDS_PER_SECOND,
            "period_s": self.lasts / PICOSECONDS_PER_SECOND,
            "mean_step_s": self.step / PICOSECONDS_PER_SECOND,
            "utilisation": self.computing / self.lasts if self.lasts else 1.0,
            "bytes_exchange": sum(one.bytes + one.scales for one in self.exchanges),
            "messages_exchange": sum(one.messages for one in self.exchanges),
        }


def _exchange(env: Environment, exchange: Outcome, before: Process | None) -> Routine:
    """Exchange a fragment after the one before."""
    if before is not None and before.is_alive:
        yield before
    yield env.timeout(exchange.duration)


def inner_of(scenario: Scenario, group: int = 0) -> Scenario:
    """One group of replicas as a scenario by itself, on its GPUs of its site."""
    values = to_mapping(scenario.model_copy(update={"numerics": None, "faults": None}))
    values["parallel"]["data"] = scenario.parallel.data // scenario.outer_groups
    values.pop("batch", None)
    for key in ("every", "outer"):
        values["gradients"].pop(key, None)
    for key in ("sites", "wan"):
        values["cluster"].pop(key, None)
    placement = scenario.cluster.placement
    gpus = [placement[rank] for rank in ranks_of_group(scenario, group)]
    inner = scenario_from(values, scenario.name)
    first = gpus == [*range(len(gpus))]  # further GPUs may host servers, and the wiring keeps its blocks
    return inner if first and group == 0 else inner.placed(gpus)


def alike(scenario: Scenario) -> bool:
    """Whether all groups take the same time: the nodes are of one kind, and none is slow or varies."""
    return len(scenario.cluster.kinds) == 1 and not scenario.slow and not scenario.jitter and not scenario.background


def period_of(scenario: Scenario, plan: Plan, parts: Sequence[tuple[int, int]], steps: Sequence[int]) -> Period:
    """The period of a scenario whose inner steps have been simulated.

    Args:
        scenario: the scenario, with all groups.
        plan: its schedule.
        parts: per stage, the parameters of a tensor rank outside experts and in experts.
        steps: the durations of inner steps, in picoseconds.

    Raises:
        Refusal: the all-reduce does not support the replicas, or is too large to simulate.
    """
    outer = scenario.gradients.outer or Outer()
    gradients = scenario.gradients.model_copy(update={"codec": outer.codec, "bucket": None, "bucket_rule": "stage"})
    groups = replica_groups(plan, scenario.parallel.layout, parts, gradients)
    times = times_of(scenario, fabric_of(scenario))
    codec, found = codecs.find(outer.codec).build(), list[Outcome]()
    for fragment in range(outer.fragments):
        sizes = [sum(bucket.elements for bucket in group.buckets) for group in groups]
        elements = [split_evenly(size, outer.fragments)[fragment] for size in sizes]
        asked = Concurrent([group.ranks for group in groups], elements, codec)
        found.append(times.of(outer.algorithm, asked) if any(elements) else NOTHING)
    return Period(scenario.outer_groups, scenario.parallel.ranks, gradients.every, outer, steps, found)
