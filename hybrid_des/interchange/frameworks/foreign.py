"""Files of other programs that are none of those read here: what they are, and what to give instead.

DeepSpeed's keys: deepspeed.ai/docs/config-json. Torchtitan's tables: docs of github.com/pytorch/torchtitan.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from hybrid_des.errors import one_line

_DEEPSPEED = {
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
}  # fmt: skip
_CONFIG = {"num_hidden_layers", "n_layer", "hidden_size", "n_embd", "text_config"}
_LINE = re.compile(r"(?m)^\s*(#!|torchrun\b|srun\b|python3?\b|--[a-z])")


def foreign(text: str, expected: str) -> str | None:
    """What a text is and what to do instead, in one line; None if it may be what is expected.

    Args:
        text: the content of a file.
        expected: "config.json" of a model, or "launch line".
    """
    values = _json(text)
    if values is None and (tables := _toml(text)):
        return f"TOML with {tables}; give it with --from-job if it is a job of another program"
    if values is not None and _DEEPSPEED & values.keys():
        return "a configuration of DeepSpeed; give it with --from-job, and the model's config.json with --from"
    if values is not None and "weight_map" in values:
        return "an index of weights; give the model's config.json, which is beside it"
    if expected == "launch line":
        is_config = values is not None and _CONFIG & values.keys()
        return "a model's config.json, not a launch line; give it with --from" if is_config else None
    if values is None and _LINE.search(text):
        return "a script or launch line, not a model's config.json; give it with --from-megatron"
    return None


def _json(text: str) -> Mapping[str, Any] | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _toml(text: str) -> str:
    """The names of a TOML file's tables; empty if it is none."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError):
        return ""
    tables = [key for key, value in values.items() if isinstance(value, dict)]
    return one_line(", ".join(f"[{key}]" for key in tables[:4]))
