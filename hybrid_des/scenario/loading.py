"""From a file or a mapping to a `Scenario`: read, override, refuse, validate, and say all that is wrong at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hybrid_des.errors import ScenarioError
from hybrid_des.registry import unknown
from hybrid_des.scenario.availability import ONLY, refusal
from hybrid_des.scenario.base import anchor, with_base
from hybrid_des.scenario.model import Scenario
from hybrid_des.scenario.overrides import override
from hybrid_des.scenario.problem import Problem, Problems
from hybrid_des.scenario.strict_yaml import Document, KeyPath
from hybrid_des.scenario.values import describe

# Stands in for a required value that is missing or wrong, so that what else is wrong can still be found.
_STAND_IN: Mapping[tuple[str, str], Any] = {
    ("schedule", "microbatches"): 1,
    ("workload", "forward"): 0,
    ("workload", "backward"): 0,
}


def load(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario file; `overrides` are texts such as "parallel.pipeline=8".

    Raises:
        ScenarioError: one line for each thing that is wrong: file, line, path, and what would be right.
    """
    return scenario_of(read_scenario(path, overrides))


def scenario_from(mapping: Mapping[str, Any], source: str = "scenario") -> Scenario:
    """Make a scenario from plain values, as a file would hold them; numbers may also be `Fraction`.

    Raises:
        ScenarioError: one line for each thing that is wrong; `source` opens it.
    """
    return scenario_of(Document(copy.deepcopy(dict(mapping)), source))


def read_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Document:
    """Read a scenario file, what its `base` gives and its overrides, with no further check.

    A file with a `sweep` makes many scenarios; `hybrid_des.sweep` takes it from here.

    Raises:
        ScenarioError: the file cannot be read, is not strict YAML, or an override does not fit it.
    """
    document = with_base(path)
    override(document, overrides)
    anchor(document, Path(path).parent, "--set")
    return document


def scenario_of(document: Document) -> Scenario:
    """Validate what a document says.

    Raises:
        ScenarioError: one line for each thing that is wrong.
    """
    values = copy.deepcopy(document.value)
    problems = _refuse(values)
    try:
        scenario = Scenario.model_validate(values)
    except ValidationError as error:
        problems += [problem for problem in _problems(error) if not problem.needs]
        problems += _misfits(values, [problem.path for problem in problems])
        raise ScenarioError(_lines(document, problems)) from None
    if problems:
        raise ScenarioError(_lines(document, problems))
    return scenario


def _lines(document: Document, problems: Sequence[Problem]) -> list[str]:
    """One line for each problem, in the order of the file."""
    order = {path: number for number, path in enumerate(document.places)}
    keys = list(dict.fromkeys((problem.path, problem.message) for problem in problems))

    def position(key: tuple[KeyPath, str]) -> int:
        return next((order[key[0][:n]] for n in range(len(key[0]), -1, -1) if key[0][:n] in order), 0)

    return [document.problem(path, message) for path, message in sorted(keys, key=position)]


def _refuse(values: dict[str, Any]) -> list[Problem]:
    """Take out what this version cannot do, and say so."""
    problems = []
    for path, allowed in ONLY.items():
        section: Any = values
        for key in path[:-1]:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and path[-1] in section:
            value = section[path[-1]]
            if not any(type(value) is type(one) and value == one for one in allowed):
                problems.append(Problem(path, refusal(allowed)))
                del section[path[-1]]
    many = [key for key in ("sweep", "plot") if values.pop(key, None) not in (None, "none")]
    return problems + [Problem((key,), "makes many scenarios of one; hybrid_des.sweep runs them") for key in many]


def _problems(error: ValidationError) -> list[Problem]:
    """Say in our words what pydantic found."""
    problems = []
    for item in error.errors(include_url=False):
        path: KeyPath = tuple(item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            problems += [Problem((*path, *inner.path), inner.message, inner.needs) for inner in cause.items]
        elif item["type"] == "extra_forbidden":
            problems.append(Problem(path, _unknown_key(path)))
        elif item["type"] == "missing":
            problems.append(Problem(path, "is required"))
        elif item["type"] == "tuple_type":
            problems.append(Problem(path, f"expected a list, found {describe(item['input'])}"))
        elif item["type"] == "model_type":
            problems.append(Problem(path, f"expected keys below it, found {describe(item['input'])}"))
        else:
            problems.append(Problem(path, str(cause or item["msg"])))
    return problems


def _unknown_key(path: KeyPath) -> str:
    return unknown(str(path[-1]), _model_at(path[:-1]).model_fields)


def _model_at(path: KeyPath) -> type[BaseModel]:
    model: type[BaseModel] = Scenario
    for key in path:
        if isinstance(key, str):  # a place in a list holds what the list is of
            model = next(_models_in(model.model_fields[key].annotation))
    return model


def misnamed(path: str) -> str | None:
    """What is wrong with a path such as `schedule.knd`; None where a scenario has that place."""
    at: KeyPath = ()
    for key in path.split("."):
        if not key.isdecimal():
            try:
                fields = _model_at(at).model_fields
            except StopIteration:  # nothing is below a plain value
                return f'{".".join(map(str, at))} has no keys; "{key}" is none'
            if key not in fields:
                return unknown(key, fields)
        at = (*at, int(key) if key.isdecimal() else key)
    return None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _misfits(values: dict[str, Any], broken: Sequence[KeyPath]) -> list[Problem]:
    """What does not fit together among the values that are right by themselves."""
    mended = copy.deepcopy(values)
    for path in broken:
        _mend(mended, path[:2])
    try:
        Scenario.model_validate(mended)
    except ValidationError as error:
        return [p for p in _problems(error) if p.needs and not any(_touch(a, b) for a in p.needs for b in broken)]
    return []


def _mend(values: dict[str, Any], path: KeyPath) -> None:
    """Take a wrong value out, and put in what its section cannot do without."""
    section = values if len(path) == 1 else values.get(str(path[0]))
    if isinstance(section, dict):
        section.pop(str(path[-1]), None)
    for (name, key), value in _STAND_IN.items():
        if (name, key)[: len(path)] == path:
            values.setdefault(name, {})[key] = value


def _touch(a: KeyPath, b: KeyPath) -> bool:
    length = min(len(a), len(b))
    return a[:length] == b[:length]
