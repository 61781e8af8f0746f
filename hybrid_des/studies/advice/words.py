"""What differs between two plans, in words: "no recompute", "TP8 → TP4, DP2 → DP4", "10 virtual stages"."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybrid_des.collectives import AUTO
from hybrid_des.pipeline.schedules import title_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.neighbours.framework import MEGATRON, framework_of
from hybrid_des.studies.neighbours.layouts import SHORT, VIRTUAL
from hybrid_des.workload.models.layer import OPS

AXES = ("tensor", "context", "pipeline", "data", "expert")
FSDP = {"zero-2": "Megatron-FSDP", "zero-3": "FSDP2"}  # what divides so with Megatron-LM
NAMES = {**SHORT, "expert": "EP"}


def words_of(before: Scenario, after: Scenario) -> tuple[str, ...]:
    """The differences that people name, the most important first; what follows from them is left out."""
    return tuple(text for told in TOLD for text in told(before, after))


def _recompute(before: Scenario, after: Scenario) -> Iterator[str]:
    if (before.recompute, before.recompute_layers) == (after.recompute, after.recompute_layers):
        return
    if after.recompute == (OPS,):
        yield "recompute every second GEMM"
    elif isinstance(after.recompute, tuple):
        yield f"recompute {', '.join(after.recompute)}"
    else:
        yield {"none": "no recompute", "selective": "selective recompute"}.get(after.recompute, "full recompute")


def _layout(before: Scenario, after: Scenario) -> Iterator[str]:
    sizes = [(NAMES[axis], getattr(before.parallel, axis), getattr(after.parallel, axis)) for axis in AXES]
    if changed := [f"{name}{was} → {name}{now}" for name, was, now in sizes if was != now]:
        yield ", ".join(changed)
    if after.parallel.of_expert != before.parallel.of_expert and after.parallel.expert_tensor == 1:
        yield "experts not split over tensor ranks"
    if before.parallel.order != after.parallel.order:
        yield f"rank order {'-'.join(after.parallel.order)}"


def _microbatch(before: Scenario, after: Scenario) -> Iterator[str]:
    was, now = before.schedule.microbatch_size, after.schedule.microbatch_size
    if was != now:
        yield f"micro-batch {was} → {now}"


def _sharding(before: Scenario, after: Scenario) -> Iterator[str]:
    alone = after.parallel.data * after.parallel.context == 1  # follows from the layout
    if before.sharding != after.sharding and not alone:
        framework = framework_of(after)
        library = FSDP.get(after.sharding) if framework is not None and framework.name == MEGATRON else None
        level = "no sharding" if after.sharding == "none" else after.sharding.replace("zero", "ZeRO")
        yield level if library is None or after.parallel.pipeline > 1 else f"{level} ({library})"


def _schedule(before: Scenario, after: Scenario) -> Iterator[str]:
    was, now = before.schedule, after.schedule
    if after.parallel.pipeline == 1:
        return
    if now.kind == VIRTUAL and (was.kind, was.chunks) != (now.kind, now.chunks):
        yield _virtual(was.kind, was.chunks, now.chunks)
    elif now.kind is not None and was.kind != now.kind and (before.parallel.pipeline > 1 or now.kind != "1f1b"):
        yield f"{title_of(now.kind)} schedule"
    elif was.p2p != now.p2p and before.parallel.pipeline > 1:
        yield "asynchronous sends" if now.p2p == "async" else "blocking sends"
    if before.parallel.stages != after.parallel.stages:
        rules = {"even": "equal layers per stage", "ends-1": "one layer fewer on the first and the last stage"}
        rule = after.parallel.stages
        yield rules.get(rule, f"{rule} stages") if isinstance(rule, str) else "other stages"


def _virtual(was: str | None, before: int, after: int) -> str:
    """Chunks of interleaved 1F1B, which its frameworks call virtual stages, after another schedule."""
    if was == VIRTUAL:
        return f"{before} → {after} virtual stages"
    return (
        f"{after} virtual stages" if was in (None, "1f1b") else f"{title_of(VIRTUAL)} schedule, {after} virtual stages"
    )


def _network(before: Scenario, after: Scenario) -> Iterator[str]:
    if after.parallel.sequence and not before.parallel.sequence and before.parallel.tensor > 1:
        yield "sequence parallel"
    overlapped = [
        name
        for name, was, now in (
            ("gradients", before.gradients.overlap, after.gradients.overlap),
            ("parameters", before.overlap.parameters, after.overlap.parameters),
        )
        if now and not was
    ]
    if overlapped and before.sharding == after.sharding:
        yield f"{' and '.join(overlapped)} overlapped"
    elif before.gradients.bucket_rule != after.gradients.bucket_rule and before.sharding == after.sharding:
        yield f"gradient buckets as in {after.gradients.bucket_rule}"
    if before.gradients.codec != after.gradients.codec:
        yield f"gradients in {after.gradients.codec}"
    if before.gradients.algorithm != after.gradients.algorithm:
        name = after.gradients.algorithm
        yield f"{'fastest' if name == AUTO else name} all-reduce of gradients"


def _experts(before: Scenario, after: Scenario) -> Iterator[str]:
    if before.experts.dispatcher != after.experts.dispatcher:
        yield f"{after.experts.dispatcher} dispatcher"
    if _beside(after) and not _beside(before):
        yield "expert all-to-alls overlapped with computation"


def _beside(scenario: Scenario) -> bool:
    return scenario.experts.streams and getattr(scenario.schedule.options, "pairs", True)


def _shards(before: Scenario, after: Scenario) -> Iterator[str]:
    if before.shards.ranks != after.shards.ranks:
        ranks = after.shards.ranks
        yield "sharded over all replicas" if ranks is None else f"sharded in groups of {ranks}"


def _host(before: Scenario, after: Scenario) -> Iterator[str]:
    if before.cuda_graphs != after.cuda_graphs:
        yield f"CUDA graphs of {'the whole step' if after.cuda_graphs == 'full' else 'layers'}"
    if after.offload.optimizer > before.offload.optimizer:
        yield "optimizer in host memory"
    if after.offload.activations and not before.offload.activations:
        yield "activations in host memory"


TOLD: tuple[Callable[[Scenario, Scenario], Iterator[str]], ...] = (
    _recompute, _layout, _microbatch, _sharding, _shards, _schedule, _network, _experts, _host,
)  # fmt: skip
