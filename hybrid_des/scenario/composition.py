"""Composition of a scenario file: its own values over those of its `base`, and overrides `--set a.b=value`."""

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hybrid_des.errors import ScenarioError, one_line
from hybrid_des.options import NamesFile, describe, mark_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.kinds import drop_options
from hybrid_des.scenario.problem import sections_at
from hybrid_des.scenario.shipped import located
from hybrid_des.scenario.strict_yaml import MAX_DEPTH, SURROGATE, Document, KeyPath, dotted, parse_value, read

_OWN = ("name", "description", "sweep", "plot", "search")  # not inherited from the base
MOST_BASES = 32  # files in a chain of bases
LONGEST_LABEL = 200  # characters of an override in a message
OMITTED = object()  # instead of a value: the key is removed
_NAMED = {("model",): "base"}  # sections that may be a name, and the key that the name stands for
_KEYS = "|".join(Scenario.model_fields)
_NEXT = re.compile(rf",(?=\s*(?:{_KEYS})(?:\.[\w.-]+)?=)")  # a comma before another key of a scenario


def with_base(path: str | Path, users: tuple[str, ...] = ()) -> Document:
    """Read a file and merge it over its `base`, section by section and key by key.

    The name defaults to the file's stem. Relative paths are resolved against the file's own folder. Where there is no
    file `scenarios/first.yaml`, the shipped one is read.

    Raises:
        ScenarioError: a file cannot be read, or the bases form a cycle.
    """
    path = located(path)
    document = read(path)
    if not isinstance(document.value, dict):
        what = "is empty" if document.value is None else f"contains {describe(document.value)}"
        raise ScenarioError([f"{document.source}: {what}; expected keys such as schedule: and workload:"])
    document.value.setdefault("name", Path(path).stem)
    anchor(document, Path(path).parent)
    return over_base(document, Path(path).parent, (*users, os.path.realpath(path)))


def over_base(document: Document, folder: Path, users: tuple[str, ...] = ()) -> Document:
    """Merge a document over the file that it names as its `base`, relative to a folder.

    Raises:
        ScenarioError: as `with_base`.
    """
    name = document.value.pop("base", None)
    if name in (None, "none"):
        return document
    if not isinstance(name, str):
        raise document.error(("base",), f"expected the path of a file, found {describe(name)}")
    if "\0" in name:
        raise document.error(("base",), "a path cannot contain a null character")
    other = folder / name
    if os.path.realpath(other) in users:
        raise document.error(("base",), f"{describe(name)} is based on this file itself")
    if len(users) > MOST_BASES:
        raise document.error(("base",), f"more than {MOST_BASES} files, one based on the other")
    try:
        base = with_base(other, users)
    except ScenarioError as error:
        if len(users) <= 1 and (not os.access(other, os.R_OK) or other.is_dir()):
            raise document.error(("base",), f"{error.problems[0]}") from None
        raise
    for key in _OWN:
        base.value.pop(key, None)
    base.places = {place: text for place, text in base.places.items() if place and place[0] not in _OWN}
    _join(base.value, document.value, base, document, ())
    base.places[()] = document.place(())
    return Document(base.value, document.source, base.places)


def anchor(document: Document, folder: Path) -> None:
    """Resolve the relative paths in a document against a folder."""
    for path, values in _relative_paths(document):
        values[path[-1]] = str(folder / values[path[-1]])


def anchor_overrides(document: Document, folder: Path) -> None:
    """Resolve the relative paths in overrides against the current folder, or else that of the scenario."""
    for path, values in _relative_paths(document):
        beside = folder / values[path[-1]]
        if document.place(path).startswith("--set") and not Path(values[path[-1]]).exists() and beside.exists():
            values[path[-1]] = str(beside)


def files_in(document: Document) -> list[str]:
    """The file paths in a document."""
    return [values[path[-1]] for path, values in _file_paths(document)]


def _relative_paths(document: Document) -> Iterator[tuple[KeyPath, Any]]:
    """The path of every string that is a relative file path, with what holds it."""
    return ((path, values) for path, values in _file_paths(document) if not Path(values[path[-1]]).is_absolute())


def _file_paths(document: Document) -> Iterator[tuple[KeyPath, Any]]:
    """The path of every string that is a file path, such as `jobs.gpt.scenario`, with what holds it."""
    for path, values in _strings(document.value):
        key, inner = path[-1], path[2:] if path[0] == "jobs" else path  # a job's keys are those of a scenario
        inner = inner[1:] if inner is not path and inner[:1] == ("scenario",) else inner
        sections = sections_at(Scenario, inner[:-1])
        fields = (field for section in sections for field in section.known_keys().get(str(key), ()))
        if not inner or any(mark_of(field, NamesFile) for field in fields):
            yield path, values


