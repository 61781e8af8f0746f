"""What GPUs do in a step: the one definition that the summary, the report, `explain`, pages, `live` and imports share.

    computing      own time of ops and of the optimizer, without the collectives and the host inside them
    recomputing    the part of it that repeats forwards: its share of the FLOP that the hardware does, 1 − MFU / HFU
    tensor, context, expert            collectives inside ops that no computation hides, and meetings before ops
    pipeline, gradients, parameters    waits for messages between stages, for reductions, for gathers
    bubble         waits for other ranks of the pipeline: warm-up, dependency, drain, and until all of them are done
    slower         waits for slower replicas: until all have come to a reduction, and for other pipelines at the end
    host           launches and copies that outlast the computation of an op, pauses between ops, gaps of recordings

All are those of the mean GPU, in whole picoseconds of all simulated ranks and steps, and sum to these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hybrid_des.analysis.idle import DEPENDENCY, END_OF_STEP, HOST, account, waits_at_end, waits_for_slower
from hybrid_des.analysis.inside_ops import AXES, OF_UPDATE, inside_ops
from hybrid_des.analysis.model_figures import flop_of
from hybrid_des.analysis.step_times import StepTimes, step_times, total
from hybrid_des.cluster.purposes import ACTIVATION, OF_LAYERS, PARAMETERS, REDUCTION
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.timeline import Timeline

COMPUTING, RECOMPUTING, BUBBLE, SLOWER = "computing", "recomputing", "bubble", "slower"
BETWEEN_OPS = {"pipeline": ACTIVATION.cause, "gradients": REDUCTION.cause, "parameters": PARAMETERS.cause}
COMMUNICATION = (*AXES, *BETWEEN_OPS)
SHARES = (COMPUTING, RECOMPUTING, *COMMUNICATION, BUBBLE, SLOWER, HOST)


@dataclass(frozen=True)
class StepBreakdown:
    """The time of all simulated ranks in all steps, in picoseconds.

    Attributes:
        whole: all of it.
        parts: by `SHARES`, exact; they sum to it.
        inside: of them, what ops do besides computing: the axes of collectives inside ops, and the host.
        late: of `slower`, the waits for members of a reduction that have not come yet.
    """

    whole: int
    parts: Mapping[str, Fraction]
    inside: Mapping[str, int]
    late: int

    @property
    def shares(self) -> dict[str, Fraction]:
        """The parts as shares of the step, which sum to 1; all 0 if it takes no time."""
        return {name: part / self.whole if self.whole else Fraction(0) for name, part in self.parts.items()}

    @property
    def efficiency(self) -> Fraction:
        """The share of the time in which GPUs compute, what they compute again included."""
        return self.shares[COMPUTING] + self.shares[RECOMPUTING]

    @property
    def exposed(self) -> Fraction:
        """The share of the time in which GPUs only communicate."""
        return sum((self.shares[name] for name in COMMUNICATION), Fraction(0))


def step_breakdown(run: Run, times: StepTimes | None = None) -> StepBreakdown:
    """Break the time of a run down; `times` are its own, if they are known."""
    timeline = run.timeline
    times = times or step_times(timeline)
    replicas, _, pipeline = times.begin.shape
    whole, spent = replicas * pipeline * times.total, account(timeline, times)
    inside = {name: total(column) for name, column in inside_ops(run).items()}
    computing = Fraction(spent.pop("busy") - sum(inside.values()))
    again = computing * _repeated(run)
    late, at_end = min(waits_for_slower(timeline), spent[REDUCTION.cause]), _until_pipelines_end(timeline, times)
    between = {name: spent.get(cause, 0) for name, cause in BETWEEN_OPS.items()}
    parts: dict[str, int | Fraction] = {
        COMPUTING: computing - again,
        RECOMPUTING: again,
        **{axis: inside[axis] + spent.get(OF_LAYERS[axis].cause, 0) for axis in AXES},
        **between | {"gradients": between["gradients"] - late, OF_UPDATE: between[OF_UPDATE] + inside[OF_UPDATE]},
        BUBBLE: spent[DEPENDENCY] + at_end,
        SLOWER: spent[END_OF_STEP] - at_end + late,
        HOST: inside[HOST] + spent.get(HOST, 0),
    }
    return StepBreakdown(whole, {name: Fraction(part) for name, part in parts.items()}, inside, late)


def _repeated(run: Run) -> Fraction:
    """The share of computation that repeats forwards; 0 without a model, whose FLOP are not known."""
    if run.scenario.model is None:
        return Fraction(0)
    useful, hardware = flop_of(run)
    return 1 - Fraction(useful, hardware) if hardware else Fraction(0)


def _until_pipelines_end(timeline: Timeline, times: StepTimes) -> int:
    """Picoseconds for which ranks that have finished wait for the last rank of their pipeline."""
    steps = timeline.steps
    _, since, over = waits_at_end(timeline)
    done = times.done.max(axis=-1)[timeline.pipeline[steps["rank"]], steps["step"]]
    return total(np.clip(done, since, over) - since)
