"""Composition of a scenario file: its own values over those of its `base`, and overrides `--set a.b=value`."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hybrid_des.errors import ScenarioError, beside
from hybrid_des.options import NamesFile, describe, mark_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.kinds import drop_options
from hybrid_des.scenario.overrides import Change, Overrides, changes_of
from hybrid_des.scenario.problem import sections_at
from hybrid_des.scenario.shipped import located, shipped_alike
from hybrid_des.scenario.strict_yaml import MAX_DEPTH, Document, KeyPath, dotted, read

_OWN = ("name", "description", "sweep", "plot", "search")  # not inherited from the base
MACHINE = "machine.yaml"
MOST_BASES = 32  # files in a chain of bases
OMITTED = object()  # instead of a value: the key is removed
_NAMED = {("model",): "base"}  # sections that may be a name, and the key that the name stands for


def with_base(path: str | Path, users: tuple[str, ...] = ()) -> Document:
    """Read a file and merge it over its `base`, section by section and key by key.

    The name defaults to the file's stem. Relative paths are resolved against the file's own folder. Where there is no
    file `scenarios/first.yaml`, the shipped one is read.

    Raises:
        ScenarioError: a file cannot be read, or the bases form a cycle.
    """
    path = located(path)
    if not (os.path.lexists(path) or beside(path)) and (alike := shipped_alike(path)):
        raise ScenarioError([f"{path}: no such file{alike}"])
    document = read(path)
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
    if os.path.isfile(other / MACHINE):  # noqa: PTH113 (False for what no file can be called); a folder that `measure` filled
        other = other / MACHINE
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
    for _, name, replace in _relative_paths(document):
        replace(str(folder / name))


def anchor_overrides(document: Document, folder: Path) -> None:
    """Resolve the relative paths in overrides against the current folder, or else that of the scenario."""
    for path, name, replace in _relative_paths(document):
        beside = folder / name
        if document.place(path).startswith("--set") and not Path(name).exists() and beside.exists():
            replace(str(beside))


def files_in(document: Document) -> list[str]:
    """The file paths in a document."""
    return [text for _, text, _ in _file_paths(document)]


class _String(NamedTuple):
    """A string among plain values: its path, and what puts another in its place."""

    path: KeyPath
    text: str
    replace: Callable[[str], None]


def _relative_paths(document: Document) -> Iterator[_String]:
    """Every string that is a relative file path."""
    return (string for string in _file_paths(document) if not Path(string.text).is_absolute())


def _file_paths(document: Document) -> Iterator[_String]:
    """Every string that is a file path, such as `jobs.gpt.scenario`."""
    for string in _strings(document.value):
        path = string.path
        key, inner = path[-1], path[2:] if path[0] == "jobs" else path  # a job's keys are those of a scenario
        inner = inner[1:] if inner is not path and inner[:1] == ("scenario",) else inner
        sections = sections_at(Scenario, inner[:-1])
        fields = (field for section in sections for field in section.known_keys().get(str(key), ()))
        if not inner or any(mark_of(field, NamesFile) for field in fields):
            yield string


def _strings(values: object, at: KeyPath = ()) -> Iterator[_String]:
    """Every string in nested mappings and lists."""
    if not isinstance(values, dict | list):
        return
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, str):
            yield _String((*at, key), value, partial(values.__setitem__, key))
        else:
            yield from _strings(value, (*at, key))


def _join(below: dict[str, object], above: dict[str, object], base: Document, document: Document, at: KeyPath) -> None:
    """Merge the values and places of a file over those of its base; `null` removes an inherited key."""
    for key, value in above.items():
        path = (*at, key)
        inherited = below.get(key)
        if isinstance(value, dict) and isinstance(inherited, dict):
            _join(inherited, value, base, document, path)
            continue
        base.forget(path)
        if value is None and key in below:
            del below[key]
            continue
        below[key] = value
        base.places[path] = document.place(path)
        base.places |= {place: text for place, text in document.places.items() if place[: len(path)] == path}


def override(document: Document, overrides: Overrides) -> None:
    """Apply overrides in order; problems found later at one of them cite `--set a.b=value` as their place.

    Raises:
        ScenarioError: an override is not of the form a.b=value, or its path does not exist; one line each.
        UsageError: as `changes_of`.
    """
    problems: list[str] = []
    for change in changes_of(overrides):
        try:
            _apply(document, change)
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(problems)


def _apply(document: Document, change: Change | ScenarioError) -> None:
    if isinstance(change, ScenarioError):
        raise change
    keys, label = change.path, change.label
    before = copy.deepcopy(value_at(document.value, ".".join(keys[:-1])))
    value = OMITTED if change.removes and _is_key(keys) else change.value
    path = put(document.value, keys, value, label)
    document.forget(path)
    for gone, notice in drop_options(document.value, path, before, partial(_is_override, document)):
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


def put(values: dict[str, object], keys: Sequence[str], value: object, label: str) -> KeyPath:
    """Set the value at a path of keys and list positions, creating missing sections; `OMITTED` removes a key.

    Raises:
        ScenarioError: the path does not exist; the message starts with `label`.
    """
    if len(keys) > MAX_DEPTH:
        raise ScenarioError([f"{label}: a path of {len(keys)} keys; at most {MAX_DEPTH}"])
    at: object = values
    path: KeyPath = ()
    left = list(keys)
    while left:
        if isinstance(at, dict) and ".".join(left) in at:  # an axis of a sweep is a key with dots
            left = [".".join(left)]
        key = left.pop(0)
        if not isinstance(at, dict | list):
            raise ScenarioError([f'{label}: {dotted(path)} is {describe(at)}; it has no "{key}"'])
        if isinstance(at, dict) and value is OMITTED and key not in at:
            return (*path, key, *left)
        path = (*path, key if isinstance(at, dict) else _position(at, path, key, label))
        if left:
            at = _entered(at, path)
        elif isinstance(at, dict) and value is OMITTED:
            del at[key]
        elif isinstance(at, dict):
            at[key] = value
        else:
            at[int(key)] = None if value is OMITTED else value
    return path


def _position(items: Sequence[object], path: KeyPath, key: str, label: str) -> int:
    """The position in the list at a path that a key names."""
    if not key.isdecimal() or int(key) >= len(items):
        raise ScenarioError([f'{label}: {dotted(path)} is a list of {len(items)}; it has no "{key}"'])
    return int(key)


def _entered(section: dict[str, object] | list[object], path: KeyPath) -> object:
    """What is at the last key of a path: in place of a missing section, or of the name of one, a new one."""
    if isinstance(section, list):
        return section[int(path[-1])]
    key = str(path[-1])
    section.setdefault(key, {})
    if path in _NAMED and isinstance(section[key], str):
        section[key] = {_NAMED[path]: section[key]}
    return section[key]


def nested(values: Mapping[str, object]) -> dict[str, object]:
    """Values by path as a scenario file has them, without those that are None."""
    mapping: dict[str, object] = {}
    for path, value in values.items():
        if value is not None:
            put(mapping, path.split("."), value, path)
    return mapping


def value_at(values: object, path: str) -> object:
    """The value at a path of nested mappings; None if they have none."""
    for key in path.split("."):
        values = values.get(key) if isinstance(values, Mapping) else None
    return values
