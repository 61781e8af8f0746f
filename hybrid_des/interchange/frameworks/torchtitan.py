"""Launch lines of torchtitan.

Flags: torchtitan/config/configs.py, torchtitan/trainer.py and torchtitan/models/*/config_registry.py of release 0.3
(github.com/pytorch/torchtitan); what is recomputed is a word of its own, which ends the line. It runs the schedules of
torch.distributed.pipelining, and any order from a CSV file; `fully_shard` with or without resharding after the forward
is ZeRO-3 or ZeRO-2, over data and context ranks, in `data_parallel_replicate_degree` groups. Sizes of a model are no
flags: a registered configuration has them.
Stages per rank follow from the layers per stage, rounded up, with the ends' less layers added; schedules of single
stages need one, others, orders from a file too, at least two (distributed/pipeline_parallel.py, `pipeline_llm`).
Gradients are reduced in fp32 by default.
"""

from collections.abc import Iterator

from hybrid_des.interchange.frameworks.launch_line import Launch, Values, torchrun
from hybrid_des.interchange.frameworks.scenario_file import published_model, values_of
from hybrid_des.interchange.frameworks.variants import unsaid_of_layers, unsaid_of_variants
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, load
from hybrid_des.workload.models.kinds.transformer import Transformer
from hybrid_des.workload.models.layer import OPS

ORDER_FILE = "order.csv"  # as `--out` and `hybrid-des search --order` write it
SCHEDULES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved-1f1b": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
SINGLE = ("1f1b", "gpipe")  # one stage per rank
TWO_COPIES = ("chimera", "dualpipe")
REGISTERED = {  # published model → module, configuration
    "llama3-8b": ("llama3", "llama3_8b"), "llama3.1-8b": ("llama3", "llama3_8b"),
    "llama3-70b": ("llama3", "llama3_70b"), "llama3.1-70b": ("llama3", "llama3_70b"),
    "llama3.1-405b": ("llama3", "llama3_405b"), "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
}  # fmt: skip
_SIZES = {  # of a transformer, with the names of torchtitan's model configurations
    "layers": "n_layers", "hidden": "dim", "heads": "n_heads", "kv_heads": "n_kv_heads", "ffn": "hidden_dim",
    "vocab": "vocab_size",
}  # fmt: skip


def torchtitan(scenario: Source) -> Launch:
    """The line that starts this scenario's training."""
    scenario = load(scenario)
    values = values_of(scenario)
    module, configuration = REGISTERED.get(_published(scenario), ("YOURS", "YOURS"))
    ranks, per_node = scenario.parallel.ranks, scenario.cluster.gpus_per_node
    named = (f"--module {module}", f"--config {configuration}")
    policy = {"full": "full", (OPS,): "selective"}.get(scenario.recompute, "none")
    flags = (*named, *_flags(scenario, values), "--training.steps 20", f"activation-checkpoint:{policy}")
    program = f"{torchrun(ranks, per_node)} -m torchtitan.train"
    unsaid = [*_unsaid(scenario, values), *_unsaid_ways(scenario, values)]
    unsaid += [*unsaid_of_layers(values), *unsaid_of_variants(values)]
    return Launch({}, program, flags, tuple(unsaid), tuple(_refused(scenario)))


def _published(scenario: Scenario) -> str:
    """The name of a published model, where only its sequence and the stack that it is written in may differ."""
    if scenario.model is None or not isinstance(scenario.model.options, Transformer):
        return ""
    published = published_model({name: value for name, value in scenario.model.options if name != "written"})
    return published if isinstance(published, str) else str(published.get("base", ""))


def _flags(scenario: Scenario, values: Values) -> Iterator[str]:
    parallel, schedule = scenario.parallel, scenario.schedule
    pipeline, kind = parallel.pipeline > 1, schedule.kind
    sharded, shards = scenario.sharding in ("zero-2", "zero-3"), scenario.shards
    gathered = scenario.sharding == "zero-2" or shards.reshard is False or (pipeline and not shards.reshard)
    groups = parallel.data * parallel.context // shards.ranks if shards.ranks else 1
    by_file = pipeline and kind not in SCHEDULES and kind not in TWO_COPIES
    less = 1 if parallel.stages == "ends-1" else 0
    local = schedule.microbatch_size * (schedule.microbatches if pipeline else 1)
    each = _layers_per_stage(scenario, values)
    flags = {
        f"--training.seq_len {values.get('model.sequence')}": "model.sequence" in values,
        f"--parallelism.data_parallel_replicate_degree {groups if sharded else parallel.data}": True,
        f"--parallelism.data_parallel_shard_degree {parallel.data // groups if sharded else 1}": True,
        f"--parallelism.fsdp_reshard_after_forward {'never' if gathered else 'always'}": sharded,
        f"--parallelism.tensor_parallel_degree {parallel.tensor}": True,
        "--parallelism.no_enable_sequence_parallel": parallel.tensor > 1 and not parallel.sequence,
        f"--parallelism.context_parallel_degree {parallel.context}": True,
        f"--parallelism.expert_parallel_degree {parallel.expert}": parallel.expert > 1,
        f"--parallelism.pipeline_parallel_degree {parallel.pipeline}": pipeline,
        f"--parallelism.pipeline_parallel_schedule {SCHEDULES.get(kind or '')}": pipeline and kind in SCHEDULES,
        f"--parallelism.pipeline_parallel_layers_per_stage {each}": each is not None,
        "--parallelism.pipeline_parallel_schedule _PipelineScheduleRuntime": by_file,
        f"--parallelism.pipeline_parallel_schedule_csv {ORDER_FILE}": by_file,
        f"--parallelism.pipeline_parallel_first_stage_less_layers {less}": pipeline,
        f"--parallelism.pipeline_parallel_last_stage_less_layers {less}": pipeline,
        f"--parallelism.pipeline_parallel_microbatch_size {schedule.microbatch_size}": pipeline,
        f"--training.local_batch_size {local}": True,
        f"--training.global_batch_size {values['batch']}": True,
    }
    return (flag for flag, holds in flags.items() if holds)


