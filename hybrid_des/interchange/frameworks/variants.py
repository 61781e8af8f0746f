"""What differs in a model from block to block, and variants of blocks, for which flags are not written yet."""

from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_des.workload.models.kinds.transformer import Predictions

BLOCKS = "model.predictions.blocks"
KEYS = (
    "kinds", "mixer", "gate", "sinks", "value_size", "keys_values", "attention_chunk", "norms", "parallel", "beside",
    "layer_vectors",
)  # fmt: skip
OF_EXPERTS = ("shared_ffn", "shared_gate", "latent")


def unsaid_of_variants(values: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a model that no flag expresses; `values` are those of a scenario by path."""
    yield from (f"model.{key}" for key in KEYS if values.get(f"model.{key}"))
    if values.get("model.mlp") in ("geglu", "relu2"):
        yield f"model.mlp: {values['model.mlp']}"
    if values.get("model.quantised") is False:
        yield "model.quantised: false"
    if values.get("model.qk_norm") == "layer":
        yield "model.qk_norm: layer"
    experts = values.get("model.experts") or {}
    yield from (f"model.experts.{key}" for key in OF_EXPERTS if experts.get(key))
    if values.get(BLOCKS):
        yield "model.predictions: kinds and passes"


def prediction_values(predictions: int | Predictions) -> dict[str, Any]:
    """The number of tokens that are predicted further, and whether modules differ from the model's last block."""
    if isinstance(predictions, int):
        return {}
    return {"model.predictions": predictions.count * predictions.passes, BLOCKS: True}
