"""What training programs call the values of a job: a table for each of them, `tables/*.yaml`.

Keys of a table:

- title, source: the program, and where its names and defaults are written
- known_by: patterns of keys, all of which one alternative has: by these a file is recognised
- values: what every job of the program has, by path of a scenario
- under: a pattern of what stands in front of a key and is left out
- keys: its key → a path of a scenario, a quantity of `plan`, a flag of Megatron-LM, or, for each value, a mapping from
  such to theirs; `else` holds for any other value, `note` is an assumption, `without` what is missing
- includes: another table, whose `keys` and `idle` hold too
- flags: whether keys under `under` that the table does not have are flags of Megatron-LM by the same name
- products, sums, joined: path → keys whose values are multiplied, added, or written one after the other
- models: its names of models that the catalogue has by another
- configs: keys whose mapping is a model's config.json
- classes: part of a file → its possible classes, each with a key that only it has, for files that do not name them
- recipes: key that names a function in Python → modules that may have it, with values of other keys in braces; the
  function after a colon, if the key names only its module
- prints: how the program prints its configuration, for errors
- files: keys that name another file of the job → paths that are unknown without it
- folders: where that file may lie, beside the folder of the file that names it and those above
- defaults: key → the program's own value where the file does not have it
- switches: part of a file → key and value with which it does not count
- refused: key → what makes it another job than those known here, unless it is off or has a value of `neutral`
- idle: patterns of keys without effect on the time or the memory of a step
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.files import read_catalogue
from hybrid_des.interchange.jobs.mappings import Flat

_FOLDER = Path(__file__).with_name("tables")


class Table(NamedTuple):
    """One table, as above."""

    title: str
    source: str = ""
    known_by: Sequence[Sequence[str]] = ()
    values: Mapping[str, Any] = {}
    under: str = ""
    keys: Mapping[str, Any] = {}
    includes: str = ""
    flags: bool = False
    products: Mapping[str, Sequence[str]] = {}
    sums: Mapping[str, Sequence[str]] = {}
    joined: Mapping[str, Sequence[str]] = {}
    models: Mapping[str, str] = {}
    configs: Sequence[str] = ()
    classes: Mapping[str, Mapping[str, str]] = {}
    recipes: Mapping[str, Sequence[str]] = {}
    prints: str = ""
    files: Mapping[str, Sequence[str]] = {}
    folders: Sequence[str] = ()
    defaults: Mapping[str, Any] = {}
    switches: Mapping[str, Mapping[str, Any]] = {}
    refused: Mapping[str, str] = {}
    neutral: Sequence[Any] = ()
    idle: Sequence[str] = ()


class Tool:
    """A program and its table, read when it is needed."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def table(self) -> Table:
        """What it calls things."""
        return Table(**read_catalogue(_FOLDER / f"{self.name}.yaml"))

    @cached_property
    def keys(self) -> Mapping[str, Any]:
        """The keys of its table and of the one that it includes."""
        included = Tool(self.table.includes).keys if self.table.includes else {}
        return {**included, **self.table.keys}

    def inner(self, key: str) -> str:
        """A key without what stands in front of it."""
        return re.sub(rf"^({self.table.under})\.", "", key) if self.table.under else key

    def is_switched_off(self, key: str, flat: Flat) -> bool:
        """Whether a key stands in a part of a file that another key turns off."""
        switches = (switch for part, switch in self.table.switches.items() if key.startswith(f"{part}."))
        return any(flat.get(switch) == off for one in switches for switch, off in one.items() if switch != key)

    def classes_of(self, flat: Flat) -> Iterator[tuple[str, str]]:
        """Parts of a file that do not name their class, each with it."""
        for part, classes in self.table.classes.items():
            if f"{part}._target_" not in flat:
                yield from [(part, name) for name, key in classes.items() if f"{part}.{key}" in flat][:1]

    def applies(self, key: str, flat: Flat) -> bool:
        """Whether a default of the program is one of this file: not in a part that `under` names and that it lacks."""
        part = key.removesuffix(self.inner(key))
        return not part or any(other.startswith(part) and not self.is_switched_off(other, flat) for other in flat)

    @cached_property
    def idle(self) -> Sequence[str]:
        """Patterns of keys without effect; those of the included table too, unless keys are flags."""
        included = Tool(self.table.includes).idle if self.table.includes and not self.table.flags else ()
        return (*self.table.idle, *included)

    def is_idle(self, key: str) -> bool:
        """Whether a key is known to have no effect on a step."""
        return any(fnmatchcase(name, pattern) for pattern in self.idle for name in {key, self.inner(key)})

    def is_that_of(self, flat: Flat) -> bool:
        """Whether a file has the keys by which the program is recognised."""
        return any(all(_has(flat, pattern) for pattern in patterns) for patterns in self.table.known_by)


def _has(flat: Flat, pattern: str) -> bool:
    return any(fnmatchcase(key, pattern) or fnmatchcase(key, f"{pattern}.*") for key in flat)


TOOLS: Mapping[str, Tool] = {
    name: Tool(name)
    for name in (
        "primus", "megatron_recipes", "nemo_rl", "verl", "skyrl", "slime", "megatron_bridge", "nemo", "nanotron",
        "maxtext", "torchtitan", "torchtune", "axolotl", "llama_factory", "accelerate", "deepspeed", "trainer",
    )
}  # fmt: skip


def recognised(flat: Flat) -> Iterator[Tool]:
    """The programs whose keys a file has; the first is the most particular one."""
    return (tool for tool in TOOLS.values() if tool.is_that_of(flat))


def tool_of(flat: Flat, name: str, otherwise: Tool | None = None) -> Tool:
    """The program that a file is for.

    Raises:
        UsageError: none is recognised, and there is no other choice.
    """
    tool = next(recognised(flat), otherwise)
    if tool is None:
        raise UsageError(f"{name}: not recognised as a file of {', '.join(TOOLS)}; say which with --tool")
    return tool
