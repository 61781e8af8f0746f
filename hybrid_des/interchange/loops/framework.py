"""What is known of a framework's logs, and a log while it is read."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN
from hybrid_des.interchange.loops.settings import Setting, Settings
from hybrid_des.interchange.loops.steps import Form, Mean, Steady, mean_of
from hybrid_des.options import describe
from hybrid_des.units import as_number

STEP, SAMPLES, ENGINES, UPDATE, PASS, SYNC, SWITCH, OTHER = (
    "step", "samples", "engines", "update", "pass", "sync", "switch", "other",
)  # fmt: skip
_NOTHING = (None, "", "None")
MEAN, LARGEST, SHARE, DEVIATION, PROMPT = "mean", "largest", "share", "deviation", "prompt"
WHOLE_BATCH = "all samples of a batch are generated before it is trained"


class Framework(NamedTuple):
    """A framework and the words of its logs.

    Attributes:
        title: what it is called.
        tool: its table in `interchange.jobs`, by which the trainer's settings are read.
        form: how it prints the numbers of a step.
        marks: what only its logs have, to name it where another framework was expected.
        needed: numbers that a whole step has; alternatives with a bar between them.
        phases: a number of seconds → the phase that it belongs to:
            step      all of it
            samples   generation where engines and trainer take turns, else what the trainer waits for samples
            engines   generation on GPUs of its own
            update    training; pass: forward-only passes before it
            sync      new weights to the engines
            switch    memory from one side to the other, each way
            other     validation and checkpoints
        lengths: what is known of responses (mean, largest, share at the cap, deviation) and prompts → its number.
        settings: path of a scenario → its settings, the first that is given counts.
        defaults: setting → the framework's own value.
        trainer: patterns of the settings that are the trainer's.
        shape: puts what follows from several settings.
        change: changes plain settings before the trainer's are read.
        inside: whether the wait for samples has the sync in it.
    """

    title: str
    tool: str
    form: Form
    marks: re.Pattern[str]
    needed: Sequence[str]
    phases: Mapping[str, str]
    lengths: Mapping[str, str]
    settings: Mapping[str, Sequence[str]]
    defaults: Mapping[str, Any]
    trainer: Sequence[str]
    shape: Callable[["Reading"], "Shape"]
    change: Callable[["Reading", dict[str, Any], "Shape"], None]
    inside: bool = False


class Side(NamedTuple):
    """GPUs of the trainer, or of the engines."""

    nodes: int
    per_node: int

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.nodes * self.per_node


class Shape(NamedTuple):
    """What follows from settings of a loop.

    Attributes:
        updates: optimizer steps between two weight syncs; None: not known.
        trainer: its GPUs; None: not known.
        apart: whether the engines have GPUs of their own.
        logged: batches of `updates` optimizer steps that one step of the log holds.
        overlaps: whether generation goes on while the trainer works.
    """

    updates: int | None
    trainer: Side | None
    apart: bool
    logged: float = 1
    overlaps: bool = False


@dataclass
class Reading:
    """A log while it is read.

    Attributes:
        name: of the file, for errors.
        framework: which one.
        settings: its settings, each with its line.
        steady: the steps that are averaged.
        values: a scenario's, by path.
        sources: which number came from which line.
        assumed: what nothing says, one line each.
        asked: what is to be stated, a line for each path.
    """

    name: str
    framework: Framework
    settings: Settings
    steady: Steady
    values: dict[str, Any] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)

    def get(self, *keys: str) -> Setting | None:
        """The first of some settings that has a value; else the framework's own value of one."""
        given = (
            self.settings[key] for key in keys if key in self.settings and self.settings[key].value not in _NOTHING
        )
        own = (Setting(self.framework.defaults[key], 0) for key in keys if key in self.framework.defaults)
        return next(given, next(own, None))

    def value(self, *keys: str) -> Any:
        """The value of the first of some settings that has one; None without."""
        setting = self.get(*keys)
        return None if setting is None else setting.value

    def whole(self, *keys: str, least: int = 1) -> int | None:
        """A setting that is a whole number.

        Raises:
            UsageError: it is none; the message has file and line.
        """
        setting = self.get(*keys)
        if setting is None:
            return None
        try:
            number = int(str(setting.value)) if not isinstance(setting.value, bool) else -1
        except ValueError:
            number = -1
        if number < least:
            where = f"{self.name}:{setting.line}" if setting.line else self.name
            expected = f"expected a whole number from {least}, found {describe(setting.value)}"
            raise UsageError(f"{where}: {' or '.join(keys)}: {expected}")
        return number

    def where(self, *keys: str) -> str:
        """Which settings something comes from: `data.train_batch_size, line 12`."""
        named, own = [], f"{self.framework.title}'s default of "
        for key in keys:
            if key in self.settings:
                named.append(f"{key}, line {self.settings[key].line}" if self.settings[key].line else key)
            elif key in self.framework.defaults:
                named.append(own + key)
        return "; ".join(named)

    def put(self, path: str, value: Any, source: str, shown: str | None = None) -> None:
        """Set a value of the scenario, and say where it comes from."""
        self.values[path] = value
        self.sources.append(f"{path} {str(value) if shown is None else shown}: {source}")

    def key(self, *keys: str) -> str:
        """The first of some settings that is given, or that has an own value."""
        return next((key for key in keys if key in self.settings or key in self.framework.defaults), keys[0])

    def flag(self, *keys: str) -> bool:
        """Whether a setting is on."""
        return str(self.value(*keys)).lower() == "true"

    def copy(self, path: str, *keys: str) -> None:
        """Put a setting's value as it is, if it has one."""
        setting = self.get(*keys)
        if setting is not None:
            value = as_number(setting.value) if isinstance(setting.value, str) else setting.value
            self.put(path, value, self.where(self.key(*keys)))

    def ask(self, path: str, what: str) -> None:
        """Leave a value open that nothing says."""
        self.values[path] = UNKNOWN
        self.asked[path] = f"{path}: nothing in the log says {what}; state it with --set {path}=VALUE"

    def mean(self, *phases: str) -> Mean | None:
        """The mean of what some phases take, in seconds of a step of the log."""
        return mean_of(self.steady.steps, [name for name, phase in self.framework.phases.items() if phase in phases])

    def length(self, what: str) -> Mean | None:
        """The mean of a number of lengths."""
        name = self.framework.lengths.get(what)
        return None if name is None else mean_of(self.steady.steps, [name])


