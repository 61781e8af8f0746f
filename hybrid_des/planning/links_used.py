"""The links on the routes of everything that a job sends."""

from collections.abc import Iterator
from itertools import chain

from hybrid_des.cluster.connections import Connection, around, between_all, links_of
from hybrid_des.cluster.rings import channels
from hybrid_des.planning.layer_traffic import flows_of_layers
from hybrid_des.planning.planner import Parts
from hybrid_des.scenario.definition import Scenario


def links_used(scenario: Scenario, parts: Parts) -> set[str]:
    """The links on the routes of everything that a job sends."""
    return links_of(parts.fabric, connections_used(scenario, parts))


def connections_used(scenario: Scenario, parts: Parts) -> Iterator[Connection]:
    """The pairs of ranks between which a job sends, or may."""
    return chain(_outside_layers(scenario, parts), *connections_of_layers(scenario, parts).values())


def _outside_layers(scenario: Scenario, parts: Parts) -> Iterator[Connection]:
    for line in scenario.parallel.layout.groups("pipeline"):
        yield from (Connection(line[sender], line[receiver]) for sender, receiver in parts.programs.pairs)
    reductions = ((scenario.gradients.algorithm, processes) for processes, _ in parts.reductions.processes)
    given = ((one.processes.kind, one.processes) for one in parts.given if not one.replayed)
    for algorithm, processes in chain(reductions, given):
        members = [rank for rank in processes.ranks if rank < parts.fabric.gpus]  # a switch is reached as its GPUs are
        if processes.rings:
            yield from chain.from_iterable(around(ring.ranks) for ring, _ in processes.rings)
        else:
            yield from between_all(algorithm, members)
    for ranks in (ranks for groups in parts.meeting or () for ranks in groups):
        for ring in channels(parts.fabric, ranks):
            yield from around(ring)


def connections_of_layers(scenario: Scenario, parts: Parts) -> dict[str, list[Connection]]:
    """The flows of collectives inside ops, by axis."""
    if scenario.model is None:
        return {}
    flows = flows_of_layers(scenario, parts.fabric, scenario.parallel.layout)
    return {axis: list(chain.from_iterable(groups)) for axis, groups in flows.items()}
