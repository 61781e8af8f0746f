"""A plan as flags of two training frameworks, and the parts that no flag expresses.

Megatron-LM: megatron/training/arguments.py (github.com/NVIDIA/Megatron-LM; docs.nvidia.com/megatron-core). It runs
1F1B, plain and interleaved; ZeRO-1 is its distributed optimizer; with FSDP2 it has no pipeline.
torchtitan: torchtitan/config/job_config.py (github.com/pytorch/torchtitan). It runs the schedules of
torch.distributed.pipelining, and any order from a CSV file; `fully_shard` with or without resharding after the forward
is ZeRO-3 or ZeRO-2, over data and context ranks; tensor parallelism is always with sequence parallelism.

Ranks: Megatron-LM numbers them along tensor, context, data, then pipeline; with a flag, along data last.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybrid_des.collectives import codecs
from hybrid_des.scenario import Scenario

ORDER_FILE = "order.csv"  # as `--out` and `hybrid-des search --order` write it
_MEGATRON_ORDERS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("tensor", "data", "pipeline"): (),
    ("tensor", "pipeline", "data"): ("--use-tp-pp-dp-mapping",),
}
_CONTEXT = {"ring": "p2p", "all-to-all": "a2a", "all-gather": "allgather"}
_TORCH = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved-1f1b": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
TWO_COPIES = ("chimera", "dualpipe")


class Said(NamedTuple):
    """The flags of a plan, and the parts that they do not express."""

    flags: Sequence[str]
    unsaid: Sequence[str]


def megatron(scenario: Scenario) -> Said:
    """The plan for Megatron-LM; flags of the model itself are left out."""
    return Said(tuple(_megatron(scenario)), tuple(_not_in_megatron(scenario)))


def torchtitan(scenario: Scenario) -> Said:
    """The plan for torchtitan; the choice of the model is left out."""
    return Said(tuple(_torchtitan(scenario)), tuple(_not_in_torchtitan(scenario)))


def _megatron(scenario: Scenario) -> Iterator[str]:
    parallel, schedule, gradients = scenario.parallel, scenario.schedule, scenario.gradients
    yield f"--tensor-model-parallel-size {parallel.tensor}"
    yield f"--pipeline-model-parallel-size {parallel.pipeline}"
    if parallel.context > 1:
        yield f"--context-parallel-size {parallel.context}"
        yield f"--cp-comm-type {_CONTEXT[parallel.context_method]}"
    if parallel.expert > 1:
        yield f"--expert-model-parallel-size {parallel.expert}"
    if parallel.sequence and parallel.tensor > 1:
        yield "--sequence-parallel"
    yield from _MEGATRON_ORDERS.get(_order(scenario), ())
    if schedule.kind == "interleaved-1f1b" and schedule.chunks > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {schedule.chunks}"
    if parallel.stages == "ends-1" and parallel.pipeline > 1:
        yield "--account-for-embedding-in-pipeline-split"
        yield "--account-for-loss-in-pipeline-split"
    yield f"--micro-batch-size {schedule.microbatch_size}"
    yield f"--global-batch-size {_samples(scenario)}"
    yield {"bf16": "--bf16", "fp16": "--fp16", "fp8": "--bf16 --fp8-format hybrid"}[scenario.precision]
    if scenario.recompute == "full":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    elif scenario.recompute == "selective":
        yield "--recompute-granularity selective"
    if _replicated(scenario):
        yield from _megatron_gradients(scenario)
    if scenario.overlap.tensor and parallel.tensor > 1:
        yield "--tp-comm-overlap"
    if gradients.bucket is not None and _replicated(scenario):
        elements = gradients.bucket / codecs.find(gradients.codec).build().bytes_per_element
        yield f"--ddp-bucket-size {int(elements)}"


def _megatron_gradients(scenario: Scenario) -> Iterator[str]:
    if scenario.sharding == "zero-1":
        yield "--use-distributed-optimizer"
        if scenario.overlap.parameters:
            yield "--overlap-param-gather"
    elif scenario.sharding == "zero-3" and scenario.parallel.pipeline == 1:
        yield "--use-torch-fsdp2"
    if scenario.gradients.overlap:
        yield "--overlap-grad-reduce"
    if scenario.gradients.codec == "bf16":
        yield "--grad-reduce-in-bf16"
    elif scenario.gradients.codec == "fp32":
        yield "--accumulate-allreduce-grads-in-fp32"


def _not_in_megatron(scenario: Scenario) -> Iterator[str]:
    parallel, schedule = scenario.parallel, scenario.schedule
    if parallel.pipeline > 1 and schedule.kind not in ("1f1b", "interleaved-1f1b"):
        yield f"schedule.kind: {schedule.kind or schedule.file}: it runs 1F1B, plain and interleaved"
    if parallel.pipeline > 1 and schedule.kind == "1f1b" and schedule.p2p == "async":
        yield "schedule.p2p: async: plain 1F1B waits for its messages there"
    if _order(scenario) not in _MEGATRON_ORDERS:
        yield f"parallel.order: {', '.join(parallel.order)}"
    if parallel.stages not in ("even", "ends-1"):
        yield f"parallel.stages: {parallel.stages}"
    layered = scenario.sharding == "zero-3" and parallel.pipeline == 1
    if _replicated(scenario) and scenario.sharding in ("zero-2", "zero-3") and not layered:
        yield f"sharding: {scenario.sharding}"


def _torchtitan(scenario: Scenario) -> Iterator[str]:
    parallel, schedule = scenario.parallel, scenario.schedule
    pipeline = parallel.pipeline > 1
    sharded = scenario.sharding in ("zero-2", "zero-3")
    yield f"--parallelism.data_parallel_replicate_degree {1 if sharded else parallel.data}"
    yield f"--parallelism.data_parallel_shard_degree {parallel.data if sharded else 1}"
    if sharded:
        policy = "never" if scenario.sharding == "zero-2" or pipeline else "always"
        yield f"--parallelism.fsdp_reshard_after_forward {policy}"
    yield f"--parallelism.tensor_parallel_degree {parallel.tensor}"
    yield f"--parallelism.context_parallel_degree {parallel.context}"
    if parallel.expert > 1:
        yield f"--parallelism.expert_parallel_degree {parallel.expert}"
    if pipeline:
        yield f"--parallelism.pipeline_parallel_degree {parallel.pipeline}"
        if schedule.kind in _TORCH:
            yield f"--parallelism.pipeline_parallel_schedule {_TORCH[schedule.kind]}"
        elif schedule.kind not in TWO_COPIES:
            yield "--parallelism.pipeline_parallel_schedule _PipelineScheduleRuntime"
            yield f"--parallelism.pipeline_parallel_schedule_csv {ORDER_FILE}"
        less = 1 if parallel.stages == "ends-1" else 0
        yield f"--parallelism.pipeline_parallel_first_stage_less_layers {less}"
        yield f"--parallelism.pipeline_parallel_last_stage_less_layers {less}"
        yield f"--parallelism.pipeline_parallel_microbatch_size {schedule.microbatch_size}"
    local = schedule.microbatch_size * (schedule.microbatches if pipeline else 1)
    yield f"--training.local_batch_size {local}"
    yield f"--training.global_batch_size {_samples(scenario)}"
    yield f"--activation_checkpoint.mode {'full' if scenario.recompute == 'full' else 'none'}"


def _not_in_torchtitan(scenario: Scenario) -> Iterator[str]:
    parallel, schedule = scenario.parallel, scenario.schedule
    if parallel.pipeline > 1 and schedule.kind in TWO_COPIES:
        yield f"schedule.kind: {schedule.kind}: a stage is on one rank only"
    if scenario.sharding == "zero-1" and _replicated(scenario):
        yield "sharding: zero-1: it shards gradients too, with fully_shard"
    if scenario.sharding == "none" and parallel.data > 1 and parallel.ranks > parallel.data:
        yield "sharding: none: replicas combined with other parallelism are sharded, with fully_shard"
    if parallel.tensor > 1 and not parallel.sequence:
        yield "parallel.sequence: false"
    if scenario.recompute == "selective":
        yield "recompute: selective: it chooses by operation or every n-th layer"
    if parallel.context > 1 and parallel.context_method == "ring":
        yield "parallel.context_method: ring: keys and values are gathered, or exchanged all to all"
    if parallel.stages not in ("even", "ends-1"):
        yield f"parallel.stages: {parallel.stages}"


def _order(scenario: Scenario) -> tuple[str, ...]:
    """The order of ranks, without context where it follows tensor, as by default."""
    order = tuple(scenario.parallel.layout.order)
    if order.index("context") == order.index("tensor") + 1:
        return tuple(axis for axis in order if axis != "context")
    return order


def _samples(scenario: Scenario) -> int:
    return scenario.schedule.microbatches * scenario.schedule.microbatch_size * scenario.parallel.data


def _replicated(scenario: Scenario) -> bool:
    """Whether several ranks hold the same parameters."""
    return scenario.parallel.data * scenario.parallel.context > 1
