"""A mapping of another program in the words of a scenario, by the program's table."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.frameworks.hugging_face import read_hugging_face
from hybrid_des.interchange.frameworks.megatron_flags import matters
from hybrid_des.interchange.frameworks.megatron_unknown import STATES
from hybrid_des.interchange.jobs.mappings import PROGRAM, Flat, class_name
from hybrid_des.interchange.jobs.plan import QUANTITIES
from hybrid_des.interchange.jobs.tools import Tool
from hybrid_des.interchange.recipes import Undecided
from hybrid_des.options import describe
from hybrid_des.scenario.composition import nested

_WORDS = ("model_name", "adapter_on")  # targets that take a value as it is; others take whole numbers
_OF_LAYOUT = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}  # pipeline_parallel_layer_layout.py
_OFF: tuple[object, ...] = (None, False, 0, "", "none", "null", [], {})


@dataclass
class Stated:
    """What files of a job state.

    Attributes:
        values: by path of a scenario, or by name of a quantity of `plan`.
        constants: what is so in every job of the programs; nothing that is stated.
        defaults: of `values`, the programs' own, each with a line that says so.
        flags: of Megatron-LM, each with its words.
        undecided: paths of a scenario whose value a recipe leaves open.
        files: names of those that are given.
        places: folders in which the modules of recipes are looked for.
        given: keys with a value, also without what stands in front of them.
        is_line: whether all flags are meant for Megatron-LM's own program.
        read: the keys that were read, with what they are called here.
        asked: what is to be stated or given, one line each.
        assumed, unread, idle: as in `Imported`.
        minor: settings that were not understood and whose names speak of no model, plan, memory or time.
    """

    values: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=dict)
    undecided: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    places: tuple[Path, ...] = ()
    given: set[str] = field(default_factory=set)
    is_line: bool = True
    read: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    minor: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)


def translate(flat: Flat, tool: Tool, name: str, stated: Stated) -> None:
    """Add what a mapping states to what other files of the job do.

    Raises:
        UsageError: a value is wrong, or makes another job than those known here; the message names it.
    """
    table = tool.table
    for key, why in table.refused.items():
        stated_there = {given: flat[given] for given in flat if key in (given, tool.inner(given))}
        for given, value in (stated_there or {key: table.defaults.get(key)}).items():
            named = class_name(value) if given.endswith("_target_") and isinstance(value, str) else value
            if named not in (*_OFF, *table.neutral):
                raise UsageError(f"{name}: {given}: {one_line(str(value), LONGEST_SHOWN)}: {why}")
    stated.constants = {**stated.constants, **table.values}
    stated.is_line = stated.is_line and table.flags
    flat = {key: value for key, value in flat.items() if not tool.is_switched_off(key, flat)}
    flat |= {f"{part}._target_": name for part, name in tool.classes_of(flat)}
    flat |= {key: Undecided(name) for key, name in _references(flat) if {key, tool.inner(key)} & tool.keys.keys()}
    for prefix in table.configs:
        flat = {key: value for key, value in flat.items() if not (key.startswith(prefix) and tool.is_idle(key))}
        _model_config(flat, prefix, name, stated)
    reading = _Reading(tool, name, stated, flat)
    stated.given |= reading.given
    for key, value in flat.items():
        reading.add(key, value)
    for key, value in table.defaults.items():
        names = {key} if key in tool.keys else {key, tool.inner(key)}
        if not names & stated.given and tool.applies(key, flat):
            reading.add_default(key, value)
    reading.combine(table.products, math.prod)
    reading.combine(table.sums, sum)
    reading.join(table.joined)
    if isinstance(named := stated.values.get("model_name"), str):
        stated.values["model_name"] = table.models.get(named, named)


def _references(flat: Flat) -> Iterator[tuple[str, str]]:
    """Keys whose value is something in Python, by its name there."""
    for key, value in flat.items():
        if key.endswith("._call_") and value is False:
            of = key.removesuffix("._call_")
            yield of, str(flat.get(f"{of}._target_"))


def _model_config(flat: Flat, prefix: str, name: str, stated: Stated) -> None:
    """Read a config.json that stands in a file under a key, and take it out."""
    inner = {key.removeprefix(f"{prefix}."): flat.pop(key) for key in [*flat] if key.startswith(f"{prefix}.")}
    if not inner:
        return
    imported = read_hugging_face(json.dumps(nested(inner)), f"{name}: {prefix}")
    stated.values |= imported.values
    stated.assumed += [line for line in imported.assumed if line.startswith("model.")]
    stated.unread += [f"{prefix}.{line}" for line in imported.unread]
    stated.idle += imported.idle


class _Reading:
    """One file of a job while it is read.

    Attributes:
        given: its keys with a value, without what stands in front of them too.
    """

    def __init__(self, tool: Tool, name: str, stated: Stated, flat: Flat) -> None:
        self._tool, self._name, self._stated = tool, name, stated
        table = tool.table
        groups = [*table.products.values(), *table.sums.values(), *table.joined.values()]
        self._combined = {key for keys in groups for key in keys}
        self._values = {tool.inner(key): value for key, value in flat.items()} | flat
        self.given = {key for key, value in self._values.items() if value not in (None, "", "auto")}

    def add(self, key: str, value: Any) -> None:
        """Read a key of the file."""
        if key.startswith(PROGRAM):
            return
        table, inner = self._tool.table, self._tool.inner(key)
        entry = self._tool.keys.get(key, self._tool.keys.get(inner))
        if key.endswith("_target_") and isinstance(value, str):
            value = class_name(value)
        shown = f"{key}: {one_line(str(value), LONGEST_SHOWN)}"
        if {key, inner} & {*table.files, *table.refused, *self._combined} and entry is None:
            return
        if entry is None:
            if value in (*_OFF, "auto") or self._tool.is_idle(key):
                self._stated.idle += [] if value is None else [key]
            elif table.flags and "." not in inner:
                self._flag(f"--{inner.replace('_', '-')}", value)
            else:
                self._not_understood(inner, shown)
            return
        if isinstance(value, Undecided):
            self._leave_open(key, entry, value)
            return
        targets = self._targets(entry, key, value)
        if targets is None:
            self._not_understood(inner, shown)
            return
        for target, theirs in targets.items():
            self._put(target, theirs, key)
        same = f"--{inner.replace('_', '-')}"
        named = [
            target if theirs is True else f"{target} {theirs}".strip()
            for target, theirs in targets.items()
            if target not in (*_WORDS, "note", "without", same)
        ]
        if named and value not in (None, "auto"):
            self._stated.read.append(f"{shown} is {', '.join(named)}")

    def _not_understood(self, name: str, line: str) -> None:
        (self._stated.unread if matters(name) else self._stated.minor).append(line)

    def _leave_open(self, key: str, entry: Any, why: Undecided) -> None:
        """Mark what a value states that a recipe does not tell from its source."""
        meanings = entry.values() if isinstance(entry, dict) else [{entry: why}]
        named = {target for meaning in meanings for target in (meaning if isinstance(meaning, dict) else [meaning])}
        targets = {word for target in named for word in target.split()}
        paths = {path for target in targets for path in STATES.get(target, (target,))} - {"note", "without", *_WORDS}
        paths = {path for path in paths if not path.startswith("--")}
        self._stated.undecided |= paths - {*QUANTITIES}
        state = f"; state {', '.join(sorted(paths - {*QUANTITIES}))} with --set" if paths - {*QUANTITIES} else ""
        if targets:
            self._stated.asked.append(f"{key}: cannot be told from the recipe: {why}{state}")

    def join(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Put the texts of keys one after the other, where all are stated."""
        for path, keys in groups.items():
            if all(isinstance(self._values.get(key), str) for key in keys):
                self._stated.values[path] = "-".join(self._values[key] for key in keys)

    def add_default(self, key: str, value: Any) -> None:
        """Take the program's own value for a key that the file does not have, and say so."""
        entry = self._tool.keys.get(key, self._tool.keys.get(self._tool.inner(key), {}))
        targets = self._targets(entry, key, value) or {}
        for target, theirs in targets.items():
            if target not in self._stated.values:
                self._put(target, theirs, key)
                value = "" if theirs is True else f" {theirs}" if target.startswith("--") else f": {theirs}"
                self._stated.defaults[target] = f"{target}{value}: {self._tool.table.title}'s default of {key}"

    def combine(self, groups: Mapping[str, Sequence[str]], of: Callable[[Iterable[int]], int]) -> None:
        """Put the product or the sum of keys where all are known."""
        defaults = self._tool.table.defaults
        for path, keys in groups.items():
            values = [self._values.get(key, defaults.get(key)) for key in keys]
            given = [key for key in keys if key in self.given]
            if given and not any(value is None or value == -1 for value in values):
                self._stated.values[path] = total = of(
                    self._number(key, value, path) for key, value in zip(keys, values, strict=True)
                )
                shown = ", ".join(f"{key}: {self._values[key]}" for key in given)
                self._stated.read.append(f"{shown} is {path} {total}")

    def _targets(self, entry: Any, key: str, value: Any) -> Mapping[str, Any] | None:
        """What a value is called here; None if it is not understood."""
        if isinstance(entry, dict):
            word = next((word for word in entry if _same(word, value)), "else")
            if word == "else" and value in (None, "", "auto"):
                return {}
            entry = entry.get(word)
        if entry is None or isinstance(entry, dict):
            return entry
        if value in (None, "", "auto"):
            return {}
        if entry.startswith("--") or entry in _WORDS:
            return {entry: value}
        return {entry: float(value) if entry == "per_gpu" and _is_number(value) else self._number(key, value, entry)}

    def _put(self, target: str, theirs: Any, key: str) -> None:
        if target.startswith("--"):
            self._flag(target, theirs)
        elif target == "note":
            self._stated.assumed.append(theirs)
        elif target == "without":
            self._stated.unread.append(f"{key}: {theirs}")
        else:
            self._stated.values[target] = theirs

    def _flag(self, flags: str, value: Any) -> None:
        """Add flags, of which the last one takes the value."""
        if value is False or value in (None, "None"):
            return
        *switches, flag = flags.split()
        self._stated.flags |= {switch: [] for switch in switches}
        self._stated.flags[flag] = [] if value is True or value == "" else [*_words(value)]

    def _number(self, key: str, value: Any, target: str) -> int:
        number, least = float(value) if _is_number(value) else math.nan, 0 if target.startswith("less_") else 1
        if not number.is_integer() or number < least:
            raise UsageError(f"{self._name}: {key}: expected a whole number from {least}, found {describe(value)}")
        return int(number)


def _same(word: Any, value: Any) -> bool:
    """Whether a value is the one that a table has: 1.0 is 1, and "True" is true, but 1 is not."""
    alike = isinstance(word, bool) == isinstance(value, bool) and word == value
    return alike or str(word).lower() == str(value).lower()


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _words(value: Any) -> Iterator[str]:
    """A value as words of a line: a list of numbers is one of them."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield from value
    elif isinstance(value, list) and value and all(isinstance(stage, list) for stage in value):
        letters = (((_OF_LAYOUT.get(layer, str(layer))) for layer in stage) for stage in value)
        yield "|".join("".join(stage) for stage in letters)
    elif isinstance(value, list):
        yield str(value).replace(" ", "")
    else:
        yield from str(value).split()
