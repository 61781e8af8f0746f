"""An exchange beside inner steps, on the links that both use.

All ranks of all groups take the steps that it overlaps, while it is under way on the same links; what is left of it
after them has the links to itself. Steps and exchanges repeat exactly if an exchange is due before the next begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.transport import Transport
from hybrid_des.collectives.benchmark import begun
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.cost_model.collective_times import Concurrent
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import DeadlockError
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program_table import Column
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.jobs import links_of, network_of, started


class Overlapped(NamedTuple):
    """Inner steps and an exchange that begin at the same time: their durations in picoseconds."""

    steps: Sequence[int]
    exchange: int


def overlapped(scenario: Scenario, whole: Parts, algorithm: str, asked: Concurrent, steps: int) -> Overlapped:
    """Simulate inner steps of all groups with one exchange.

    Args:
        scenario: the scenario, with all groups and without numerics.
        whole: its parts.
        algorithm: the all-reduce of the exchange.
        asked: its groups and sizes.
        steps: number of steps.

    Raises:
        DeadlockError: the steps or the exchange deadlock.
    """
    quiet = scenario.model_copy(update={"steps": steps, "record": "compute"})
    links = links_of(quiet, whole.fabric)
    job, ended = started(quiet, whole, network_of(quiet, whole, links)), list[int]()

    def over(_: Any) -> None:
        ended.append(links.env.now)

    network = Transport(links, Recorder(), whole.fabric)
    groups = [
        whole.times.process_group(algorithm, ranks, asked.options, stage=number)
        for number, ranks in enumerate(asked.groups)
    ]
    members = [(group, place) for group in groups for place in range(len(group.ranks))]
    processes = begun(network, collectives.configured(algorithm, asked.options), members, partial(_buffer, asked))
    for process in processes:
        process.callbacks.append(over)
    links.env.run()
    if any(one.is_alive for one in (*processes, *(each for gpu in job.gpus for each in gpu.processes))):
        raise DeadlockError("deadlock: inner steps and an exchange between groups of replicas wait for each other")
    return Overlapped(durations_of(job.recorder.steps.table(), steps), max(ended, default=0))


def durations_of(rows: Mapping[str, Column], steps: int) -> list[int]:
    """Picoseconds of each step, from the rows of steps of all ranks."""
    ends = [int(rows["end"][rows["step"] == step].max()) for step in range(steps)]
    return [end - before for before, end in zip([0, *ends], ends, strict=False)]


def _buffer(asked: Concurrent, number: int, _: int) -> Buffer:
    return Buffer(asked.elements[number], asked.codec)
