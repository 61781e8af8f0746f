"""Networks as lists of layers: published ones by name, and kinds of networks to build others.

model("llama3.1-8b").parameters                        # 8030261248
model({"base": "llama3.1-405b", "layers": 8})          # the same except for the number of layers

`catalogue.yaml` holds the sizes of published models with their sources; of its entries only those asked for are parsed.
The names that a user-defined kind needs:

    from hybrid_des.workload.models import Elementwise, Gemm, Kept, Layer, Model, Parameters
    from hybrid_des.workload.models.kinds import kind

Nothing here depends on time: a layer states its operations, parameters and activations per token, and how they divide.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hybrid_des.errors import UsageError, unknown
from hybrid_des.files import parse_catalogue
from hybrid_des.options import describe
from hybrid_des.workload.models.kinds.registration import DEFAULT, make_model
from hybrid_des.workload.models.layer import Model

Values = Mapping[str, Any]


ABOUT = ("source", "context")  # what an entry says beside the options of its model

_ENTRY = re.compile(r"^(\S+):.*\n(?:(?:[ #].*)?\n)*", flags=re.MULTILINE)


@cache
def _texts() -> dict[str, str]:
    """Entries by name, not parsed yet."""
    text = Path(__file__).with_name("catalogue.yaml").read_text(encoding="utf-8")
    return {entry[1]: entry[0] for entry in _ENTRY.finditer(text)}


def names() -> list[str]:
    """All published models, sorted."""
    return sorted(_texts())


def about(name: str) -> dict[str, Any]:
    """What the catalogue says of a model beside its options: `source`, and `context` in tokens, perhaps of its base.

    Raises:
        UsageError: the name is unknown.
    """
    entry = _entry(name)
    above = {"context": about(entry["base"]).get("context")} if "base" in entry else {}
    return above | {key: entry[key] for key in ABOUT if key in entry}


def expanded(values: Values) -> dict[str, Any]:
    """Options of a model with those of its `base` filled in, the base's own base first.

    A mapping (`experts`) is filled in key by key; None removes a value.

    Raises:
        UsageError: the base is unknown, or of another kind.
    """
    own = {key: value for key, value in values.items() if key != "base"}
    base = values.get("base")
    if base is None:
        return own
    if not isinstance(base, str):
        raise UsageError(f"base: expected the name of a published model, found {describe(base)}")
    filled = expanded({key: value for key, value in _entry(base).items() if key not in ABOUT})
    kind = filled.get("kind", DEFAULT)
    if own.get("kind", kind) != kind:
        raise UsageError(f'kind: {base} is of kind "{kind}", not {describe(own["kind"])}')
    return merged(filled, own)


def model(values: str | Values) -> Model:
    """A published model, or one described by its options, its kind and optionally a `base`.

    Raises:
        UsageError: a name or option is unknown, or a value invalid.
        Refusal: the values do not fit each other.
    """
    options = expanded({"base": values} if isinstance(values, str) else values)
    return make_model(options.pop("kind", DEFAULT), options)


@lru_cache(maxsize=128)
def _entry(name: str) -> dict[str, Any]:
    if name not in _texts():
        raise UsageError(f"base: {unknown(name, _texts())}")
    entry: dict[str, Any] = parse_catalogue(_texts()[name])[name]
    return entry


def merged(below: Values, above: Values) -> dict[str, Any]:
    """Both mappings merged key by key; values of the second take precedence, and None removes a key."""
    result = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result
