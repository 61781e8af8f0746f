"""Changes of a scenario by path: strings as `--set` takes them, or a mapping from paths to values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybrid_des.errors import ScenarioError, UsageError, one_line
from hybrid_des.options import describe, plain
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.strict_yaml import SURROGATE, parse_value

Overrides = Sequence[str] | Mapping[str, object]
"""Strings such as "parallel.pipeline=8", or {"parallel.pipeline": 8}; None removes an inherited key."""

LONGEST_LABEL = 200  # characters of an override in a message
_KEYS = "|".join(Scenario.model_fields)
_NEXT = re.compile(rf",(?=\s*(?:{_KEYS})(?:\.[\w.-]+)?=)")  # a comma before another key of a scenario


class Change(NamedTuple):
    """A change of a key.

    Attributes:
        path: its keys.
        value: the new value.
        removes: whether the key is to be removed, if scenarios have it.
        label: what messages call it.
    """

    path: Sequence[str]
    value: object
    removes: bool
    label: str


def changes_of(overrides: Overrides) -> Iterator[Change | ScenarioError]:
    """The changes in order; in place of one that cannot be read, its error."""
    texts = texts_of(overrides)
    given = overrides if isinstance(overrides, Mapping) else None
    for text in texts if given is not None else (part for several in texts for part in _parts(several)):
        try:
            yield _read(text) if given is None else _given(text, given[text])
        except ScenarioError as error:
            yield error


def texts_of(overrides: Overrides) -> Sequence[str]:
    """The strings, or the paths of a mapping.

    Raises:
        UsageError: it is neither strings nor a mapping from paths.
    """
    if isinstance(overrides, str) or not isinstance(overrides, Sequence | Mapping):
        expected = 'a list of strings such as ["parallel.pipeline=8"], or a mapping such as {"parallel.pipeline": 8}'
        raise UsageError(f"overrides: found {describe(overrides)}; expected {expected}")
    for text in overrides:
        if not isinstance(text, str):
            raise UsageError(f"overrides: found {describe(text)} in place of a path such as parallel.pipeline")
    return list(overrides)


def described(overrides: Overrides) -> list[str]:
    """The overrides as `--set` takes them, for descriptions."""
    if isinstance(overrides, Mapping):
        return [f"{path}={'none' if value is None else plain(value)}" for path, value in overrides.items()]
    return list(overrides)


def overridden(overrides: Overrides) -> list[str]:
    """The paths that overrides change."""
    parts = [part for text in texts_of(overrides) for part in _parts(text)]
    return [part.partition("=")[0].strip() for part in parts]


def _given(path: str, value: object) -> Change:
    """A change as a mapping has it; messages name it like one of `--set`."""
    label = one_line(f"--set {path}={describe(value) if value is not None else 'none'}", LONGEST_LABEL)
    return _checked(Change(path.strip().split("."), plain(value), value is None, label))


def _read(text: str) -> Change:
    """A change as `--set` takes it.

    Raises:
        ScenarioError: it is not of the form a.b=value.
    """
    label = one_line(f"--set {text}", LONGEST_LABEL)
    name, equals, value = text.partition("=")
    change = _checked(Change(name.strip().split(".") if equals else [""], None, False, label))
    parsed = parse_value(value, label)
    return change._replace(value=parsed, removes=parsed is None and bool(value.strip()))  # no text is a forgotten value


def _checked(change: Change) -> Change:
    """The same change.

    Raises:
        ScenarioError: it has no path, or a strange one.
    """
    if not all(change.path):
        raise ScenarioError([f"{change.label}: expected a path and a value, such as parallel.pipeline=8"])
    if SURROGATE.search("".join(change.path)):
        raise ScenarioError([f"{change.label}: an unpaired surrogate is not a valid character"])
    return change


def _parts(text: str) -> list[str]:
    """The overrides that commas join, as in the advice of `explain`; a quoted value has no others behind it."""
    value = text.partition("=")[2].lstrip()
    return [text] if value.startswith(("'", '"')) else _NEXT.split(text)
