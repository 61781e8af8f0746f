"""The content of a report as data: facts, shares of the step, and limits of the model; `terminal` renders it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hybrid_des.analysis.idle import HOST
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.model_figures import peak_of
from hybrid_des.analysis.step_breakdown import BUBBLE, COMMUNICATION, RECOMPUTING, StepBreakdown
from hybrid_des.cluster.gpus import factors
from hybrid_des.collectives.checking import unchecked
from hybrid_des.pipeline.schedules.one_f_one_b import InPairs
from hybrid_des.report.billed import bill_assumptions, bill_headline
from hybrid_des.report.experts import expert_lines
from hybrid_des.report.extrapolated import extrapolated
from hybrid_des.report.fact import Fact
from hybrid_des.report.packed import packed_facts, packed_line
from hybrid_des.report.step_rows import Share, step_rows
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loops import ALONE
from hybrid_des.scenario.sections.perturbations import Jitter, Slow
from hybrid_des.scenario.stacks import codec_of, framework_of, splitting_rule
from hybrid_des.simulation.memory import MemoryPeak, memory_parts, misfit
from hybrid_des.simulation.memory_remedies import what_would_fit
from hybrid_des.simulation.outcome import Run, fullest
from hybrid_des.units import (
    PICOSECONDS_PER_SECOND,
    format_bytes,
    format_number,
    format_seconds,
    format_share,
    in_units,
)

BYTES = {
    "bytes_pipeline": "pipeline", "bytes_gradients": "gradients", "bytes_parameters": "parameters",
    "bytes_scales": "scales",
}  # fmt: skip
ALARM = "OUT OF MEMORY"
CANNOT_RUN = "this step cannot run; its figures are those of GPUs with enough memory"
HOST_BOUND = Fraction(1, 10)  # share of the step in launches from which a run is called host-bound
ACROSS_STEPS = ("zb-h2", "zb-auto")  # schedules whose drain overlaps the next step's warm-up


LEVELS = {"op": "per op", "rank-step": "per rank and step", "rank": "per rank"}


@dataclass(frozen=True)
class Content:
    """The content of a report: name and description of the scenario, and what follows, in the order of the report."""

    name: str
    description: str
    alarm: str  # why the step cannot run; empty if it can
    setup: Sequence[str]  # machine, parallelism and schedule; the model; what the choice of these implies
    headline: Sequence[Fact]
    shares: Sequence[Share]  # of the average step per rank, computing first
    resources: Sequence[Fact]  # memory, traffic, training, real time
    limits: str  # what is not modelled


# how far kernels were off that were recorded on one GPU and scaled to another
CARRIED = {
    # inference of bert-small, a ViT, Qwen1.5-0.5B, TimeSformer and OWLv2, of which the sums of kernels by operator are
    # public (github.com/AMD-AGI/TraceLens, tests/traces/h100 and mi300, ops_summary.csv; its authors: no benchmarks):
    # -17, -24, -10, +8 and +49 %
    ("h100", "mi300x"): "kernels of five models recorded on both (AMD-AGI/TraceLens) were met within -24 to +49 %",
}


def content_of(findings: RunAnalysis) -> Content:
    """Make the content of a report."""
    run, facts = findings.run, findings.summary
    scenario = run.scenario
    peak, breakdown = fullest(run), findings.breakdown
    return Content(
        scenario.name,
        scenario.description,
        alarm_of(run),
        [
            _setup(run, facts),
            *_model(scenario),
            *packed_line(scenario, facts),
            *notes_of(scenario, facts),
            *extrapolated(run),
            *filter(None, [_perturbations(scenario, run.timeline.duration / PICOSECONDS_PER_SECOND)]),
        ],
        [
            *_headline(scenario, facts, breakdown),
            *_model_headline(scenario, facts),
            *packed_facts(scenario, facts),
            *bill_headline(facts),
        ],
        step_rows(run, breakdown),
        [
            *_memory(run, facts, peak),
            *_resources(facts, run.scenario),
            *bill_assumptions(facts),
            *_simulated(run),
            *_left_out(run),
        ],
        _limits(scenario),
    )


def alarm_of(run: Run) -> str:
    """What to say first of a run that exceeds the memory of its GPUs; empty if it fits."""
    peak = fullest(run)
    return "" if peak.fits else f"{ALARM}: {_held(run.scenario, peak)}: {CANNOT_RUN}"


def _setup(run: Run, facts: Mapping[str, Any]) -> str:
    scenario = run.scenario
    parallel, schedule, cluster = scenario.parallel, scenario.schedule, scenario.cluster
    sizes = [f"{parallel.pipeline} pipeline ranks" if parallel.pipeline > 1 else "", count(parallel.data, "replica")]
    inner = (("tensor", parallel.tensor), ("context", parallel.context))
    sizes += [f"{size} {axis} ranks" for axis, size in inner if size > 1]
    names = ", ".join(dict.fromkeys(kind.gpu.name for kind in cluster.kinds))
    steps = f"; {count(scenario.steps, 'step')}" if scenario.steps > 1 else ""
    order = schedule.kind or schedule.file or "as traced"
    return (
        f"{count(facts['ranks'], 'GPU')} ({names}): {' × '.join(filter(None, sizes))}; "
        f"{order}, {count(run.microbatches, 'micro-batch')} per replica{steps}"
    )


def _amount(share: Fraction | tuple[str, ...]) -> str:
    return ", ".join(share) if isinstance(share, tuple) else f"{float(share) * 100:.0f} %"


def _model(scenario: Scenario) -> list[str]:
    """The model and how it is trained, in one line."""
    if scenario.model is None:
        return []
    model, parallel, schedule = scenario.model.network, scenario.parallel, scenario.schedule
    tokens = f" of {model.tokens:,} tokens" if model.sample == "sequence" else ""
    names = {"optimizer": "optimizer state", "parameters": "weights and gradients", "activations": "activations"}
    away = [(what, getattr(scenario.offload, key)) for key, what in names.items()]
    sizes = [
        f"{scenario.model.base or scenario.model.kind}: {_large(model.parameters)} parameters",
        "" if scenario.data else f"{count(schedule.microbatch_size, model.sample)}{tokens} per micro-batch",
    ]
    facts = [
        scenario.precision,
        "sequence parallel" if parallel.sequence else "",
        _experts(scenario),
        scenario.sharding if scenario.sharding != "none" else "",
        f"{recomputed(scenario)} recomputation" if scenario.recompute != "none" else "",
        *(f"{_amount(share)} of {what} on hosts" for what, share in away if share),
        {"none": "", "layers": "CUDA graphs of layers", "full": "a CUDA graph of the step"}[scenario.cuda_graphs],
    ]
    return ["; ".join([", ".join(filter(None, sizes)), ", ".join(filter(None, facts))])]


def _experts(scenario: Scenario) -> str:
    """How many ranks share experts, and how tokens reach them."""
    expert, experts = scenario.parallel.expert, scenario.experts
    if expert == 1:
        return ""
    beside = " overlapped with computation" if experts.streams else ""
    where = f", {experts.placement}" if experts.moved else ""
    return f"experts over {expert} ranks{where}, {experts.dispatcher}{beside}"


def recomputed(scenario: Scenario) -> str:
    """What the backward computes again, in words."""
    if scenario.recompute_layers is not None:
        return f"{scenario.recompute}, of {count(scenario.recompute_layers, 'layer')} per stage,"
    return scenario.recompute if isinstance(scenario.recompute, str) else "+".join(scenario.recompute)


def notes_of(scenario: Scenario, facts: Mapping[str, Any]) -> list[str]:
    """Consequences of a choice that its name does not convey."""
    notes, kind = [ALONE] if scenario.rl is not None else [], scenario.schedule.kind
    if kind == "interleaved-1f1b" and scenario.schedule.chunks == 1:
        notes.append("with one chunk per rank, interleaved-1f1b has 1F1B's bubble and more micro-batches in flight")
    if kind in ACROSS_STEPS and scenario.barrier and scenario.parallel.pipeline > 1:
        notes.append(f"the barrier between steps hides part of what {kind} gains: try several steps, barrier: false")
    if facts["algorithm"] == "parameter-server" and scenario.parallel.data > 1:
        servers = scenario.gradients.options
        count_of, where = getattr(servers, "servers", None), getattr(servers, "servers_on", "ranks")
        if where == "ranks" and count_of in (None, scenario.parallel.data):
            notes.append("every rank serves a shard: parameter-server then sends the bytes of a ring")
    if (recorded := scenario.workload and scenario.workload.recorded_on) and recorded != scenario.cluster.gpu.name:
        scaled = ", ".join(f"{work} × {float(by):.2f}" for work, by in factors(recorded, scenario.cluster.gpu).items())
        met = CARRIED.get((recorded, scenario.cluster.gpu.name), "how far that is off was not measured for these two")
        notes.append(f"kernels were recorded on {recorded}: {scaled}; those of other names keep their time; {met}")
    if _streams_alone(scenario):
        notes.append(
            "experts.streams hides no all-to-all: no op of another micro-batch runs at the same time; "
            "schedule.pairs: true runs a forward and a backward together"
        )
    if scenario.fsdp and scenario.background:
        notes.append("collectives of single layers take as long as alone: background traffic does not slow them")
    reduction = facts["gradient_communication_s"]
    if scenario.gradients.overlap and reduction["exposed"] and not reduction["hidden"]:
        notes += _hiding(scenario)
    return notes


def _streams_alone(scenario: Scenario) -> bool:
    """Whether exchanges of experts have a stream of their own, and nothing to run beside."""
    if scenario.model is None or scenario.parallel.expert == 1:
        return False
    experts, options = scenario.experts, scenario.schedule.options
    alone = isinstance(options, InPairs) and not options.pairs
    return experts.streams and not experts.delay_weight and alone


def _hiding(scenario: Scenario) -> list[str]:
    """What would hide gradient reduction where all gradients of a rank become ready at the end of its last op."""
    gradients = scenario.gradients
    if scenario.fsdp or (gradients.bucket_rule != "stage" and gradients.bucket is not None):
        return []
    rule = splitting_rule(scenario.model, scenario.sharding)
    whole = gradients.bucket is None and (gradients.bucket_rule != "stage" or "bucket" in gradients.model_fields_set)
    keys = [f"gradients.bucket_rule: {rule}"] * (gradients.bucket_rule == "stage") + [
        "gradients.bucket: 25 MiB"
    ] * whole
    fills = "fills" if len(keys) == 1 else "fill"
    return [
        "gradients.overlap hides nothing: all buckets of a rank are full when its last op ends; "
        f"{' and '.join(keys)} {fills} them during that op"
    ]


def _perturbations(scenario: Scenario, ends_s: float) -> str:
    """Everything that perturbs a run which ends at this time; empty if nothing does."""
    parts = [_slow(one, ends_s) for one in scenario.slow]
    parts += [text for one in scenario.jitter for text in _random(one)]
    if scenario.jitter:
        parts.append(f"seed {scenario.seed}")
    return "; ".join(parts)


def _slow(slow: Slow, ends_s: float) -> str:
    kind, name = slow.target
    if slow.flap is not None:
        what = f"down for {_time(slow.flap)}"
    else:
        speed = [] if slow.factor is None else [f"at {float(slow.factor):.4g}×"]
        what = " and ".join([*speed, *([f"{_time(slow.latency)} late"] if slow.latency else [])])
    begin = f" from {_time(slow.from_)}" if slow.from_ else ""
    end = "" if slow.until is None else f" until {_time(slow.until)}"
    unseen = " (after the end of this run)" if slow.from_ and slow.from_ >= ends_s else ""
    return f"{kind} {name} {what}{begin}{end}{unseen}"


def _random(jitter: Jitter) -> Iterator[str]:
    if jitter.distribution is not None:
        options = ", ".join(f"{key} {float(value):.4g}" for key, value in jitter.options or ())
        yield f"{jitter.distribution} jitter {LEVELS[jitter.level]} ({options})"
    if jitter.noise is not None:
        yield f"noise of {_time(jitter.noise.detour)} every {_time(jitter.noise.period)}"


def _time(seconds: Fraction) -> str:
    return f"{float(seconds / 3600):.4g} h" if seconds >= 3600 else format_seconds(float(seconds))


def _headline(scenario: Scenario, facts: Mapping[str, Any], breakdown: StepBreakdown) -> list[Fact]:
    rate = f"{format_number(facts['microbatches_per_s'])} micro-batches/s"
    note = facts["experience"]["text"] if "experience" in facts else rate  # a model's rate is that of its samples
    return [
        Fact("step time", format_seconds(facts["step_time_s"]), note),
        *_stack(facts),
        Fact(
            "bubble", format_share(breakdown.shares[BUBBLE]), "of the step: GPUs wait for other ranks of their pipeline"
        ),
        *_communication(facts, breakdown),
        *_host_bound(scenario, breakdown),
        Fact("speed-up", f"{facts['speedup']:.2f}×", _efficient(facts)),
    ]


def _stack(facts: Mapping[str, Any]) -> Iterator[Fact]:
    """The step of either stack where the scenario leaves open which one it is."""
    if "step_time_by_stack_s" in facts:
        fused, eager = map(format_seconds, facts["step_time_by_stack_s"].values())
        yield Fact("stack", "open", f"fused {fused}, eager about {eager}; model.written says which")


def _host_bound(scenario: Scenario, breakdown: StepBreakdown) -> list[Fact]:
    """The share of the step in which GPUs wait for the host to launch kernels, if it is large."""
    reached, share = scenario.efficiency, float(breakdown.shares[HOST])
    copies = scenario.offload.activations or scenario.offload.parameters
    if reached is None or not reached.launch or copies or share < HOST_BOUND:
        return []
    return [Fact("host-bound", format_share(share), "of the step waits for launches (efficiency.launch, cuda_graphs)")]


def _efficient(facts: Mapping[str, Any]) -> str:
    """What share of the GPUs' time is computing."""
    again = facts["step_shares"][RECOMPUTING]
    without = f" ({format_share(facts['efficiency'] - again)} without recomputation)" if again else ""
    return f"on {count(facts['ranks'], 'GPU')}, {format_share(facts['efficiency'])} efficient{without}"


