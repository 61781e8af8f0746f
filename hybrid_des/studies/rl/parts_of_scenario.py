"""What the loop of a scenario is made of: its engines, its trainer, its weight syncs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hybrid_des.cost_model.decode import DecodeCosts, DecodeEfficiency, decode_costs, unlike_measured
from hybrid_des.errors import NoRoomError, Refusal
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.cluster import NodeKind
from hybrid_des.scenario.sections.rl import MeasuredTrainer, Rl, Rollout, engine_gpus
from hybrid_des.studies.rl.engine_all_reduce import all_reduce_across_nodes, tensor_nodes
from hybrid_des.studies.rl.measured_trainer import ConstantTimes, read_times
from hybrid_des.studies.rl.parts import EngineCosts, EngineKind, LoopParts, TrainerCosts
from hybrid_des.studies.rl.trainer import MOST_EVENTS, TrainerTimes
from hybrid_des.studies.rl.weight_sync import sync_ps
from hybrid_des.units import to_picoseconds


def parts_of(
    scenario: Scenario,
    *,
    engines: EngineCosts | Sequence[EngineCosts] | None = None,
    trainer: TrainerCosts | None = None,
    sync: int | None = None,
) -> LoopParts:
    """What the loop of a scenario with `rl` is made of.

    Args:
        scenario: the scenario.
        engines: times of a replica, or of one of each kind, instead of the scenario's.
        trainer: its times, instead of the scenario's.
        sync: picoseconds of a weight sync, instead of the scenario's.

    Raises:
        Refusal: an engine has no room for a sample, or a part does not support the sizes.
    """
    rl = scenario.rl
    assert rl is not None
    given = [engines] * len(rl.rollout) if not isinstance(engines, Sequence) else list(engines)
    kinds = tuple(_kind(scenario, rollout, costs) for rollout, costs in zip(rl.rollout, given, strict=True))
    for kind in kinds:
        _check_room(rl, kind)
    lent = None
    if rl.lend is not None:
        lent = kinds[0]._replace(replicas=scenario.parallel.ranks // kinds[0].gpus)
    trainer_costs = trainer if trainer is not None else _trainer(scenario)
    return LoopParts(kinds, lent, trainer_costs, _sync_ps(scenario) if sync is None else sync)


def _kind(scenario: Scenario, rollout: Rollout, costs: EngineCosts | None) -> EngineKind:
    gpus = len(engine_gpus(rollout, scenario.cluster, scenario.parallel.ranks))
    each = rollout.gpus_per_replica
    return EngineKind(_costs(scenario, rollout) if costs is None else costs, gpus // each, each, rollout.concurrency)


def _check_room(rl: Rl, kind: EngineKind) -> None:
    """Check that the longest sample fits into an engine alone."""
    most = rl.prompt.max or getattr(rl.prompt.options, "length", None)
    longest = rl.response.max or getattr(rl.response.options, "length", None)
    if most is None or longest is None:
        return
    tokens = most + longest
    if rl.turns is not None:
        turns = rl.turns.count.max or getattr(rl.turns.count.options, "length", None) or 1
        tokens += (turns - 1) * rl.turns.tokens
    if (room := kind.costs.room(1)) < tokens:
        raise NoRoomError(
            f"rl.rollout: an engine has room for {max(0, room)} tokens, fewer than the {tokens} of a sample; expected "
            "more GPUs per replica, a larger share of memory, or a smaller rl.response.max"
        )


def _nodes_of(scenario: Scenario, rollout: Rollout) -> list[NodeKind]:
    """The kind of each node of the engines."""
    if rollout.nodes is None:
        return scenario.cluster.nodes_for(scenario.parallel.ranks)
    every = [kind for kind in scenario.cluster.kinds for _ in range(kind.count)]
    return [every[node] for node in rollout.nodes]


def _costs(scenario: Scenario, rollout: Rollout) -> EngineCosts:
    """Those of the scenario's model on the GPUs of the engines."""
    assert scenario.model is not None  # a scenario with `rl` has one
    kinds = _nodes_of(scenario, rollout)
    if any((kind.gpu, kind.speed) != (kinds[0].gpu, kinds[0].speed) for kind in kinds):
        raise Refusal(
            "rl.rollout.nodes: engines of one kind are on GPUs of several; expected a list of kinds of engines"
        )
    reached = DecodeEfficiency.of(rollout.efficiency)
    speed = reached.reached * float(kinds[0].speed)
    reached = replace(reached, reached=speed, all_reduce=all_reduce_across_nodes(scenario, rollout))
    try:
        costs = decode_costs(
            scenario.model.network,
            kinds[0],
            tensor=rollout.tensor,
            data=rollout.data,
            expert=rollout.expert,
            precision=rollout.precision,
            memory_share=rollout.memory,
            efficiency=reached,
        )
    except Refusal as refusal:
        raise type(refusal)(f"rl.rollout: {refusal}") from None
    return costs if costs.table is not None else RememberedCosts(costs)


