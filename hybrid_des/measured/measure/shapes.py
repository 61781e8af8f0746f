"""The sizes of a dense transformer on one tensor rank, as far as one is measured in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybrid_des.errors import Refusal, UsageError, unknown
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load
from hybrid_des.workload import models
from hybrid_des.workload.models.kinds.transformer import Transformer

NOT_DONE = (
    "latent", "experts", "post_norm", "qk_norm", "pooler", "predictions", "token_types", "kinds", "mixer", "gate",
    "sinks", "value_size", "keys_values", "attention_chunk", "norms", "parallel", "layer_vectors",
)  # fmt: skip


class Shape(Transformer):
    """Sizes; those that tensor ranks divide are a rank's share: heads, kv_heads, ffn and vocab."""

    kv_heads: int
    head_size: int
    ffn: int


def shape_of(scenario: Scenario) -> Shape:
    """The sizes of a scenario's model on each of its tensor ranks.

    Raises:
        Refusal: it has something that is not measured.
    """
    options: Any = scenario.model.options if scenario.model is not None else None
    if not isinstance(options, Transformer):
        raise Refusal("a step is measured of transformers only")
    if given := [name for name in NOT_DONE if getattr(options, name)]:
        raise Refusal(f"a step is not measured of models with {given[0]}")
    if options.mlp not in ("gelu", "swiglu") or not options.ffn:
        raise Refusal("a step is measured of models with mlp gelu or swiglu only")
    if options.attention != "flash" or options.pytorch:
        raise Refusal("a step is measured with flash attention and fused projections only")
    tensor = scenario.parallel.tensor
    shared = options.kv_heads or options.heads
    for what, size in (("heads", options.heads), ("kv_heads", shared), ("ffn", options.ffn), ("vocab", options.vocab)):
        if size % tensor:
            raise Refusal(f"{size} {what} are not divisible by {tensor} tensor ranks")
    share = {
        "heads": options.heads // tensor, "kv_heads": shared // tensor, "head_size": options.head,
        "ffn": options.ffn // tensor, "vocab": options.vocab // tensor,
    }  # fmt: skip
    return Shape.model_construct(**{**dict(options), **share})


def model_of(name: str) -> tuple[dict[str, Any], int]:
    """The section `model` of a published model or of a scenario's file, and the samples of a micro-batch.

    Raises:
        UsageError: there is neither, or the scenario has no model.
        ScenarioError: the file is wrong.
    """
    if name in models.names():
        return {"base": name}, 1
    if Path(name).suffix not in (".yaml", ".yml") and not Path(name).exists():
        raise UsageError(f"--model: {unknown(name, models.names(), 'model')}")
    scenario = load(name)
    if scenario.model is None:
        raise UsageError(f"--model: {name}: has no `model`")
    section: Any = to_mapping(scenario)["model"]
    return dict(section), scenario.schedule.microbatch_size


def scenario_of_model(model: dict[str, Any], samples: int, tensor: int, data: int = 1, **sections: Any) -> Scenario:
    """A scenario that trains a model with one micro-batch per step and replica.

    Raises:
        ScenarioError: tensor ranks cannot divide it.
    """
    return load({
        "model": model, "parallel": {"tensor": tensor, "data": data},
        "schedule": {"microbatch_size": samples, "microbatches": 1}, "cluster": {"gpus_per_node": tensor * data},
        **sections,
    })  # fmt: skip