def _communication(facts: Mapping[str, Any], breakdown: StepBreakdown) -> list[Fact]:
    """Exposed and hidden communication, as shares of the step."""
    step, shares = facts["step_time_s"], breakdown.shares
    axes = facts.get("communication_s", {"gradients": facts["gradient_communication_s"]})
    exposed = {axis: float(shares[axis]) * step for axis in COMMUNICATION}
    hidden = {axis: times["hidden"] for axis, times in axes.items()}
    lines = []
    for kind, seconds in (("exposed", exposed), ("hidden", hidden)):
        parts = ", ".join(f"{axis} {format_seconds(time)}" for axis, time in seconds.items() if time)
        if step and (parts or kind == "exposed"):
            note = f"of the step{': ' if parts else ''}{parts}"
            lines.append(Fact(f"{kind} communication", format_share(sum(seconds.values()) / step), note))
    return lines


def _model_headline(scenario: Scenario, facts: Mapping[str, Any]) -> list[Fact]:
    """Utilisation and throughput."""
    if scenario.model is None:
        return []
    sample = scenario.model.network.sample
    what = "tokens" if sample == "sequence" else "samples"
    rate, each = facts[f"{what}_per_s"], facts[f"{what}_per_gpu_s"]
    noun = what if sample in ("sequence", "sample") else f"{sample}s"
    utilisation = f"of {peak_of(scenario) / 1e12:.4g} TFLOP/s per GPU; HFU {format_share(facts['hfu'])}"
    return [
        Fact("MFU", format_share(facts["mfu"]), utilisation),
        Fact(f"{noun} per second", _rate(rate), f"{_rate(each)} per GPU"),
    ]


