"""Lines of advice followed: what each promises is what its own run has, and none is in vain."""

from typing import Any

from hybrid_des import load
from hybrid_des.analysis.advice import Advice, AdviceLine
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source
from hybrid_des.units import PICOSECONDS_PER_SECOND
from support.own_runs import simulated

LEAST = 0.02
SHOWN = 3


def followed(source: Source, advice: Advice) -> None:
    """Simulate each line anew: its step to the picosecond, its memory to the byte; it fits and does the same work."""
    before = load(source)
    for line in [*advice.lines, *([advice.nearest] if advice.nearest else [])]:
        after = load(source, line.settings)
        assert after == line.scenario.model_copy(update={"description": after.description})
        done = simulated(after)
        assert done.duration == round(line.step_s * after.steps * PICOSECONDS_PER_SECOND), line.change
        assert (done.peak.held, done.peak.gpu.memory) == (line.held, line.memory), line.change
        assert done.peak.fits == (line is not advice.nearest), line.change
        assert work_of(after) == work_of(before), line.change
        assert line.words and line.settings


def work_of(scenario: Scenario) -> dict[str, Any]:
    """What no line changes: samples of a step, the model with its parameters, or the ops; GPUs and the machine."""
    schedule, parallel = scenario.schedule, scenario.parallel
    return {
        "samples": schedule.microbatches * schedule.microbatch_size * parallel.data,
        "model": scenario.model,
        "parameters": None if scenario.model is None else scenario.model.network.parameters,
        "workload": scenario.workload,
        "GPUs": parallel.ranks,
        "machine": scenario.cluster,
        "precision": scenario.precision,
        "steps": scenario.steps,
    }


def in_order(advice: Advice) -> None:
    """Each line gains, no two are of one kind, two moves are 2 % better than one, and catches stand below."""
    plain = [line for line in advice.lines if not caught(line)]
    assert [*plain, *(line for line in advice.lines if caught(line))] == [*advice.lines]
    assert len(advice.lines) <= SHOWN
    assert len({frozenset(line.kinds) for line in advice.lines}) == len(advice.lines)
    steps = [line.step_s for line in plain]
    assert steps == sorted(steps)
    for line in advice.lines:
        assert not advice.fits or line.gain >= LEAST
        for other in plain:
            assert len(other.kinds) >= len(line.kinds) or other.step_s > (1 + LEAST) * line.step_s or caught(line)


def caught(line: AdviceLine) -> bool:
    """Whether a line has a catch, not only a remark."""
    return any(not remark.startswith("checkpoints") for remark in line.remarks)
