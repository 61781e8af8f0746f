"""The content of a report as data: facts, shares of the step, and limits of the model; `terminal` renders it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybrid_des.analysis.metrics import Findings
from hybrid_des.network.purpose import REDUCTION
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.memory import MemoryPeak, gpus_of, worst_peak
from hybrid_des.units import format_bytes, format_seconds

CAUSES = {
    "busy": "busy",
    "dependency": "pipeline dependency",
    "pipeline_message": "waiting for a pipeline message",
    "gradient_reduction": "gradient reduction",
    "end_of_step": "waiting for the slowest rank",
}
BYTES = {
    "bytes_pipeline": "pipeline", "bytes_gradients": "gradients", "bytes_parameters": "parameters",
    "bytes_scales": "scales",
}  # fmt: skip


class Fact(NamedTuple):
    """One line: label, value and note; `weight` is "", "bold", "dim" or "alarm"."""

    label: str
    value: str
    note: str = ""
    weight: str = ""


class Share(NamedTuple):
    """One part of the average step: label, seconds, fraction of the step, and the activity that gives its colour."""

    label: str
    seconds: float
    fraction: float
    activity: str


@dataclass(frozen=True)
class Content:
    """The content of a report: name and description of the scenario, and what follows, in the order of the report."""

    name: str
    description: str
    setup: str  # machine, parallelism and schedule, in one line
    headline: Sequence[Fact]
    shares: Sequence[Share]  # of the average step per rank, busy first
    resources: Sequence[Fact]  # memory, traffic, training, real time
    limits: str  # what is not modelled


def content_of(findings: Findings) -> Content:
    """Make the content of a report."""
    run, facts = findings.run, findings.summary
    scenario = run.scenario
    peak = worst_peak(run.peak_memory, gpus_of(scenario.cluster, run.timeline.layout))
    return Content(
        scenario.name,
        scenario.description,
        _setup(scenario, facts),
        _headline(facts),
        _shares(facts),
        _resources(facts, peak, many=len(scenario.cluster.kinds) > 1),
        _limits(scenario),
    )


def _setup(scenario: Scenario, facts: Mapping[str, Any]) -> str:
    parallel, schedule, cluster = scenario.parallel, scenario.schedule, scenario.cluster
    sizes = [f"{parallel.pipeline} pipeline ranks" if parallel.pipeline > 1 else "", count(parallel.data, "replica")]
    if parallel.tensor > 1:
        sizes.append(f"{parallel.tensor} tensor ranks")
    names = ", ".join(dict.fromkeys(kind.gpu.name for kind in cluster.kinds))
    steps = f"; {count(scenario.steps, 'step')}" if scenario.steps > 1 else ""
    return (
        f"{count(facts['ranks'], 'GPU')} ({names}): {' × '.join(filter(None, sizes))}; "
        f"{schedule.kind or schedule.file}, {count(schedule.microbatches, 'micro-batch')} per replica{steps}"
    )


def _headline(facts: Mapping[str, Any]) -> list[Fact]:
    hidden = facts["gradient_communication_s"]["hidden"]
    exposed = f"{facts['exposed_communication_ratio']:.1%}"
    gpus = f"on {count(facts['ranks'], 'GPU')}, {facts['efficiency']:.1%} efficient"
    note = f"of the {facts['algorithm']} all-reduce, overlapped with compute"
    return [
        Fact("step time", format_seconds(facts["step_time_s"]), f"{facts['microbatches_per_s']:.4g} micro-batches/s"),
        Fact("bubble", f"{facts['bubble_ratio']:.1%}", f"of the pipeline's {format_seconds(facts['pipeline_time_s'])}"),
        Fact("exposed communication", exposed, "of the step waiting for communication"),
        *([Fact("hidden communication", format_seconds(hidden), note)] if hidden else []),
        Fact("speed-up", f"{facts['speedup']:.2f}×", gpus),
    ]


def _shares(facts: Mapping[str, Any]) -> list[Share]:
    step = facts["step_time_s"]
    activities = {"busy": "F", REDUCTION.cause: "reduction"}
    return [
        Share(CAUSES.get(name, name.replace("_", " ")), seconds, seconds / step if step else 0.0,
              activities.get(name, "idle"))
        for name, seconds in {"busy": facts["busy_s"], **facts["idle_s"]}.items()
    ]  # fmt: skip


def _resources(facts: Mapping[str, Any], peak: MemoryPeak, many: bool) -> list[Fact]:
    """Memory of the worst GPU, named if there are `many` kinds, and per pipeline rank; traffic, training, real time."""
    verdict, weight = ("fits", "bold") if peak.fits else ("OUT OF MEMORY", "alarm")
    name = f" ({peak.gpu.name})" if many else ""
    note = f"peak {format_bytes(peak.held)} of {format_bytes(peak.gpu.memory)}{name}, on rank {peak.rank}"
    held, in_flight = facts["peak_memory_bytes"], facts["peak_activations"]
    sizes = ", ".join(f"{format_bytes(facts[key])} {name}" for key, name in BYTES.items() if facts.get(key))
    sent = ": ".join(filter(None, [f"{count(facts['messages'], 'message')} per step", sizes]))
    time = f"{format_seconds(facts['wall_s'])} for {count(facts['events'], 'event')}"
    return [
        Fact("memory", verdict, note, weight),
        Fact("  per pipeline rank", _few([format_bytes(size) for size in held]), weight="dim"),
        Fact("micro-batches in flight", _few([f"{value:g}" for value in in_flight])),
        Fact("sent", sent),
        *_training(facts),
        Fact("real time", time, weight="dim"),
    ]


def _training(facts: Mapping[str, Any]) -> list[Fact]:
    """With numerics: loss and accuracy of the small model, and the error of its gradients."""
    if not facts.get("loss"):
        return []
    difference = facts["replica_difference"]
    replicas = "replicas bit-identical" if difference == 0 else f"replicas differ by {difference:.2g}"
    error = f"relative error at most {facts['gradient_error']:.2g} against serial training"
    return [
        Fact("loss", _few([f"{value:.4g}" for value in facts["loss"]])),
        Fact("accuracy", _few([f"{value:.1%}" for value in facts["accuracy"]])),
        Fact("gradients", f"{error}; {replicas}"),
    ]


def _limits(scenario: Scenario) -> str:
    sends = (
        "sends block as in plain Megatron-LM 1F1B"
        if scenario.schedule.p2p == "blocking"
        else "sends are asynchronous, where plain Megatron-LM 1F1B blocks (schedule.p2p: blocking)"
    )
    return f"Not modelled: kernel launches, the host, jitter, and compute slowed down by communication; {sends}."


def count(number: float, noun: str) -> str:
    """Format a number with its noun, pluralized as needed."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _few(values: Sequence[str]) -> str:
    """All of up to eight values, else the first and last ones."""
    return "  ".join(values if len(values) <= 8 else [*values[:4], "…", *values[-3:]])
