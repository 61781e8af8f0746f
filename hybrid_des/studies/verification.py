"""Verification: a schedule and a collective on real numbers, every op compared with serial training."""

from hybrid_des.cost_model.pipeline_ranks import rank_costs
from hybrid_des.errors import UsageError
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import plan_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.scenario.sections.numerics import Numerics
from hybrid_des.scenario.sections.training import divided
from hybrid_des.scenario.sizes import excesses
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.checked_training import CheckedTraining

STEPS = 2  # the second step starts from weights updated by the first


def verify(scenario: Source, plan: Plan | None = None, *, overrides: Overrides = ()) -> str:
    """Run a scenario's schedule and collective on real numbers; return a one-line summary of the comparison.

    Args:
        scenario: the scenario to verify, the path of its file, or a mapping.
        plan: a user-defined order, instead of the schedule's.
        overrides: changes to the scenario, such as ["schedule.kind=zb-v"] or {"schedule.kind": "zb-v"}.

    Raises:
        UsageError: something other than replicas and stages divides the model, the training is too large, or there is
            no schedule.
        PlanError: the order of ops is impossible.
        NumericsError: the result of an op or a reduction differs from serial training; the message names it.
        SimulationError: the simulation deadlocks.

    Example:
        >>> from hybrid_des import verify
        >>> verify("scenarios/prototype_4gpu.yaml").partition(",")[0]
        'all 128 ops of 4 GPUs in 2 steps'
    """
    scenario = load(scenario, overrides)
    if paths := divided(scenario.parallel, scenario.sharding):
        remedy = " ".join(f"--set {path}={whole}" for path, whole in paths.items())
        raise UsageError(
            f"{scenario.name}: verification trains a small model, which {', '.join(paths)} cannot divide: {remedy}"
        )
    if scenario.traced and plan is None:
        raise UsageError(
            f"{scenario.name}: verification trains in the order of a schedule, which an execution trace lacks"
        )
    fabric = fabric_of(scenario)
    plan = plan or plan_of(scenario, fabric)
    plan.check()
    numerics = scenario.numerics or Numerics(layers=max(8, plan.stages))
    numerics = numerics.model_copy(update={"dtype": "fp64"})
    gradients = scenario.gradients.model_copy(update={"codec": "fp64", "error_feedback": False})
    changes = {"numerics": numerics, "gradients": gradients, "steps": STEPS, "barrier": True, "on_oom": "warn"}
    trained = scenario.model_copy(update=changes)
    for excess in excesses(trained, ("steps",)):
        raise UsageError(f"{scenario.name}: in {STEPS} steps of real numbers in fp64, {excess.message}")
    training = CheckedTraining(numerics.settings, plan, scenario.parallel.data, scenario.seed)
    result = run(trained, plan, fabric, training)
    if scenario.workload is not None:  # stages of a model differ in what weight gradients keep
        ranks = rank_costs(scenario.workload, scenario.parallel.pipeline)
        training.check_memory(result.peak_activations, ranks.weight_share)
    ops = STEPS * scenario.parallel.data * sum(1 for _ in plan.ops())
    return (
        f"all {ops} ops of {scenario.parallel.ranks} GPUs in {STEPS} steps, and the reduced gradients, equal serial "
        f"training (worst relative error {training.worst:.2g})"
    )