def _layers_per_stage(scenario: Scenario, values: Values) -> int | None:
    """The layers per stage from which torchtitan finds this number of stages; None without one."""
    layers, stages = values.get("model.layers"), scenario.parallel.pipeline * scenario.schedule.chunks
    if layers is None or scenario.parallel.pipeline == 1 or scenario.schedule.kind in TWO_COPIES:
        return None
    weighed = int(layers) + (2 if scenario.parallel.stages == "ends-1" else 0)
    each = -(-weighed // stages)
    return each if -(-weighed // each) == stages else None


def _refused(scenario: Scenario) -> Iterator[str]:
    """What torchtitan does not accept together."""
    schedule, pipeline = scenario.schedule, scenario.parallel.pipeline > 1
    name = SCHEDULES.get(schedule.kind or "", "_PipelineScheduleRuntime")
    if pipeline and schedule.kind not in (*SINGLE, *TWO_COPIES) and schedule.chunks == 1:
        yield f"--parallelism.pipeline_parallel_schedule {name}: expected at least 2 stages per rank"


def _unsaid(scenario: Scenario, values: Values) -> Iterator[str]:
    parallel, schedule, shards, optimizer = scenario.parallel, scenario.schedule, scenario.shards, scenario.optimizer
    pipeline = parallel.pipeline > 1
    replicated = parallel.data * parallel.context > 1
    sizes = {theirs: values.get(f"model.{ours}") for ours, theirs in _SIZES.items()}
    listed = ", ".join(f"{name}={size}" for name, size in sizes.items() if size is not None)
    lines = {
        f"model: register a configuration with {listed or 'its sizes'}": _published(scenario) not in REGISTERED,
        f"schedule.kind: {schedule.kind}: a stage is on one rank only": pipeline and schedule.kind in TWO_COPIES,
        "sharding: zero-1: it shards gradients too, with fully_shard": scenario.sharding == "zero-1" and replicated,
        "sharding: none: replicas combined with other parallelism are sharded, with fully_shard": (
            scenario.sharding == "none" and parallel.data > 1 and parallel.ranks > parallel.data
        ),
        f"shards.ranks: {shards.ranks}: groups within the context ranks of a replica": (
            shards.ranks is not None and shards.ranks % parallel.context > 0
        ),
        f"shards.outside: {shards.outside}: groups are replicas": shards.outside != "none",
        f"optimizer.kind: {optimizer.kind}: a configuration has Adam": optimizer.kind != "adam",
        "optimizer.state": optimizer.state_bytes != optimizer.model_copy(update={"state": None}).state_bytes,
        f"precision: {scenario.precision}: a converter of the configuration": (
            scenario.model is not None and scenario.precision != "bf16"
        ),
        f"recompute: {_words(scenario.recompute)}: it chooses by operation or every n-th layer": (
            scenario.recompute not in ("none", "full", (OPS,))
        ),
        f"recompute_layers: {scenario.recompute_layers}": scenario.recompute_layers is not None,
        f"parallel.context_method: {parallel.context_method}: keys and values are gathered": (
            parallel.context > 1 and parallel.context_method != "all-gather"
        ),
        f"parallel.stages: {parallel.stages}": parallel.stages not in ("even", "ends-1"),
        f"schedule.chunks: {schedule.chunks}: no number of layers per stage gives so many stages": (
            pipeline and schedule.chunks > 1 and _layers_per_stage(scenario, values) is None
        ),
    }
    return (line for line, holds in lines.items() if holds)


def _unsaid_ways(scenario: Scenario, values: Values) -> Iterator[str]:
    """How ranks communicate, and what hosts hold, where no flag says it."""
    parallel, gradients = scenario.parallel, scenario.gradients
    replicated, experts = parallel.data * parallel.context > 1, bool(values.get("model.experts"))
    lines = {
        "gradients.overlap: false: it reduces gradients during the backward": replicated and not gradients.overlap,
        f"gradients.codec: {gradients.codec}: it reduces gradients in fp32": replicated and gradients.codec != "fp32",
        "overlap.tensor: with --compile.enable and --compile.enable_async_tensor_parallel": (
            parallel.tensor > 1 and scenario.overlap.tensor
        ),
        "experts.dispatcher: per-node": experts and parallel.expert > 1 and scenario.experts.dispatcher == "per-node",
        "experts.streams": experts and scenario.experts.streams,
        "experts.placement": scenario.experts.moved,
        "experts.capacity_factor": scenario.experts.capacity_factor is not None,
        "experts.delay_weight": experts and scenario.experts.delay_weight,
        "offload.optimizer: with weights and gradients, --training.enable_cpu_offload": scenario.offload.optimizer,
        "offload.parameters: with the optimizer's state, the same flag": scenario.offload.parameters,
        "offload.activations": scenario.offload.activations,
        "operators.mlp_tile": scenario.operators.mlp_tile,
        f"cuda_graphs: {scenario.cuda_graphs}": scenario.cuda_graphs != "none",
    }
    return (line for line, holds in lines.items() if holds)


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
