"""Export of scenarios: as a plain mapping with all defaults, as YAML, and the format as JSON Schema."""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import inf
from pathlib import Path

import yaml
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaValue, models_json_schema

from hybrid_des.cluster.link_figures import LinkFigures
from hybrid_des.cluster.operator_table import OperatorTable
from hybrid_des.cluster.time_table import CollectiveTable, TimeTable
from hybrid_des.options import Options, WrittenNone, mark_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.cluster import Cluster, InfiniBand, NodeKind
from hybrid_des.scenario.sections.efficiency import Efficiency
from hybrid_des.scenario.sections.plugins import PluginSection
from hybrid_des.workload.lengths import LengthTable

_WIDTH = 120  # columns of YAML
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

# the schema of the keys of a file that are resolved before a single scenario is validated
_FILE_KEYS = Path(__file__).with_name("file_keys.json")


def to_mapping(scenario: BaseModel) -> dict[str, object]:
    """Convert a scenario, or a section of one, to plain values in SI base units.

    From those of a scenario, `scenario_from` restores an equal one. Defaults are included, absent values left out. A
    fraction without a finite decimal stays a `Fraction`.
    """
    return {name: _plain(item) for name, item in _items_of(scenario).items() if item is not None}


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Fraction):
        return _number(value)
    if isinstance(value, TimeTable | CollectiveTable | OperatorTable | LengthTable):
        return value.source
    return str(value) if isinstance(value, Path) else value


def _items_of(section: BaseModel) -> dict[str, object]:
    """The keys of a section as a file states them; None for values that are derived when the file is read."""
    items = _named_as_in_files(section)
    if isinstance(section, PluginSection):  # options share the section's level
        del items["options"]
        items |= {**to_mapping(section.options or Options()), **section.unread}
    workload = section.workload if isinstance(section, Scenario) and section.numerics else None
    if workload and "parameters" not in workload.model_fields_set:  # counted from the model
        items["workload"] = workload.model_copy(update={"parameters": None})
    if isinstance(section, LinkFigures) and section.table is not None:  # replaced by the table
        items.update(bandwidth=None, latency=None)
    return items


def _named_as_in_files(section: BaseModel) -> dict[str, object]:
    """The fields of a section by their names in files, with the word that stands for None where there is one."""
    fields = type(section).model_fields
    own = {field.alias or name: getattr(section, name) for name, field in fields.items()}
    given = own | (section.model_extra or {})
    marks = {name: mark_of(field, WrittenNone) for name, field in fields.items()}
    words = {name: mark.word for name, mark in marks.items() if mark is not None}
    return {name: words.get(name) if item is None else item for name, item in given.items()}


def _number(value: Fraction) -> int | float | str | Fraction:
    """The simplest form that reads back exactly."""
    if value.denominator == 1:
        return value.numerator
    if Fraction(repr(float(value))) == value:
        return float(value)
    longest = value.denominator.bit_length()  # a finite decimal has fewer decimal places
    digits = next((digits for digits in range(longest) if pow(10, digits, value.denominator) == 0), None)
    return value if digits is None else f"{value.numerator * 10**digits // value.denominator}e-{digits}"


def _subclasses(section: type[PluginSection]) -> Iterator[type[PluginSection]]:
    """Those of a section, and theirs; private ones are not of files."""
    for below in section.__subclasses__():
        if not below.__name__.startswith("_"):
            yield below
            yield from _subclasses(below)


def json_schema() -> JsonSchemaValue:
    """The JSON Schema of the scenario file, with the names and options registered at the time of the call."""
    choosing = [*_subclasses(PluginSection)]
    entries = [entry for one in choosing for entry in map(one.plugins.find, one.plugins.names())]
    kinds: set[type[BaseModel]] = {entry.options for entry in entries if entry.options is not None}
    models: list[type[BaseModel]] = [Scenario, *sorted(kinds, key=repr)]
    references, schema = models_json_schema([(model, "validation") for model in models])
    definitions = schema["$defs"]
    name_of = {model: reference["$ref"].rpartition("/")[2] for (model, _), reference in references.items()}
    described: dict[type[BaseModel] | None, JsonSchemaValue] = {
        model: definitions.pop(name_of[model]) for model in models
    }
    for section in choosing:
        if section.__name__ not in definitions:
            continue  # no section of a file: a study changes one for itself
        properties = definitions[section.__name__]["properties"]
        del properties["options"]
        for key, readers in section.plugins.readers().items():
            parts = {name: described[section.plugins.find(name).options]["properties"][key] for name in readers}
            properties[key] = _joined(parts)
    for model in (Cluster, NodeKind, InfiniBand, Efficiency):  # `defaults` fills these in
        definitions[model.__name__].pop("required", None)
    return _whole({**described[Scenario], "$defs": definitions})


