"""Smaller cases that fail alike: parts are left out, larger ones first, as long as the complaint stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from system.fuzzing.case import Case

Fails = Callable[[Any], bool]
TOKENS = re.compile(r"\w+|\s+|[^\w\s]")
MOST_RUNS = 400


class Budget:
    """A limited number of tries; after the last one nothing counts as a failure, and shrinking ends."""

    def __init__(self, fails: Fails, runs: int = MOST_RUNS) -> None:
        self._fails, self._left = fails, runs

    def __call__(self, candidate: Any) -> bool:
        self._left -= 1
        return self._left >= 0 and self._fails(candidate)


def fewest(parts: Sequence[Any], fails: Fails) -> list[Any]:
    """As few of the parts as still fail: ever smaller runs are left out (Zeller and Hildebrandt, TSE 2002)."""
    kept, length = list(parts), len(parts)
    while length := length // 2 if length > 1 else 0:
        at = 0
        while at < len(kept):
            candidate = kept[:at] + kept[at + length :]
            if fails(candidate):
                kept = candidate
            else:
                at += length
    return fewest_single(kept, fails)


def fewest_single(kept: list[Any], fails: Fails) -> list[Any]:
    for at in range(len(kept) - 1, -1, -1):
        candidate = kept[:at] + kept[at + 1 :]
        if fails(candidate):
            kept = candidate
    return kept


def smaller(case: Case, fails: Fails, runs: int = MOST_RUNS) -> Case:
    """A call with as few files, arguments, lines and tokens as still fail, within a number of runs."""
    fails = Budget(fails, runs)
    case = _fewest(
        case, fails, list(case.files), lambda one, names: replace(one, files={n: one.files[n] for n in names})
    )
    case = _fewest(case, fails, _groups(case.argv), lambda one, groups: replace(one, argv=tuple(sum(groups, ()))))
    for cut in (lambda text: text.splitlines(keepends=True), TOKENS.findall):
        for name in case.files:
            case = _fewest(case, fails, cut(case.files[name]), partial(_with, name=name))
        case = _fewest(case, fails, cut(case.stdin), lambda one, parts: replace(one, stdin="".join(parts)))
    for at, one in enumerate(case.argv):
        case = _fewest(case, fails, TOKENS.findall(one), partial(_argued, at=at))
    return case


def _fewest(case: Case, fails: Fails, parts: Sequence[Any], made_of: Callable[[Case, list[Any]], Case]) -> Case:
    return made_of(case, fewest(parts, lambda few: fails(made_of(case, few))))


def _argued(case: Case, parts: Sequence[str], at: int) -> Case:
    return replace(case, argv=(*case.argv[:at], "".join(parts), *case.argv[at + 1 :]))


def _with(case: Case, parts: Sequence[str], name: str) -> Case:
    return replace(case, files={**case.files, name: "".join(parts)})


def _groups(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """Arguments, an option together with its value."""
    groups: list[tuple[str, ...]] = []
    for one in argv:
        if groups and groups[-1][-1].startswith("--") and not one.startswith("--") and len(groups[-1]) == 1:
            groups[-1] += (one,)
        else:
            groups.append((one,))
    return groups


def smaller_values(values: Any, fails: Fails) -> Any:
    """Nested mappings with as few keys as still fail."""
    budget = Budget(fails)
    changed = True
    while changed:
        changed = False
        for path in _paths(values):
            candidate = _without(values, path)
            if budget(candidate):
                values, changed = candidate, True
                break
    return values


def _paths(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = []
    for key, item in values.items() if isinstance(values, dict) else ():
        found += [(*path, key), *_paths(item, (*path, key))]
    return found


def _without(values: Any, path: tuple[Any, ...]) -> Any:
    if len(path) == 1:
        return {key: item for key, item in values.items() if key != path[0]}
    return {**values, path[0]: _without(values[path[0]], path[1:])}
