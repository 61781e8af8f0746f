"""The step of either stack where a scenario leaves open which one it is: fused as by Megatron, eager as by PyTorch.

A scenario of a transformer that says neither `model.written` nor `operators` is simulated as fused. Its eager step
follows without a second simulation: costs of both come from the same laws, and the pipeline takes as many times longer
as the ops of its busiest rank do; what is outside of the pipeline stays. On the shipped scenarios that is within 0.5 %
of a simulation, and within 3 % where steps draw the loads of experts or exchanges run beside computation.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hybrid_des.analysis.experience import experience, facts, facts_of_several
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.pipeline_ranks import costs_per_rank
from hybrid_des.cost_model.stages import costs_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.stacks import OF_TRANSFORMERS
from hybrid_des.simulation.outcome import Run

FUSED, EAGER = "fused", "eager"
STACK_OF = {FUSED: "", EAGER: "pytorch"}  # whose measured runs tell of it; "": of the model's default


def stack_is_open(scenario: Scenario) -> bool:
    """Whether a scenario of a transformer says neither its stack nor what is fused."""
    if scenario.model is None or scenario.model.kind not in OF_TRANSFORMERS or scenario.operators.model_fields_set:
        return False
    return "written" not in getattr(scenario.model.options, "model_fields_set", ())


def figures_of_stack(run: Run, step: float, pipeline: float) -> dict[str, Any]:
    """What the summary of a run with a model says of measured runs like it: of both stacks, if it leaves that open.

    Args:
        run: the run.
        step: seconds per step, as in the summary.
        pipeline: seconds of its pipeline, likewise.
    """
    scenario = run.scenario
    if not stack_is_open(scenario):
        known = experience(scenario)
        return {} if known is None else {"experience": facts(known, step)}
    steps = {FUSED: step, EAGER: step + min(step, pipeline) * (_eager_ratio(run) - 1)}
    known_of = {name: experience(scenario, stack) for name, stack in STACK_OF.items()}
    stacks = {name: (known, steps[name]) for name, known in known_of.items() if known is not None}
    return {"experience": facts_of_several(stacks), "step_time_by_stack_s": steps}


def _eager_ratio(run: Run) -> float:
    """How many times as long the ops of the busiest pipeline rank take eager as fused."""
    fused = run.scenario
    operators = fused.operators.model_copy(update={"blocks": EAGER, "loss": EAGER})
    eager = fused.model_copy(update={"operators": operators})
    least = _busiest(run, fused)
    return _busiest(run, eager) / least if least else 1.0


def _busiest(run: Run, scenario: Scenario) -> int:
    """Picoseconds of the ops of a step on the busiest pipeline rank, with the usual documents and loads of experts."""
    plan = run.plan
    costs = costs_of(costs_per_rank(CostBasis.of(scenario), run.parts.times), plan)
    micro_batches, times = Counter(plan.path_of), Counter[int]()
    for path, places in enumerate(plan.paths):
        for rank, chunk in places:
            stage = costs.stages[rank, chunk]
            times[rank] += micro_batches[path] * (stage.forward + stage.backward)
    return max(times.values(), default=0)
