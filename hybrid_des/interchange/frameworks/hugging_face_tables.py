"""What is known of a `config.json`: names of its settings, and what families of transformers have without a setting.

The tables are in `hugging_face.yaml`. A setting that changes layers and is not read is an error; one that is in no
table is named as not understood.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.files import read_catalogue
from hybrid_des.interchange.frameworks.without_effect import without_effect


class Family(NamedTuple):
    """A family of models.

    Attributes:
        values: of a model, beside its sizes; Llama's where they are missing.
        tied: whether both ends share a matrix where `tie_word_embeddings` is missing.
        windows: which layers have the sliding window where no setting says so: "all", "every second", or None.
        window: its size where `sliding_window` is missing.
        settings: of a `config.json`, which count where they are missing.
        beside: what its layers have that no setting names and that is not described here, one line each.
    """

    values: Mapping[str, Any] = {}
    tied: bool = False
    windows: str | None = None
    window: int | None = None
    settings: Mapping[str, Any] = {}
    beside: Sequence[str] = ()


_TABLES = read_catalogue(Path(__file__).with_name("hugging_face.yaml"))
_NAMES = ("sizes", "experts", "latent", "mamba", "delta", "vision")
SIZES, EXPERTS, LATENT, MAMBA, DELTA, VISION = (
    _TABLES[name] for name in _NAMES
)  # ours → theirs, the first that is there
FAMILIES: Mapping[str, Family] = {name: Family(**facts) for name, facts in _TABLES["families"].items()}
REFUSED: Mapping[str, str] = _TABLES["refused"]
IDLE = without_effect("hugging_face")
_LAYERS = re.compile("|".join(_TABLES["changes_layers"]))


def is_off(name: str, value: Any) -> bool:
    """Whether a setting has a value with which it changes nothing."""
    if isinstance(value, bool):
        return not value
    if name == "attn_type_list":
        return isinstance(value, list) and all(one == 1 for one in value)  # MiniMax: attention in every layer
    neutral = _TABLES["neutral"].get(name, [])
    return (
        value is None or value in (0, -1, "", [], {}) or value in (neutral if isinstance(neutral, list) else [neutral])
    )


def changes_layers(name: str) -> bool:
    """Whether a setting of this name makes other layers."""
    return _LAYERS.fullmatch(name) is not None
