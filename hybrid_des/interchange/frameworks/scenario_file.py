"""The text of a scenario made from elsewhere, with what is unknown marked in it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from hybrid_des import hardware as catalogue
from hybrid_des.interchange.frameworks.rules import Imported, nested
from hybrid_des.scenario import fewest, scenario_of
from hybrid_des.scenario.composition import override
from hybrid_des.scenario.strict_yaml import Document

UNKNOWN = "UNKNOWN"
LONGEST = 100  # characters of a section in one line
_ORDER = (
    "name", "cluster", "model", "parallel", "batch", "schedule", "precision", "recompute", "recompute_layers",
    "sharding", "overlap",
)  # fmt: skip
_NEEDED = ("layers", "hidden", "heads", "ffn", "vocab", "sequence")  # sizes without which there is no transformer


def scenario_file(name: str, imported: Imported, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The text, and the paths of values that are unknown.

    Raises:
        ScenarioError: values do not fit each other, or an override is wrong.
    """
    values = nested(imported.values)
    if isinstance(values.get("model"), dict) and "base" not in values["model"]:
        values["model"] = {**dict.fromkeys(_NEEDED, UNKNOWN), **values["model"]}
    document = Document({"name": name, **values}, name)
    override(document, overrides)
    unknown = [*_unknown(document.value, "")]
    stated = document.value
    if not unknown:
        scenario_of(document)  # with the place of an override in an error
        stated = fewest(stated)
    stated["cluster"] = {"gpu": catalogue.DEFAULT, **stated.get("cluster", {})}
    notes = {"assumed": imported.assumed, "not understood": imported.unread, "unknown": unknown}
    lines = [f"# {what}: {line}" for what, listed in notes.items() for line in listed]
    blocks = [_block({key: stated[key]}) for key in sorted(stated, key=_place)]
    return "".join([*(f"{line}\n" for line in lines), "\n" if lines else "", *blocks]), unknown


def _place(key: str) -> int:
    return _ORDER.index(key) if key in _ORDER else len(_ORDER)


def _block(values: Mapping[str, Any]) -> str:
    """One key with its values; a section in a single line, if it is short."""
    ((key, value),) = values.items()
    if isinstance(value, dict):
        line = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, allow_unicode=True, width=10**6)
        if len(line) < LONGEST:
            return f"{key}: {line}"
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


def _unknown(values: Mapping[str, Any], at: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _unknown(value, f"{at}{key}.")
        elif value == UNKNOWN:
            yield f"{at}{key}"
