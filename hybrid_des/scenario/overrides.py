"""`--set a.b=value`: values that take the place of what a file says, read as strictly as the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybrid_des.errors import ScenarioError
from hybrid_des.options import describe
from hybrid_des.scenario.strict_yaml import Document, KeyPath, dotted, one_line, parse


def override(document: Document, overrides: Sequence[str]) -> None:
    """Put values in place, in order; a later problem at one of them names `--set a.b=value` as its place.

    Raises:
        ScenarioError: an override is not of the form a.b=value, or there is no such place; one line each.
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
    for length in range(1, len(path) + 1):  # sections that had to be made stand there too
        if length == len(path) or path[:length] not in document.places:
            document.places[path[:length]] = label


def put(values: dict[str, Any], keys: Sequence[str], value: Any, label: str) -> KeyPath:
    """Set the value at a path of keys and list positions; sections that are not there yet are made.

    Raises:
        ScenarioError: there is no such place; `label` opens the message.
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
