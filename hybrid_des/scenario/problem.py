"""Problems of a scenario: where, what, and which other values they depend on.

Keys are also known by the names of other tools (`other_names.yaml`), so that a message can say which key is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args, get_origin

from pydantic import ValidationError

from hybrid_des.errors import LONGEST_SHOWN, misspelled, one_line, unknown
from hybrid_des.files import read_catalogue
from hybrid_des.options import Section, describe
from hybrid_des.scenario.strict_yaml import KeyPath
from hybrid_des.units import collected

_REPHRASED = {  # types of pydantic's errors; {} is what was found
    "missing": "is required",
    "tuple_type": "expected a list, found {}",
    "model_type": "expected a mapping, found {}",
}


MOST_ELSEWHERE = 2  # paths that a message suggests


class Problem(NamedTuple):
    """A problem at a path; `needs` are the paths of all values involved."""

    path: KeyPath
    message: str
    needs: tuple[KeyPath, ...] = ()

    def below(self, *path: str | int) -> Problem:
        """The same problem, relative to an enclosing section."""
        return Problem((*path, *self.path), self.message, tuple((*path, *need) for need in self.needs))


def misfit(message: str, at: str, *others: str) -> Problem:
    """A contradiction between the values at dotted paths, told at the first; `slow.0` is a position in a list."""
    paths = [tuple(int(key) if key.isdecimal() else key for key in path.split(".")) for path in (at, *others)]
    return Problem(paths[0], message, tuple(paths))


class Problems(ValueError):
    """Several problems at or below one place."""

    def __init__(self, items: Sequence[Problem]) -> None:
        super().__init__("; ".join(item.message for item in items))
        self.items = tuple(items)


def problems_in(error: ValidationError, model: type[Section]) -> list[Problem]:
    """Rephrase pydantic's findings about a section."""
    problems = []
    for item in error.errors(include_url=False):
        path: KeyPath = tuple(item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            problems += [inner.below(*path) for inner in cause.items]
        elif item["type"] == "extra_forbidden":
            known = next(sections_at(model, path[:-1])).known_keys()
            problems.append(Problem(path, unknown_key(str(path[-1]), known, paths_of(str(path[-1]), model))))
        else:
            message = _REPHRASED.get(item["type"], "").format(describe(item["input"]))
            problems.append(Problem(path, message or str(cause or item["msg"])))
    return problems


def sections_at(model: type[Section], path: KeyPath) -> Iterator[type[Section]]:
    """The section types possible at a path below one; none below a plain value."""
    keys = [key for key in path if isinstance(key, str)]  # list positions do not change the type
    if not keys:
        yield model
        return
    for field in model.known_keys().get(keys[0], ()):
        for inner in sections_in(field.annotation):
            yield from sections_at(inner, tuple(keys[2 if _is_named(field.annotation) else 1 :]))


def paths_of(key: str, model: type[Section]) -> list[str]:
    """The paths below a section that end in a key, shortest first; none leads through a list."""
    return [".".join(path) for path in _paths(model) if path[-1] == key]


@cache
def _paths(model: type[Section]) -> list[tuple[str, ...]]:
    """All paths of keys below a section, shortest first; a section in itself is not followed."""
    paths: list[tuple[str, ...]] = []
    waiting: list[tuple[tuple[str, ...], type[Section], tuple[type[Section], ...]]] = [((), model, (model,))]
    for above, section, users in waiting:
        for key, fields in section.known_keys().items():
            paths.append((*above, key))
            inner = {one for each in fields for one in sections_in(each.annotation, lists=False)} - {*users}
            waiting += (((*above, key), one, (*users, one)) for one in sorted(inner, key=str))
    return list(dict.fromkeys(paths))


def _is_named(annotation: object) -> bool:
    """Whether a field holds sections by names that a file chooses."""
    return any(get_origin(part) is dict for part in (annotation, *get_args(annotation)))


def sections_in(annotation: object, *, lists: bool = True) -> Iterator[type[Section]]:
    """The section types in a field's annotation, with those in lists or without."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    if lists or get_origin(annotation) not in (tuple, dict):
        for part in get_args(annotation):
            yield from sections_in(part, lists=lists)


@cache
def other_names() -> dict[str, list[str]]:
    """Key, or key and value → what other tools call it."""
    names: dict[str, list[str]] = read_catalogue(Path(__file__).with_name("other_names.yaml"))
    return names


@cache
def _meant() -> Mapping[str, list[str]]:
    """The keys that a name may mean; a key's own name too: it may stand in another section."""
    every = ((path, (path.rpartition(".")[2], *names)) for path, names in other_names().items())
    return collected((name, path) for path, names in every for name in names)


def unknown_key(key: str, known: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """The message for an unknown key of a section: the key that is meant, if it is known, or similar ones.

    Args:
        key: what was given.
        known: the section's keys.
        elsewhere: paths of other sections that end in this key.
    """
    meant: Sequence[str] | None = _meant().get(key.lower().replace("-", "_"))
    if meant is None and not misspelled(key, known := [*known]):
        meant = elsewhere[:MOST_ELSEWHERE]
    if not meant:
        return unknown(key, known)
    named = " or ".join(f'"{path}"' for path in meant)
    return f'unknown "{one_line(key, LONGEST_SHOWN)}"; did you mean {named}?'
