"""The framework that starts a scenario, and what changes in its launch line from one plan to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hybrid_des.interchange.frameworks.launch_line import Launch, flags_of
from hybrid_des.interchange.frameworks.megatron import megatron
from hybrid_des.interchange.frameworks.torchtitan import SCHEDULES, torchtitan
from hybrid_des.scenario.definition import Scenario
from hybrid_des.workload.models.kinds.transformer import Transformer

MEGATRON = "Megatron-LM"
TORCHTITAN = "torchtitan"
STARTED_BY = {
    "megatron": MEGATRON, "deepspeed": MEGATRON, "pytorch": TORCHTITAN, "compiled": TORCHTITAN,
    "transformers": TORCHTITAN,  # by its experiments/transformers_modeling_backend
}  # fmt: skip
OF_MEGATRON = ("1f1b", "interleaved-1f1b")
LAUNCHES: dict[str, Callable[[Scenario], Launch]] = {MEGATRON: megatron, TORCHTITAN: torchtitan}


class Framework(NamedTuple):
    """A framework that starts scenarios.

    Attributes:
        name: what it is called.
        assumed: whether the scenario leaves it open.
    """

    name: str
    assumed: bool

    def launch(self, scenario: Scenario) -> Launch:
        """The line that starts a scenario."""
        return LAUNCHES[self.name](scenario)

    @property
    def schedules(self) -> tuple[str, ...]:
        """The schedules that it has."""
        return OF_MEGATRON if self.name == MEGATRON else tuple(SCHEDULES)

    def messages(self, kind: str, now: str) -> dict[str, str]:
        """What a schedule sets of the messages between stages, which Megatron-LM waits for with plain 1F1B only."""
        waits = "blocking" if kind == OF_MEGATRON[0] else "async"
        return {"schedule.p2p": waits} if self.name == MEGATRON and kind in OF_MEGATRON and now != waits else {}


def framework_of(scenario: Scenario) -> Framework | None:
    """What starts a scenario; None if it is neither Megatron-LM nor torchtitan."""
    options = None if scenario.model is None else scenario.model.options
    if not isinstance(options, Transformer):
        return None
    name = STARTED_BY.get(options.written or "megatron")
    return None if name is None else Framework(name, "written" not in options.model_fields_set)


def frameworks_of(scenario: Scenario) -> list[Framework]:
    """What starts a scenario; all of them, if that is not stated."""
    known = framework_of(scenario)
    return [known] if known and not known.assumed else [Framework(name, True) for name in LAUNCHES]


def changed_flags(before: Launch, after: Launch) -> tuple[str, ...]:
    """The flags that differ between two lines: those of the second, then those to drop."""
    first, second = (flags_of(" ".join(launch.flags).split()) for launch in (before, after))
    changed = [" ".join([flag, *words]) for flag, words in second.items() if first.get(flag) != words]
    dropped = [flag for flag in first if flag not in second]
    return (*changed, *([f"drop {', '.join(dropped)}"] if dropped else []))


def lacking(before: Launch, after: Launch) -> Sequence[str]:
    """What the framework cannot do of the second line, and can of the first."""
    known = {*before.unsaid, *before.refused}
    return [line for line in (*after.unsaid, *after.refused) if line not in known]