def _memory(run: Run, facts: Mapping[str, Any], peak: MemoryPeak) -> list[Fact]:
    """Memory of the worst GPU, named if there are several kinds: parts, what would fit, and the peaks of all ranks."""
    scenario, layout = run.scenario, run.timeline.layout
    note = _held(scenario, peak)
    parts = memory_parts(run.costs, layout.coordinate(peak.rank, "pipeline"), peak.held, layout.lane(peak.rank))
    if not peak.fits:
        shown = [Fact("memory", ALARM, note, "alarm")]
    elif scenario.workload and "activation" not in scenario.workload.memory.model_fields_set:
        shown = [Fact("memory", "activations not given", f"without them {note}")]
    else:
        shown = [Fact("memory", "fits", note, "bold")]
    if scenario.model is not None:
        sizes = [f"{format_bytes(size)} {part}" for part, size in parts.items()]
        shown += [Fact("  by part", ", ".join(sizes[:3]) + ","), Fact("", ", ".join(sizes[3:]))]
    if not peak.fits:
        shown.append(Fact("  does not fit", misfit(parts, peak.gpu.memory)))
        advice = what_would_fit(scenario, run.plan, run.fabric)
        shown += [Fact("  would fit", advice)] if advice else []
    held = [format_bytes(size) for size in facts["peak_memory_bytes"]]
    return [*shown, Fact("  per pipeline rank", _few(held), weight="dim")]


