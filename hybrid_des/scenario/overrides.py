"""`--set a.b=value`: overrides of values in a file, parsed as strictly as the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybrid_des.errors import ScenarioError
from hybrid_des.options import describe
from hybrid_des.scenario.strict_yaml import Document, KeyPath, dotted, one_line, parse


def override(document: Document, overrides: Sequence[str]) -> None:
    """Apply overrides in order; problems found later at one of them cite `--set a.b=value` as their place.

    Raises:
        ScenarioError: an override is not of the form a.b=value, or its path does not exist; one line each.
    """
    problems: list[str] = []
    for text in overrides:
        try:
            _apply(document, text)
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(problems)


def _apply(document: Document, text: str) -> None:
    label = one_line(f"--set {text}")
    name, equals, value = text.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ScenarioError([f"{label}: expected a path and a value, such as parallel.pipeline=8"])
    try:
        parsed = parse(value, label).value
    except ScenarioError as error:
        raise ScenarioError([problem.replace(f"{label}:1: ", f"{label}: ", 1) for problem in error.problems]) from None
    path = put(document.value, keys, parsed, label)
    for old in [place for place in document.places if place[: len(path)] == path]:
        del document.places[old]
    for length in range(1, len(path) + 1):  # so do sections created for it
        if length == len(path) or path[:length] not in document.places:
            document.places[path[:length]] = label


def put(values: dict[str, Any], keys: Sequence[str], value: Any, label: str) -> KeyPath:
    """Set the value at a path of keys and list positions, creating missing sections.

    Raises:
        ScenarioError: the path does not exist; the message starts with `label`.
    """
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
            if left:
                at.setdefault(key, {})
        else:
            raise ScenarioError([one_line(f'{label}: {dotted(path)} is {describe(at)}; it has no "{key}"')])
        path = (*path, step)
        if left:
            at = at[step]
        else:
            at[step] = value
    return path
