"""Sharding over the ranks that hold the same parameters, and in groups of them, as flags of Megatron-LM.

Flags: megatron/training/arguments.py, megatron/core/distributed (core 0.15). ZeRO-1 is its distributed optimizer.
ZeRO-2 is Megatron-FSDP with `optim_grads`; ZeRO-3 is torch's FSDP2, or Megatron-FSDP with `optim_grads_params` where
ranks form groups or a pipeline, each of whose micro-batches gathers weights again. The number of groups is that of
`--num-distributed-optimizer-instances`; `--outer-dp-sharding-strategy` says what is divided among them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hybrid_des.errors import unknown
from hybrid_des.interchange.frameworks.launch_line import Given, Rule, Values
from hybrid_des.interchange.frameworks.megatron_optimizer import is_layer_wise
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN

FUSION, META = "--no-gradient-accumulation-fusion", "--ckpt-format"
_STRATEGY, _INSTANCES, _OUTER = (
    "--data-parallel-sharding-strategy", "--num-distributed-optimizer-instances", "--outer-dp-sharding-strategy",
)  # fmt: skip
_STRATEGIES = {"no_shard": "none", "optim": "zero-1", "optim_grads": "zero-2", "optim_grads_params": "zero-3"}
_OUTSIDE = {"no_shard": "none", "optim": "zero-1"}
_KEPT = "--torch-fsdp2-no-reshard-after-forward"
_OVER_ALL = (
    "the optimizer's state is divided over all replicas here, not within each instance: too little memory, and longer"
    " rings"
)
_LAYERED = ("zero-2", "zero-3")


def is_mixed(values: Values) -> bool:
    """Whether gradients or weights are sharded in a pipeline without being gathered again, for which no flags are."""
    again = values["sharding"] == "zero-3" and values["shards.reshard"]
    return values["sharding"] in _LAYERED and not again and bool(values["parallel.pipeline"] > 1)


def _write(values: Values) -> Iterator[str]:
    sharding = values["sharding"]
    if is_mixed(values):
        return
    if sharding == "zero-1" and not _divides_matrices(values):
        yield "--use-distributed-optimizer"
    elif sharding in _LAYERED and not _by_torch(values):
        strategy = next(word for word, level in _STRATEGIES.items() if level == sharding)
        yield f"--use-megatron-fsdp {_STRATEGY} {strategy} {FUSION} {META} fsdp_dtensor"
        yield "--use-distributed-optimizer"
        yield from _write_groups(values)
    elif sharding == "zero-3":
        yield f"--use-torch-fsdp2 {FUSION} {META} torch_dist"
        if values["shards.reshard"] is False:
            yield _KEPT
    if values["gradients.fused"] is False and sharding in ("none", "zero-1"):
        yield FUSION


def _divides_matrices(values: Values) -> bool:
    """Whether Muon's matrices are divided among replicas, which its own name says."""
    muon = values["optimizer"].iterations(values["sharding"])
    return muon is not None and muon.layout == "layer-wise"


def _by_torch(values: Values) -> bool:
    return values["sharding"] == "zero-3" and values["shards.ranks"] is None and values["parallel.pipeline"] == 1


def _write_groups(values: Values) -> Iterable[str]:
    if values["shards.ranks"] is None:
        return ()
    groups = values["parallel.data"] * values["parallel.context"] // values["shards.ranks"]
    outer = next(word for word, level in _OUTSIDE.items() if level == values["shards.outside"])
    return (f"{_INSTANCES} {groups} {_OUTER} {outer}",)


def unsaid_of_sharding(values: Values) -> Iterator[str]:
    """What no flag expresses of sharding."""
    if is_mixed(values):
        yield f"sharding: {values['sharding']} in a pipeline"
    if values["shards.reshard"] is False and not (is_mixed(values) or _by_torch(values)):
        yield "shards.reshard: false: Megatron-FSDP gives weights back after each use"


def sharding_of(given: Given) -> str:
    """What is sharded."""
    strategy = given.text(_STRATEGY)
    sharding = "zero-1" if "--use-distributed-optimizer" in given or is_layer_wise(given) else "none"
    if "--use-megatron-fsdp" in given:
        if strategy not in (None, *_STRATEGIES):
            raise given.error(_STRATEGY, f"expected one of {', '.join(_STRATEGIES)}")
        sharding = _STRATEGIES[strategy or "no_shard"]
    sharding = "zero-3" if "--use-torch-fsdp2" in given else sharding
    stage = given.number("--zero-stage", least=0)  # of Megatron-DeepSpeed
    return (f"zero-{stage}" if stage else "none") if "--deepspeed" in given else sharding


def _read(given: Given) -> Values:
    separately, sharding = FUSION in given, sharding_of(given)
    given.words(META)
    given.number(_INSTANCES)
    outer, kept = given.text(_OUTER), _KEPT in given
    if outer is not None and outer not in _OUTSIDE:
        raise given.error(_OUTER, unknown(outer, _OUTSIDE))
    if "--deepspeed" in given:
        return {"sharding": sharding, "gradients.pad": None, "gradients.fused": None}
    pad = True if sharding == "zero-1" else None  # as its optimizer does
    fused = False if separately and sharding in ("none", "zero-1") else None  # the others assert it
    values: dict[str, Any] = {"sharding": sharding, "gradients.pad": pad, "gradients.fused": fused}
    again = sharding == "zero-3" and (given.number("--pipeline-model-parallel-size") or 1) > 1
    if again or ("--use-torch-fsdp2" in given and kept):
        values["shards.reshard"] = again
    return values


def groups_of(given: Given, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The groups in which ranks shard, by path, once the number of replicas is known."""
    if _INSTANCES in given.aside:
        yield "shards.ranks", UNKNOWN
    groups, data, context = given.number(_INSTANCES) or 1, values["parallel.data"], values["parallel.context"]
    if groups == 1:
        return
    layered = values["sharding"] in _LAYERED and (values["parallel.pipeline"] == 1 or values.get("shards.reshard"))
    if not layered:
        given.unmodelled[_INSTANCES] = _OVER_ALL
        return
    if UNKNOWN in (data, context):
        yield "shards.ranks", UNKNOWN
    elif data * context % groups:
        raise given.error(_INSTANCES, f"{data * context} data and context ranks cannot form {groups} groups")
    else:
        yield "shards.ranks", data * context // groups
    if given.text(_OUTER) == "optim":
        yield "shards.outside", "zero-1"


SHARDING = Rule(_write, _read)
