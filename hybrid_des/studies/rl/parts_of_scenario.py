"""What the loop of a scenario is made of: its engines, its trainer, its weight syncs."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_des.errors import Refusal
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.rl import Rl, Rollout, engine_gpus
from hybrid_des.studies.rl.parts import EngineCosts, EngineKind, LoopParts, TrainerCosts
from hybrid_des.units import to_picoseconds


def parts_of(
    scenario: Scenario,
    *,
    engines: EngineCosts | Sequence[EngineCosts] | None = None,
    trainer: TrainerCosts | None = None,
    sync_ps: int | None = None,
) -> LoopParts:
    """What the loop of a scenario with `rl` is made of.

    Args:
        scenario: the scenario.
        engines: times of a replica, or of one of each kind, instead of the scenario's.
        trainer: its times, instead of the scenario's.
        sync_ps: of a weight sync, instead of the scenario's.

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
        if not lent.replicas:
            gpus = f"the trainer's {scenario.parallel.ranks} GPUs"
            raise Refusal(f"rl.lend: {gpus} are fewer than the {kinds[0].gpus} of a replica")
    trainer_costs = trainer if trainer is not None else _trainer(scenario)
    return LoopParts(kinds, lent, trainer_costs, _sync_ps(scenario) if sync_ps is None else sync_ps)


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
        raise Refusal(
            f"rl.rollout: an engine has room for {max(0, room)} tokens, fewer than the {tokens} of a sample; expected "
            "more GPUs per replica, a larger share of memory, or a smaller rl.response.max"
        )


def _costs(scenario: Scenario, rollout: Rollout) -> EngineCosts:
    raise NotImplementedError


def _trainer(scenario: Scenario) -> TrainerCosts:
    raise NotImplementedError


def _sync_ps(scenario: Scenario) -> int:
    rl = scenario.rl
    assert rl is not None
    if rl.sync.time is not None:
        return to_picoseconds(rl.sync.time)
    raise NotImplementedError