def _whole(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Add the keys of files; with `base`, `sweep` or `jobs`, required keys may come from elsewhere."""
    schema["required"].remove("cluster")
    schema["properties"] |= json.loads(_FILE_KEYS.read_text(encoding="utf-8"))
    definitions = schema["$defs"]
    given = {"required": definitions["Workload"].pop("required")}
    needed = {"workload": {"anyOf": [given, {"required": ["durations"]}, {"required": ["trace"]}]}}
    definitions["Schedule"].pop("required")  # `defaults` fills it in, except in a pipeline
    ordered = {"schedule": {"anyOf": [{"required": ["kind"]}, {"required": ["file"]}]}}
    several = {"required": ["pipeline"], "properties": {"pipeline": {"minimum": 2}}}
    traced = {"required": ["workload"], "properties": {"workload": {"required": ["trace"]}}}
    schema["if"] = {"anyOf": [{"required": [key]} for key in ("base", "sweep", "jobs")]}
    one_of = [{"required": ["workload"]}, {"required": ["model"]}]
    schema["else"] = {
        "properties": needed,
        "oneOf": one_of,
        "if": {"required": ["parallel"], "properties": {"parallel": several}},
        "then": {"anyOf": [traced, {"required": schema.pop("required"), "properties": ordered}]},
    }
    tidy = _tidied(schema)
    tidy["$defs"] = {name: tidy["$defs"][name] for name in sorted(_needed(tidy["properties"], tidy["$defs"]))}
    return {"$schema": _DIALECT, "title": "hybrid_des scenario", **tidy}


def _needed(node: object, definitions: Mapping[str, object], known: frozenset[str] = frozenset()) -> frozenset[str]:
    """Names of the definitions that a part of the schema refers to, transitively."""
    if isinstance(node, list | dict):
        for item in node.values() if isinstance(node, dict) else node:
            known = _needed(item, definitions, known)
    name = node.get("$ref", "").rpartition("/")[2] if isinstance(node, dict) else ""
    return _needed(definitions[name], definitions, known | {name}) if name and name not in known else known


def _joined(parts: Mapping[str, JsonSchemaValue]) -> JsonSchemaValue:
    """The schema of an option of one or several plug-ins: which of them read it, and the default if they agree."""
    texts: dict[str, list[str]] = {}
    kinds, defaults = [], []
    for name, part in parts.items():
        rest = {key: value for key, value in part.items() if key not in ("title", "description", "default")}
        texts.setdefault(part.get("description", ""), []).append(name)
        defaults.append(part.get("default"))
        if rest not in kinds:
            kinds.append(rest)
    joined = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    described = "\n\n".join(": ".join(filter(None, (", ".join(names), text))) for text, names in texts.items())
    same = {"default": defaults[0]} if all(default == defaults[0] for default in defaults) else {}
    return {**joined, "description": described, **same}


def _tidy(node: object) -> object:
    """Remove pydantic's redundancies: titles, and null as an alternative of optional values."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    return _tidied(node) if isinstance(node, dict) else node


def _tidied(node: JsonSchemaValue) -> JsonSchemaValue:
    tidy: JsonSchemaValue = {key: _tidy(item) for key, item in node.items() if key != "title" or isinstance(item, dict)}
    branches = [branch for branch in tidy.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) == 1:
        del tidy["anyOf"]
        tidy = {**branches[0], **tidy}
    elif branches:
        tidy["anyOf"] = branches
    default = tidy.get("default", ...)
    if default is None:
        del tidy["default"]
    elif isinstance(default, str) and default.isdecimal():
        tidy["default"] = int(default)  # pydantic writes fractions as strings
    return tidy


def yaml_text(values: Mapping[str, object]) -> str:
    """The text of a scenario file with these plain values."""
    return yaml.safe_dump(readable(values), sort_keys=False, allow_unicode=True, width=_WIDTH)


def flow_text(value: object) -> str:
    """A plain value in one line, as `--set` reads it."""
    text = yaml.safe_dump(readable(value), default_flow_style=True, sort_keys=False, allow_unicode=True, width=inf)
    return text.removesuffix("...\n").strip()


def readable(value: object) -> object:
    """Plain values with numbers as YAML writes them."""
    if isinstance(value, Mapping):
        return {key: readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return value