def _strings(values: Any, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The path of every string in nested mappings and lists, with its container."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        if isinstance(value, str):
            yield (*at, key), values
        else:
            yield from _strings(value, (*at, key))


def _join(below: dict[str, Any], above: dict[str, Any], base: Document, document: Document, at: KeyPath) -> None:
    """Merge the values and places of a file over those of its base; `null` removes an inherited key."""
    for key, value in above.items():
        path = (*at, key)
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _join(below[key], value, base, document, path)
            continue
        base.forget(path)
        if value is None and key in below:
            del below[key]
            continue
        below[key] = value
        base.places[path] = document.place(path)
        base.places |= {place: text for place, text in document.places.items() if place[: len(path)] == path}


def override(document: Document, overrides: Sequence[str]) -> None:
    """Apply overrides in order; problems found later at one of them cite `--set a.b=value` as their place.

    Raises:
        ScenarioError: an override is not of the form a.b=value, or its path does not exist; one line each.
    """
    problems: list[str] = []
    for text in (part for several in overrides for part in _parts(several)):
        try:
            _apply(document, text)
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(problems)


def overridden(overrides: Sequence[str]) -> list[str]:
    """The paths that overrides change."""
    return [part.partition("=")[0].strip() for text in overrides for part in _parts(text)]


def _parts(text: str) -> list[str]:
    """The overrides that commas join, as in the advice of `explain`; a quoted value has no others behind it."""
    value = text.partition("=")[2].lstrip()
    return [text] if value.startswith(("'", '"')) else _NEXT.split(text)


def _apply(document: Document, text: str) -> None:
    label = one_line(f"--set {text}", LONGEST_LABEL)
    name, equals, value = text.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ScenarioError([f"{label}: expected a path and a value, such as parallel.pipeline=8"])
    if SURROGATE.search(name):
        raise ScenarioError([f"{label}: an unpaired surrogate is not a valid character"])
    parsed = parse_value(value, label)
    removes = parsed is None and value.strip() and _is_key(keys)  # no text at all is a forgotten value
    before = copy.deepcopy(value_at(document.value, ".".join(keys[:-1])))
    path = put(document.value, keys, OMITTED if removes else parsed, label)
    document.forget(path)
    for gone, notice in drop_options(document.value, path, before or {}, partial(_is_override, document)):
        document.forget(gone)
        document.notices[gone] = f"{label}: {notice}"
    for length in range(1, len(path) + 1):  # sections created for it get the same place
        if length == len(path) or path[:length] not in document.places:
            document.places[path[:length]] = label


def _is_override(document: Document, path: KeyPath) -> bool:
    return document.places.get(path, "").startswith("--set")


def _is_key(keys: Sequence[str]) -> bool:
    """Whether scenarios have a key at this path."""
    return any(keys[-1] in section.known_keys() for section in sections_at(Scenario, tuple(keys[:-1])))


def put(values: dict[str, Any], keys: Sequence[str], value: Any, label: str) -> KeyPath:
    """Set the value at a path of keys and list positions, creating missing sections; `OMITTED` removes a key.

    Raises:
        ScenarioError: the path does not exist; the message starts with `label`.
    """
    if len(keys) > MAX_DEPTH:
        raise ScenarioError([f"{label}: a path of {len(keys)} keys; at most {MAX_DEPTH}"])
    at: Any = values
    path: KeyPath = ()
    left = list(keys)
    while left:
        if isinstance(at, dict) and ".".join(left) in at:  # an axis of a sweep is a key with dots
            left = [".".join(left)]
        key = left.pop(0)
        if isinstance(at, list):
            if not key.isdecimal() or int(key) >= len(at):
                raise ScenarioError([f'{label}: {dotted(path)} is a list of {len(at)}; it has no "{key}"'])
            step: str | int = int(key)
        elif isinstance(at, dict):
            step = key
            if value is OMITTED and key not in at:
                return (*path, key, *left)
            if left:
                at.setdefault(key, {})
        else:
            raise ScenarioError([f'{label}: {dotted(path)} is {describe(at)}; it has no "{key}"'])
        path = (*path, step)
        if left:
            if path in _NAMED and isinstance(at[step], str):
                at[step] = {_NAMED[path]: at[step]}
            at = at[step]
        elif value is OMITTED and isinstance(at, dict):
            del at[step]
        else:
            at[step] = None if value is OMITTED else value
    return path


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path as a scenario file has them, without those that are None."""
    mapping: dict[str, Any] = {}
    for path, value in values.items():
        if value is not None:
            put(mapping, path.split("."), value, path)
    return mapping


def value_at(values: Any, path: str) -> Any:
    """The value at a path of nested mappings; None if they have none."""
    for key in path.split("."):
        values = values.get(key) if isinstance(values, Mapping) else None
    return values