def _held(scenario: Scenario, peak: MemoryPeak) -> str:
    name = f" ({peak.gpu.name})" if len(scenario.cluster.kinds) > 1 else ""
    return f"peak {format_bytes(peak.held)} of {format_bytes(peak.gpu.memory)}{name}, on rank {peak.rank}"


def _resources(facts: Mapping[str, Any], scenario: Scenario) -> list[Fact]:
    """Activations in flight, traffic, training, real time."""
    in_flight = facts["peak_activations"]
    sizes = ", ".join(f"{format_bytes(facts[key])} {name}" for key, name in BYTES.items() if facts.get(key))
    sent = ": ".join(filter(None, [f"{count(facts['messages'], 'message')} per step", sizes]))
    events = count(facts["events"], "event")
    time = f"{format_seconds(facts['wall_s'])} for {events}" if facts["wall_s"] else events
    return [
        Fact("micro-batches in flight", _few([f"{value:g}" for value in in_flight])),
        *expert_lines(facts),
        *_reduction(facts, scenario),
        *_some("slowed compute", facts.get("slowed_s"), format_seconds, "per rank, while collectives run beside it"),
        Fact("sent", sent),
        *_some("  by switches", facts.get("bytes_switched"), format_bytes, "sums that they hand to GPUs"),
        *_outer(facts),
        *_training(facts),
        Fact("real time", time, weight="dim"),
    ]


