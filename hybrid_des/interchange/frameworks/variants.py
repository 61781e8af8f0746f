"""Variants of blocks for which flags are not written yet."""

from collections.abc import Iterator, Mapping
from typing import Any

MODULES = "model.predictions.modules"
KEYS = (
    "value_size", "keys_values", "attention_chunk", "norms", "parallel", "beside", "layer_vectors", "frozen",
    "adapters",
)  # fmt: skip
_OF_KINDS, _OF_EXPERTS = ("kinds", "mixer", "gate", "sinks"), ("shared_ffn", "shared_gate", "latent")


def unsaid_of_variants(values: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a model that no flag expresses; `values` are those of a scenario by path."""
    yield from (f"model.{key}" for key in KEYS if values.get(f"model.{key}"))
    stated = {"mlp": "geglu", "quantised": False, "qk_norm": "layer"}
    yield from (f"model.{key}: {str(one).lower()}" for key, one in stated.items() if values.get(f"model.{key}") == one)


def unsaid_of_layers(values: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a model that flags of Megatron-LM express, and no others."""
    yield from (f"model.{key}" for key in _OF_KINDS if values.get(f"model.{key}"))
    if values.get("model.mlp") == "relu2":
        yield "model.mlp: relu2"
    experts = values.get("model.experts") or {}
    yield from (f"model.experts.{key}" for key in _OF_EXPERTS if experts.get(key))
    if values.get(MODULES):
        yield "model.predictions: kinds and passes"
