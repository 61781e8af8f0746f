"""What can be changed in a scenario on a page: paths as in a file, each with its value, its range and its choices.

Ranges, choices and descriptions are those of the JSON Schema, so that options of plug-ins have controls too.
"""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from hybrid_des.errors import LONGEST_LINE
from hybrid_des.files import read_catalogue
from hybrid_des.scenario.composition import value_at
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import flow_text, to_mapping
from hybrid_des.scenario.sections.plugins import PluginSection
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.units import EXAMPLES, format_bytes, format_number, format_seconds, parse_quantity

# labels by group and path; a path that a scenario does not have is left out
GROUPS: dict[str, dict[str, str]] = read_catalogue(Path(__file__).with_name("controls.yaml"))
OF_PLUGINS = {"cluster": "Links", "schedule": "Schedule", "gradients": "Gradients"}  # sections, and their group
SHARES = ("workload.recompute",)  # numbers from 0 to 1 that may also be lists
MODELLED = ("parallel.tensor", "parallel.context", "schedule.microbatch_size", "precision", "sharding")
RANGES = {"bandwidth": (1e9, 1e12), "time": (1e-7, 1e-2), "size": (1e3, 1e10), "compute": (1e12, 1e16)}
AROUND = 16  # the range of a number without a usual one: its value divided and multiplied by this
WIDEST = 64  # a usual slider of whole numbers ends here


class Control(NamedTuple):
    """One value of a scenario.

    Attributes:
        path: as in `--set`.
        label: its name on the page.
        group: the section of the page.
        kind: choice, flag, whole, share, text, or the dimension of a quantity.
        value: as written in a file.
        number: in SI base units; None for words.
        least, most: of a slider.
        choices: of a choice.
        about: what the key means.
    """

    path: str
    label: str
    group: str
    kind: str
    value: str
    number: float | None
    least: float
    most: float
    choices: list[str]
    about: str


def controls_of(scenario: Scenario, document: Document) -> list[Control]:
    """The controls of a scenario, as its document states its values or else as they follow from others."""
    values = to_mapping(scenario)
    rows = [(group, path, label) for group, paths in GROUPS.items() for path, label in paths.items()]
    rows += [row for row in _options(scenario) if row[1] not in {path for _, path, _ in rows}]
    controls = []
    for group, path, label in rows:
        schema = _schema(scenario, path)
        if schema is None or (scenario.model is None and path in MODELLED):
            continue
        value = value_at(document.value, path)
        value = value_at(values, path) if value is None else value
        if value is not None and not isinstance(value, dict):
            controls.append(_control(group, path, label, value, schema))
    short = [one for one in controls if len(one.value) <= LONGEST_LINE]  # without lists such as all links of a fabric
    return sorted(short, key=lambda control: list(GROUPS).index(control.group))


def _options(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    """Options of the plug-ins that a scenario selects."""
    for section, group in OF_PLUGINS.items():
        options = getattr(scenario, section).options
        for key in type(options).model_fields if options is not None else ():
            yield group, f"{section}.{key}", key.replace("_", " ")


def _schema(scenario: Scenario, path: str) -> Mapping[str, Any] | None:
    """The schema of a key; None if a section of the scenario is absent or does not have the key."""
    *sections, key = path.split(".")
    at: Any = scenario
    for section in sections:
        at = getattr(at, section, None)
    homes = [at, at.options] if isinstance(at, PluginSection) else [at]
    schemas = (_properties(type(home)).get(key) for home in homes if isinstance(home, BaseModel))
    return next(filter(None, schemas), None)


@cache
def _properties(section: type[BaseModel]) -> Mapping[str, Mapping[str, Any]]:
    return dict(section.model_json_schema(by_alias=True)["properties"])


def _control(group: str, path: str, label: str, value: Any, schema: Mapping[str, Any]) -> Control:
    kinds = list(_flat(schema))
    choices: list[str] = next((one["enum"] for one in kinds if "enum" in one), [])
    number = _number(value)
    kind = "share" if path in SHARES and number is not None else _kind(kinds, value)
    if kind in EXAMPLES and number is None:  # such as "300 GB/s"
        number = _quantity(value, kind)
    least, most = _range(kind, number, kinds)
    text = _written(value, kind)
    about = " ".join(str(schema.get("description", "")).split())
    return Control(path, label, group, kind, text, number, least, most, [*choices], about)


def _flat(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The alternatives of a schema."""
    if "anyOf" in schema:
        for option in schema["anyOf"]:
            yield from _flat({**{key: schema[key] for key in ("examples",) if key in schema}, **option})
    else:
        yield schema


def _kind(kinds: list[Mapping[str, Any]], value: Any) -> str:
    types = {one.get("type") for one in kinds}
    if isinstance(value, list | dict):
        return "text"
    if any("enum" in one for one in kinds):
        return "choice"
    if "boolean" in types:
        return "flag"
    if "integer" in types:
        return "whole"
    if any("maximum" in one for one in kinds):
        return "share"
    examples = [example for one in kinds for example in one.get("examples", []) if example not in ("inf", "none")]
    return next(filter(None, map(_dimension, examples)), "text")


def _dimension(example: str) -> str | None:
    """The dimension of an example such as "25 GB/s"."""
    if _quantity(example, "number") is not None:
        return "number"
    return next((kind for kind in EXAMPLES if _quantity(example, kind) is not None), None)


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
    return float(value) if known and isfinite(value) else None


def _quantity(value: Any, kind: str) -> float | None:
    try:
        return float(parse_quantity(value, kind))  # type: ignore[arg-type]
    except (ValueError, TypeError):  # inf, none
        return None


def _range(kind: str, number: float | None, kinds: list[Mapping[str, Any]]) -> tuple[float, float]:
    """The ends of a slider, which hold the value."""
    if kind == "share":
        return 0.0, 1.0
    if kind == "whole":
        limit = min((one["maximum"] for one in kinds if "maximum" in one), default=WIDEST)
        least = min((one["minimum"] for one in kinds if "minimum" in one), default=1)
        return float(least), float(min(limit, max(WIDEST, 2 * (number or 1))))
    usual = RANGES.get(kind)
    if usual is None or (number and not usual[0] <= number <= usual[1]):
        middle = number or 1.0
        return middle / AROUND, middle * AROUND
    return usual


def _written(value: Any, kind: str) -> str:
    """A value as a file states it; figures that follow from others with the units people read."""
    if isinstance(value, str) or value is None:
        return value or ""
    number = _number(value)
    if number is not None and kind == "time":
        return format_seconds(number).replace("µ", "u").replace(",", "")
    if number is not None and kind in ("size", "bandwidth"):
        return format_bytes(number) + ("/s" if kind == "bandwidth" else "")
    if number is not None and kind == "number" and abs(number) >= 1e5:
        return re.sub(r"e\+0*", "e", f"{number:.4g}")
    if number is not None and not isinstance(value, int):
        return format_number(number)
    return flow_text(value)