def _some(label: str, amount: Any, write: Callable[[Any], str], note: str) -> list[Fact]:
    """An amount, if there is any."""
    return [Fact(label, write(amount), note)] if amount else []


def _outer(facts: Mapping[str, Any]) -> list[Fact]:
    """The synchronisation of groups of replicas that do not synchronise in every step."""
    outer = facts.get("outer")
    if outer is None:
        return []
    takes, waits = format_seconds(outer["exchange_s"]), format_seconds(outer["exposed_s"])
    parts = f" in {outer['fragments']} fragments" if outer["fragments"] > 1 else ""
    slower = {"assumed none": "assumed not to slow the steps meanwhile", "none": ""}.get(
        outer["contention"], f"slows the steps meanwhile by {format_seconds(outer['slowed_s'])}"
    )
    sent = f"{format_bytes(outer['bytes_exchange'])} by {outer['algorithm']} in {outer['codec']}{parts}"
    mean, used = format_seconds(outer["mean_step_s"]), format_share(outer["utilisation"])
    alone = facts["ranks"] < outer["ranks"]
    whose = "one" if alone else "all, simulated together"
    least = "for its bytes on the links between sites, by any algorithm"
    return [
        Fact("groups of replicas", f"{outer['groups']}, each with its own weights; the step above is that of {whose}"),
        Fact("synchronisation", f"every {outer['every']} steps: {takes}, {waits} of it exposed; {sent}"),
        *_some("  at least", outer["exchange_bound_s"], format_seconds, least),
        *([Fact("contention", slower)] if slower else []),
        Fact("mean step with synchronisation", f"{mean}, {used} of it training"),
    ]


def _reduction(facts: Mapping[str, Any], scenario: Scenario) -> list[Fact]:
    """How gradients are reduced, if they are: the algorithm and its channels; a user's that could not be checked."""
    if not facts["bytes_gradients"]:
        return []
    does = "reduce-scatter and all-gather" if "parameter_communication_s" in facts else "all-reduce"
    channels = f" on {count(facts['channels'], 'channel')}" if facts["channels"] else ""
    taken = ": " + "; ".join(facts["choices"]) if facts.get("choices") else ""
    why = "" if scenario.numerics else unchecked(facts["algorithm"], scenario.gradients.options)
    named = Fact("reduction", f"{facts['algorithm']} {does}{channels}{taken}", f"not verified: {why}" if why else "")
    return [named, *_as_framework(scenario)]


