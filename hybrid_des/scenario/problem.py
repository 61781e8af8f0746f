"""Problems of a scenario: where, what, and which other values they depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from hybrid_des.options import Section, describe
from hybrid_des.scenario.other_names import unknown_key
from hybrid_des.scenario.strict_yaml import KeyPath

_REPHRASED = {  # types of pydantic's errors; {} is what was found
    "missing": "is required",
    "tuple_type": "expected a list, found {}",
    "model_type": "expected a mapping, found {}",
}


class Problem(NamedTuple):
    """A problem at a path; `needs` are the paths of all values involved."""

    path: KeyPath
    message: str
    needs: tuple[KeyPath, ...] = ()

    def below(self, *path: str | int) -> Problem:
        """The same problem, relative to an enclosing section."""
        return Problem((*path, *self.path), self.message, tuple((*path, *need) for need in self.needs))


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
            problems.append(Problem(path, unknown_key(str(path[-1]), known)))
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
            yield from sections_at(inner, tuple(keys[1:]))


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """The section types in a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)
