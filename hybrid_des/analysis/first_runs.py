"""The runs with which an explanation begins: one that records causes, and beside it what-ifs that need no trace."""

from __future__ import annotations

from hybrid_des.analysis.counterfactual.attribution import straggler_tasks
from hybrid_des.analysis.counterfactual.ladder import Gain, Idealisation, gains_of, ladder_tasks
from hybrid_des.analysis.counterfactual.what_if import Part, Variant
from hybrid_des.analysis.critical_path.traced import FEWEST_FOLDED, traced_run
from hybrid_des.analysis.tasks import AtOnce, LocalTask, Task, grouped, in_turn
from hybrid_des.planning.given import GivenPrograms
from hybrid_des.shortcuts.attempts import Refusals
from hybrid_des.shortcuts.collectives_alone import taken_in_fold
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run

SHORT = 4096  # events of a run, and messages of its planning, whose what-ifs are not worth processes of their own


def traced_beside_ladder(
    planned: Variant, at_once: AtOnce
) -> tuple[Run, list[Task], list[list[Idealisation]], dict[Part, Gain]]:
    """The traced run, tasks that find what slow ranks cost, and what is simulated meanwhile: the ladder, and gains.

    Gains only where nothing folds, as tracing takes longest there; folded what-ifs need to know whether messages tied.
    """
    slowed, runs = list[Task](), list[Run]()

    def trace() -> None:
        runs.append(traced_run(planned.scenario, fold_from=FEWEST_FOLDED, parts=planned.parts))
        slowed.extend(straggler_tasks(runs[0]))

    long = _about_events(planned) + planned.parts.times.messages >= SHORT
    kinds = gains_of(planned) if long and planned.folded == 1 else {}
    meanwhile = [LocalTask(trace)], ladder_tasks(planned), [*kinds.values()]
    _, ends, gains = grouped(meanwhile, at_once if long else in_turn)
    _try_alone(runs[0])
    return runs[0], slowed, ends, dict(zip(kinds, gains, strict=True))


def _try_alone(base: Run) -> None:
    """Find out whether a folded run takes collectives alone, which a traced one does not, for the what-ifs."""
    quiet = base.scenario.model_copy(update={"record": "compute", "on_oom": "warn"})
    refusals = Refusals.of(base.parts)
    if base.fold is None or refusals.disturbed or not taken_in_fold(quiet, base.parts, tied=refusals.tied):
        return
    run(quiet, parts=base.parts, fold_from=FEWEST_FOLDED, detailed=False)


def _about_events(planned: Variant) -> int:
    """About how many events a run takes if ranks that compute the same are folded onto one pipeline."""
    parts, parallel = planned.parts, planned.scenario.parallel
    given = parts.programs.programs if isinstance(parts.programs, GivenPrograms) else ()
    ops = sum(1 for _ in parts.plan.ops()) + sum(len(program.ops) for program in given)
    ranks = parallel.pipeline if parts.costs.lanes is None else parallel.ranks
    return planned.scenario.steps * (ops + parts.messages * ranks // parallel.ranks)