def _as_framework(scenario: Scenario) -> list[Fact]:
    """How a model's gradients are reduced where that is what its framework does by default."""
    gradients, framework = scenario.gradients, framework_of(scenario.model)
    if framework is None or scenario.fsdp or gradients.overlap != framework.overlaps:
        return []
    if gradients.codec != codec_of(framework, scenario.precision):
        return []
    when = "during" if gradients.overlap else "after"
    note = f"{framework.name}'s default{framework.besides} (gradients.codec, overlap)"
    return [Fact("  gradients", f"{gradients.codec}, {when} the backward", note)]


def _left_out(run: Run) -> list[Fact]:
    """What could not be left out of the simulation, and why."""
    return [Fact("not left out", attempt, why, weight="dim") for attempt, why in run.refused]


def _simulated(run: Run) -> list[Fact]:
    """Number of simulated ranks along each axis, or why all replicas were simulated where fewer might have sufficed."""
    sizes = run.scenario.parallel.layout.sizes
    kept = {folded.axis: run.fold.kept(folded.axis) for folded in run.fold.folded_axes} if run.fold else {}
    if not (kept or run.unfolded):
        return []
    few = [] if "data" in kept else [f"all {count(sizes['data'], 'replica')}"]
    for axis, keep in kept.items():
        few.append(f"{keep:,} of {count(sizes[axis], 'replica' if axis == 'data' else f'{axis} rank')}")
    return [Fact("simulated", ", ".join(few), run.unfolded or "which do the same", weight="dim")]


def _training(facts: Mapping[str, Any]) -> list[Fact]:
    """With numerics: loss and accuracy of the small model, and the error of its gradients."""
    if not facts.get("loss"):
        return []
    difference = facts["replica_difference"]
    replicas = "replicas bit-identical" if difference == 0 else f"replicas differ by {difference:.2g}"
    error = f"relative error at most {facts['gradient_error']:.2g} against serial training"
    return [
        Fact("loss", _few([f"{value:.4g}" for value in facts["loss"]])),
        Fact("accuracy", _few([format_share(value) for value in facts["accuracy"]])),
        Fact("gradients", f"{error}; {replicas}"),
    ]


def _limits(scenario: Scenario) -> str:
    sends = "sends are asynchronous"
    if scenario.schedule.p2p == "blocking":
        sends = "sends block as in plain Megatron-LM 1F1B"
    elif scenario.schedule.kind == "1f1b":
        sends += ", where plain Megatron-LM 1F1B blocks (schedule.p2p: blocking)"
    reached = scenario.efficiency
    launched = reached is not None and bool(reached.launch or reached.layer_overhead)
    launched = launched or (scenario.workload is not None and any(time for _, time in scenario.workload.overhead))
    missing = ["other work of the host"] if launched else ["kernel launches", "the host"]
    missing += [] if scenario.jitter else ["jitter"]
    missing += ["compute slowed down by communication"] if reached is None else []
    listed = ", and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    scaled = ""
    if scenario.workload is not None and scenario.traced and scenario.workload.recorded_ranks not in (
        None, scenario.parallel.ranks,
    ):  # fmt: skip
        scaled = (
            f" Collectives recorded on {scenario.workload.recorded_ranks} ranks are scaled to "
            f"{scenario.parallel.ranks} by the bytes that a ring moves, on links as fast as those."
        )
    return f"Not modelled: {listed}; {sends}.{scaled}"


def count(number: float, noun: str) -> str:
    """Format a number with its noun, pluralized as needed."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _large(number: int) -> str:
    """Format a number of parameters: "70.55 billion"."""
    return in_units(number, ((10**9, "billion"), (10**6, "million")), f"{number:,}")


def _few(values: Sequence[str]) -> str:
    """All of up to eight values, else the first and last ones."""
    return "  ".join(values if len(values) <= 8 else [*values[:4], "…", *values[-3:]])
