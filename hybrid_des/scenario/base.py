"""`base: other.yaml`: a scenario file that states only its differences from another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybrid_des.errors import ScenarioError
from hybrid_des.options import NamesFile, Section, describe, mark_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.problem import sections_in
from hybrid_des.scenario.strict_yaml import Document, KeyPath, read

_OWN = ("name", "description", "sweep", "plot")  # not inherited from the base


def with_base(path: str | Path, users: tuple[Path, ...] = ()) -> Document:
    """Read a file and merge it over its `base`, section by section and key by key.

    The name defaults to the file's stem. Relative paths start at the file's own folder.

    Raises:
        ScenarioError: a file cannot be read, or the bases form a cycle.
    """
    document = read(path)
    if not isinstance(document.value, dict):
        found = "is empty" if document.value is None else f"contains {describe(document.value)}"
        raise ScenarioError([f"{document.source}: {found}; expected keys such as schedule: and workload:"])
    document.value.setdefault("name", Path(path).stem)
    anchor(document, Path(path).parent)
    name = document.value.pop("base", None)
    if name in (None, "none"):
        return document
    if not isinstance(name, str):
        raise ScenarioError([document.problem(("base",), f"expected the path of a file, found {describe(name)}")])
    users = (*users, Path(path).resolve())
    other = Path(path).parent / name
    if other.resolve() in users:
        raise ScenarioError([document.problem(("base",), f'"{name}" is based on this file itself')])
    try:
        base = with_base(other, users)
    except ScenarioError as error:
        if len(users) == 1 and not other.is_file():
            raise ScenarioError([document.problem(("base",), f"{error.problems[0]}")]) from None
        raise
    for key in _OWN:
        base.value.pop(key, None)
    base.places = {place: text for place, text in base.places.items() if place and place[0] not in _OWN}
    _join(base.value, document.value, base, document, ())
    base.places[()] = document.places[()]
    return Document(base.value, document.source, base.places)


def anchor(document: Document, folder: Path, place: str = "") -> None:
    """Resolve the relative paths in a document against a folder; with `place`, only those given there."""
    for path in _files(Scenario):
        for at, values in _sections(document.value, path[:-1]):
            name = values.get(path[-1])
            if not isinstance(name, str) or Path(name).is_absolute():
                continue
            if document.place((*at, path[-1])).startswith(place):
                values[path[-1]] = str(folder / name)


def _files(section: type[Section], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys that hold file names."""
    for key, fields in section.known_keys().items():
        if any(mark_of(field, NamesFile) for field in fields):
            yield (*at, key)
        for inner in {inner for field in fields for inner in sections_in(field.annotation)}:
            yield from _files(inner, (*at, key))


def _sections(values: Any, path: tuple[str, ...], at: KeyPath = ()) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """The sections at a path, with one per list item along it, and their full paths."""
    if isinstance(values, list):
        for number, item in enumerate(values):
            yield from _sections(item, path, (*at, number))
    elif isinstance(values, dict) and not path:
        yield at, values
    elif isinstance(values, dict):
        yield from _sections(values.get(path[0]), path[1:], (*at, path[0]))


def _join(below: dict[str, Any], above: dict[str, Any], base: Document, document: Document, at: KeyPath) -> None:
    """Merge the values and places of a file over those of its base."""
    for key, value in above.items():
        path = (*at, key)
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _join(below[key], value, base, document, path)
            continue
        below[key] = value
        for place in [place for place in base.places if place[: len(path)] == path]:
            del base.places[place]
        length = len(path)
        base.places.update({place: text for place, text in document.places.items() if place[:length] == path})
