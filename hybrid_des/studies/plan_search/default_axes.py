"""The axes of a search that is given none: what the framework of the file has, whatever the file states.

    layout          every one of all GPUs; context ranks only if samples are long or the file has them
    micro-batches   of 1, 2 and 4 samples
    schedule        those of the file's framework; every number of chunks that divides the layers
    recompute       every level that keeps less

The values of the file are always among them. All else stays as the file has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hybrid_des.pipeline import schedules
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.neighbours.framework import framework_of
from hybrid_des.studies.neighbours.layouts import PLAIN
from hybrid_des.workload.models.kinds.transformer import Transformer

NAMES = ("parallel", "schedule.microbatch_size", "schedule.kind", "recompute")
FROZEN = ("sharding", "gradients.bucket")  # that vary by name only
SIZES = (1, 2, 4)  # samples of a micro-batch
CHUNKS = (2, 4, 8)  # where layers are not known
LONG = 16 * 1024  # tokens of a sample, beyond which it may be divided

Values = Mapping[str, Any]


def sizes_of(written: Scenario) -> Sequence[int]:
    """Samples of a micro-batch."""
    return sorted({*SIZES, written.schedule.microbatch_size})


def is_divided(written: Scenario) -> bool:
    """Whether context ranks may divide samples."""
    options = None if written.model is None else written.model.options
    return written.parallel.context > 1 or (isinstance(options, Transformer) and options.sequence > LONG)


def schedules_of(written: Scenario, layout: Values) -> Iterator[Values]:
    """The schedules of a layout, each with its chunks and the messages that the framework has with it."""
    schedule, pipeline = written.schedule, layout.get("parallel.pipeline", written.parallel.pipeline)
    if schedule.file is not None or schedule.kind is None:
        yield {}
        return
    listed = isinstance(written.parallel.stages, tuple) and pipeline != written.parallel.pipeline
    rest: Values = {"parallel.stages": None} if listed else {}
    if pipeline == 1:
        yield {**rest, "schedule.kind": PLAIN, "schedule.chunks": None}
        return
    framework = framework_of(written)
    names = schedules.names() if framework is None else framework.schedules
    for kind in dict.fromkeys((schedule.kind, *names)):
        waits = {} if framework is None or kind == schedule.kind else framework.messages(kind, schedule.p2p)
        for chunks in _chunks(written, pipeline, kind):
            yield {**rest, "schedule.kind": kind, "schedule.chunks": chunks, **waits}


def _chunks(written: Scenario, pipeline: int, kind: str) -> Sequence[int | None]:
    """The numbers of chunks of a schedule; None where there is no choice."""
    facts = schedules.find(kind).facts
    if not facts["many_chunks"] or facts["chunks"] is not None:
        return (None,)
    own = {written.schedule.chunks} if (kind, pipeline) == (written.schedule.kind, written.parallel.pipeline) else set()
    options = None if written.model is None else written.model.options
    if not isinstance(options, Transformer):
        return sorted(own.union(CHUNKS))
    fewer = 2 if written.parallel.stages == "ends-1" else 0
    most = (options.layers + fewer) // pipeline
    even = written.parallel.stages != "balanced"
    divides = (one for one in range(2, most + 1) if not even or (options.layers + fewer) % (pipeline * one) == 0)
    return sorted(own.union(divides))


def recompute_of(written: Scenario, levels: Sequence[Values]) -> Iterator[Values]:
    """Levels of recomputation, and that of the file."""
    yield from levels
    own = [*written.recompute] if isinstance(written.recompute, tuple) else written.recompute
    if written.recompute_layers is not None or own not in [level["recompute"] for level in levels]:
        yield {"recompute": own}


def planned(written: Scenario, plan: Values, path: str) -> Any:
    """The value of a key of a section, or of the scenario, in a plan; that of the file if the plan has none."""
    value = plan.get(path)
    section, _, key = path.rpartition(".")
    return getattr(getattr(written, section) if section else written, key) if value is None else value