def put_batch(reading: Reading, batch: int | None, *keys: str) -> None:
    """Put the samples of an optimizer step."""
    if batch:
        reading.put("batch", batch, f"samples of an optimizer step: {reading.where(*keys)}")
    else:
        reading.ask("batch", "the samples of an optimizer step")


def put_updates(reading: Reading, updates: int | None, why: str, *keys: str) -> None:
    """Put the optimizer steps of a batch that is all there before it is trained."""
    if updates:
        reading.put("rl.updates", updates, reading.where(*keys))
        reading.put("rl.take", updates, why)


def put_packing(reading: Reading, packing: str, tokens: int | None, ranks: int, *keys: str) -> None:
    """Put how micro-batches are packed: with up to so many tokens per GPU, for so many context ranks."""
    if tokens:
        reading.put("data.packing", packing, reading.where(*keys))
        reading.values["data.tokens"] = tokens * ranks


def put_sides(
    reading: Reading, trainer: Side | None, engines: Side | None, apart: bool, own: Sequence[str], theirs: Sequence[str]
) -> None:
    """Put which nodes are the trainer's, and which the engines'.

    Args:
        reading: the log.
        trainer: its GPUs; None: not known.
        engines: theirs.
        apart: whether the engines have GPUs of their own.
        own: the settings that say the trainer's GPUs.
        theirs: those that say the engines'.
    """
    if not apart:
        reading.put("rl.rollout.on", "trainer", "engines and trainer take turns on the same GPUs")
        return
    if trainer is None or engines is None:
        reading.ask("rl.rollout.nodes", f"the nodes that generate ({', '.join(theirs)})")
        return
    per_node = gcd(trainer.per_node, engines.per_node)
    first, count = trainer.gpus // per_node, engines.gpus // per_node
    where = reading.where(*own, *theirs)
    reading.put("cluster.nodes", first + count, where, f"{first + count}, of {per_node} GPUs")
    reading.values["cluster.gpus_per_node"] = per_node
    nodes = first if count == 1 else f"{first}-{first + count - 1}"
    reading.put("rl.rollout.nodes", nodes, f"those after the trainer's {first}")
    if per_node < max(trainer.per_node, engines.per_node):
        reading.assumed.append(f"cluster.gpus_per_node: {per_node}: nodes are counted in parts that one side has alone")