def engines_said(scenario: Scenario) -> Iterator[str]:
    """What decode steps of the engines rest on, a sentence for each kind that differs."""
    assert scenario.rl is not None
    assert scenario.model is not None
    for rollout in scenario.rl.rollout:
        if rollout.efficiency.table is not None:
            yield "decode steps are measured (rl.rollout.efficiency.table)"
            continue
        gpu = _nodes_of(scenario, rollout)[0].gpu.name
        nodes = tensor_nodes(scenario, rollout)
        if nodes == 1 and rollout.efficiency.across != 1:
            yield "rl.rollout.efficiency.across has no effect: tensor ranks are on one node"
        unlike = unlike_measured(scenario.model.network, gpu, rollout.precision, rollout.data, nodes)
        none = f"; none of them {' or '.join(unlike)}" if unlike else ""
        yield f"decode steps follow a formula found on engines in fp8 on H100 to B300, 12 % off on average{none}"


class RememberedCosts:
    """The formula of an engine, remembered by the number of sequences, of which a loop asks again and again.

    Args:
        costs: those of the formula, not of a table.
    """

    __slots__ = ("_costs", "_rooms", "_steps")

    def __init__(self, costs: DecodeCosts) -> None:
        self._costs = costs
        self._steps, self._rooms = dict[int, int](), dict[int, int]()

    def stretch_ps(self, sequences: int, held: int, steps: int) -> int:
        """As `DecodeCosts.stretch_ps`."""
        step = self._steps.get(sequences)
        if step is None:
            step = self._steps[sequences] = self._costs.step_ps(sequences)
        return steps * step + self._costs.token_ps * (steps * held + sequences * (steps * (steps - 1) // 2))

    def prefill_ps(self, tokens: int) -> int:
        """As `DecodeCosts.prefill_ps`."""
        return self._costs.prefill_ps(tokens)

    def room(self, sequences: int) -> int:
        """As `DecodeCosts.room`."""
        room = self._rooms.get(sequences)
        if room is None:
            room = self._rooms[sequences] = self._costs.room(sequences)
        return room


def _trainer(scenario: Scenario) -> TrainerCosts:
    """Measured or simulated steps."""
    rl = scenario.rl
    assert rl is not None
    if isinstance(rl.trainer, MeasuredTrainer):
        if rl.trainer.time is not None:
            return ConstantTimes(to_picoseconds(rl.trainer.time), rl.updates)
        assert rl.trainer.table is not None
        return read_times(rl.trainer.table)
    updates = scenario.steps * rl.sync.every * rl.updates
    events = 0 if rl.trainer == "sampled" else MOST_EVENTS
    return TrainerTimes(scenario, rl.passes.names, updates, most_events=events)


def _sync_ps(scenario: Scenario) -> int:
    """A measured sync, or its messages; with engines of several kinds, those of the slowest."""
    rl = scenario.rl
    assert rl is not None
    if rl.sync.time is not None:
        return to_picoseconds(rl.sync.time)
    assert rl.sync.mechanism is not None
    ranks = scenario.parallel.ranks
    return max(
        sync_ps(
            scenario,
            engine_gpus(rollout, scenario.cluster, ranks),
            rollout.gpus_per_replica,
            rl.sync.mechanism,
            rl.sync.load,
        )
        for rollout in rl.rollout
    )
