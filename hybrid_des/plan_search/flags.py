"""A plan as flags of two training frameworks, and the parts that no flag expresses.

Megatron-LM: megatron/training/arguments.py (github.com/NVIDIA/Megatron-LM; docs.nvidia.com/megatron-core). It runs
1F1B, plain and interleaved; ZeRO-1 is its distributed optimizer; with FSDP2 it has no pipeline.
torchtitan: torchtitan/config/job_config.py (github.com/pytorch/torchtitan). It runs the schedules of
torch.distributed.pipelining, and any order from a CSV file; `fully_shard` with or without resharding after the forward
is ZeRO-3 or ZeRO-2, over data and context ranks; tensor parallelism is always with sequence parallelism.

Ranks: Megatron-LM numbers them along tensor, context, data, then pipeline; with a flag, along data last.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hybrid_des.collectives import codecs
from hybrid_des.scenario import Scenario

ORDER_FILE = "order.csv"  # as `--out` and `hybrid-des search --order` write it
DATA_FIRST, DATA_LAST = ("tensor", "data", "pipeline"), ("tensor", "pipeline", "data")  # orders that Megatron-LM has
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
    parallel, schedule, gradients = scenario.parallel, scenario.schedule, scenario.gradients
    pipeline, replicated, sharding = parallel.pipeline > 1, _replicated(scenario), scenario.sharding
    fsdp = sharding == "zero-3" and not pipeline
    elements = (gradients.bucket or 0) / codecs.find(gradients.codec).build().bytes_per_element
    precision = {"bf16": "--bf16", "fp16": "--fp16", "fp8": "--bf16 --fp8-format hybrid"}[scenario.precision]
    flags = {
        f"--tensor-model-parallel-size {parallel.tensor}": True,
        f"--pipeline-model-parallel-size {parallel.pipeline}": True,
        f"--context-parallel-size {parallel.context}": parallel.context > 1,
        f"--cp-comm-type {_CONTEXT[parallel.context_method]}": parallel.context > 1,
        f"--expert-model-parallel-size {parallel.expert}": parallel.expert > 1,
        "--sequence-parallel": parallel.sequence and parallel.tensor > 1,
        "--use-tp-pp-dp-mapping": _order(scenario) == DATA_LAST,
        f"--num-virtual-stages-per-pipeline-rank {schedule.chunks}": (
            schedule.kind == "interleaved-1f1b" and schedule.chunks > 1
        ),
        "--account-for-embedding-in-pipeline-split": parallel.stages == "ends-1" and pipeline,
        "--account-for-loss-in-pipeline-split": parallel.stages == "ends-1" and pipeline,
        f"--micro-batch-size {schedule.microbatch_size}": True,
        f"--global-batch-size {_samples(scenario)}": True,
        precision: True,
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1": (
            scenario.recompute == "full"
        ),
        "--recompute-granularity selective": scenario.recompute == "selective",
        "--use-distributed-optimizer": replicated and sharding == "zero-1",
        "--overlap-param-gather": replicated and sharding == "zero-1" and scenario.overlap.parameters,
        "--use-torch-fsdp2": replicated and fsdp,
        "--overlap-grad-reduce": replicated and gradients.overlap,
        "--grad-reduce-in-bf16": replicated and gradients.codec == "bf16",
        "--accumulate-allreduce-grads-in-fp32": replicated and gradients.codec == "fp32",
        "--tp-comm-overlap": scenario.overlap.tensor and parallel.tensor > 1,
        f"--ddp-bucket-size {int(elements)}": gradients.bucket is not None and replicated,
    }
    unsaid = {
        f"schedule.kind: {schedule.kind or schedule.file}: it runs 1F1B, plain and interleaved": (
            pipeline and schedule.kind not in ("1f1b", "interleaved-1f1b")
        ),
        "schedule.p2p: async: plain 1F1B waits for its messages there": (
            pipeline and schedule.kind == "1f1b" and schedule.p2p == "async"
        ),
        f"parallel.order: {', '.join(parallel.order)}": _order(scenario) not in (DATA_FIRST, DATA_LAST),
        f"parallel.stages: {parallel.stages}": parallel.stages not in ("even", "ends-1"),
        f"sharding: {sharding}": replicated and sharding in ("zero-2", "zero-3") and not fsdp,
    }
    return _said(flags, unsaid)


def torchtitan(scenario: Scenario) -> Said:
    """The plan for torchtitan; the choice of the model is left out."""
    parallel, schedule = scenario.parallel, scenario.schedule
    pipeline, kind = parallel.pipeline > 1, schedule.kind
    sharded = scenario.sharding in ("zero-2", "zero-3")
    policy = "never" if scenario.sharding == "zero-2" or pipeline else "always"
    by_file = pipeline and kind not in _TORCH and kind not in TWO_COPIES
    less = 1 if parallel.stages == "ends-1" else 0
    local = schedule.microbatch_size * (schedule.microbatches if pipeline else 1)
    flags = {
        f"--parallelism.data_parallel_replicate_degree {1 if sharded else parallel.data}": True,
        f"--parallelism.data_parallel_shard_degree {parallel.data if sharded else 1}": True,
        f"--parallelism.fsdp_reshard_after_forward {policy}": sharded,
        f"--parallelism.tensor_parallel_degree {parallel.tensor}": True,
        f"--parallelism.context_parallel_degree {parallel.context}": True,
        f"--parallelism.expert_parallel_degree {parallel.expert}": parallel.expert > 1,
        f"--parallelism.pipeline_parallel_degree {parallel.pipeline}": pipeline,
        f"--parallelism.pipeline_parallel_schedule {_TORCH.get(kind or '')}": pipeline and kind in _TORCH,
        "--parallelism.pipeline_parallel_schedule _PipelineScheduleRuntime": by_file,
        f"--parallelism.pipeline_parallel_schedule_csv {ORDER_FILE}": by_file,
        f"--parallelism.pipeline_parallel_first_stage_less_layers {less}": pipeline,
        f"--parallelism.pipeline_parallel_last_stage_less_layers {less}": pipeline,
        f"--parallelism.pipeline_parallel_microbatch_size {schedule.microbatch_size}": pipeline,
        f"--training.local_batch_size {local}": True,
        f"--training.global_batch_size {_samples(scenario)}": True,
        f"--activation_checkpoint.mode {'full' if scenario.recompute == 'full' else 'none'}": True,
    }
    unsaid = {
        f"schedule.kind: {kind}: a stage is on one rank only": pipeline and kind in TWO_COPIES,
        "sharding: zero-1: it shards gradients too, with fully_shard": (
            scenario.sharding == "zero-1" and _replicated(scenario)
        ),
        "sharding: none: replicas combined with other parallelism are sharded, with fully_shard": (
            scenario.sharding == "none" and parallel.data > 1 and parallel.ranks > parallel.data
        ),
        "parallel.sequence: false": parallel.tensor > 1 and not parallel.sequence,
        "recompute: selective: it chooses by operation or every n-th layer": scenario.recompute == "selective",
        "parallel.context_method: ring: keys and values are gathered, or exchanged all to all": (
            parallel.context > 1 and parallel.context_method == "ring"
        ),
        f"parallel.stages: {parallel.stages}": parallel.stages not in ("even", "ends-1"),
    }
    return _said(flags, unsaid)


def _said(flags: Mapping[str, object], unsaid: Mapping[str, object]) -> Said:
    """The texts whose conditions hold."""
    return Said(*(tuple(text for text, holds in each.items() if holds) for each in (flags, unsaid)))


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
