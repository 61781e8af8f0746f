"""What Megatron-LM asserts before it trains, checked on any line; the table is in `megatron_refusals.yaml`."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hybrid_des.files import read_catalogue
from hybrid_des.interchange.frameworks.launch_line import is_off
from hybrid_des.workload.models.stages import stages_in

_TABLES = read_catalogue(Path(__file__).with_name("megatron_refusals.yaml"))


class Line:
    """The flags of a launch line, with Megatron-LM's defaults.

    Attributes:
        ranks: the number of GPUs; None if the line does not say.
        tensor, pipeline, context, expert: ranks along an axis.
        expert_tensor: tensor ranks of an expert.
        expert_ranks: ranks over which experts are divided, whole or in parts.
        context_halves: the parts into which context ranks divide a sequence: two of each.
        heads, groups: heads of attention; those of keys and values.
        layers: those that are divided over stages, with the ends where they count as one.
        layers_of_virtual_stages: layers of one virtual stage of each pipeline rank.
    """

    def __init__(self, flags: Mapping[str, Sequence[str]], ranks: int | None = None) -> None:
        self._flags = {flag: words for flag, words in flags.items() if not is_off(words)}
        self.ranks = ranks
        self.tensor = self.size("--tensor-model-parallel-size", 1)
        self.pipeline = self.size("--pipeline-model-parallel-size", 1)
        self.context = self.size("--context-parallel-size", 1)
        self.expert = self.size("--expert-model-parallel-size", 1)
        self.expert_tensor = self.size("--expert-tensor-parallel-size", self.tensor)
        self.expert_ranks, self.context_halves = self.expert_tensor * self.expert, 2 * self.context
        self.heads = self.size("--num-attention-heads", self.tensor)
        self.groups = self.size("--num-query-groups", 1) if self.holds("--group-query-attention") else self.heads
        counted = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
        self.layers = self.size("--num-layers") + sum(map(self.holds, counted))
        self.layers_of_virtual_stages = self.pipeline * self.size("--num-layers-per-virtual-pipeline-stage", 1)

    def holds(self, condition: str) -> bool:
        """Whether a condition of the table holds."""
        first, *others = condition.split()
        if others[:1] == [">"]:
            return self._number(first) > self._number(others[1])
        if others[:1] == ["%"]:
            return self._number(first) % max(1, self._number(others[1])) != 0
        return bool({*others} & {*self._words(first)}) if others else first in self._flags

    def _words(self, flag: str) -> Sequence[str]:
        return self._flags.get(flag) or [_TABLES["defaults"].get(flag, "")]

    def _number(self, name: str) -> int:
        if name.isdecimal():
            return int(name)
        return self.size(name) if name.startswith("--") else int(getattr(self, name) or 0)

    def size(self, flag: str, default: int = 0) -> int:
        """The number from 1 that follows a flag; the default without the flag, or if it is none."""
        word = next(iter(self._flags.get(flag, ())), "")
        return (int(word) if re.fullmatch(r"[0-9]{1,15}", word) else 0) or default

    @property
    def virtual(self) -> int:
        """Virtual stages per pipeline rank; 1 where they are not interleaved."""
        if layout := self._flags.get("--pipeline-model-parallel-layout"):
            return len(stages_in(layout[0])) // self.pipeline
        each = self.size("--num-layers-per-virtual-pipeline-stage")
        if each:
            return max(1, self.layers // (self.pipeline * each))
        return self.size("--num-virtual-stages-per-pipeline-rank", 1)

    @property
    def microbatches(self) -> int | None:
        """Micro-batches of a step; None if the line does not say."""
        replica, batch = self.tensor * self.pipeline * self.context, self.size("--global-batch-size")
        if not self.ranks or self.ranks % replica or not batch:
            return None
        return batch // (self.ranks // replica * self.size("--micro-batch-size", 1))

    @property
    def layers_left_over(self) -> int:
        """Layers that cannot be divided evenly over stages, where nothing else says how."""
        ends = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
        if self.pipeline == 1 or any(map(self.holds, (*ends, "--pipeline-model-parallel-layout"))):
            return 0
        return self.layers % (self.pipeline * self.virtual)


class Refused(NamedTuple):
    """A row: Megatron-LM refuses a line with `flag`, or with its value `of`, where conditions hold."""

    flag: str
    expected: str
    source: str
    when: Iterable[str]
    unless: Iterable[str] = ()
    of: str = ""

    def __str__(self) -> str:
        """The flag, and what is expected."""
        return f"{self.flag}:{f' {self.of}:' if self.of else ''} expected {self.expected}"


TABLE = [Refused(**row) for row in _TABLES["rows"]]


def refusals(line: Line) -> Iterator[str]:
    """One line per assertion that a launch line violates, which starts with the flag."""
    violated = (row for row in TABLE if all(map(line.holds, row.when)) and not any(map(line.holds, row.unless)))
    yield from dict.fromkeys(map(str, violated))
