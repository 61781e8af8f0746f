"""A plan from which moves are made: its scenario, and what the file with it states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from hybrid_des.scenario.composition import value_at
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.studies.neighbours.framework import MEGATRON, TORCHTITAN, Framework, framework_of
from hybrid_des.workload.models.kinds.transformer import Transformer

Settings = Mapping[str, object]  # key of a scenario → new value; None: the key is left out


@dataclass(frozen=True)
class Position:
    """A plan from which moves are made.

    Attributes:
        scenario: the plan.
        document: what its file states.
        settings: what it has set so far, from the plan that advice is asked on.
        kinds: the kinds of the moves that led to it.
    """

    scenario: Scenario
    document: Document
    settings: Settings
    kinds: tuple[str, ...] = ()

    def states(self, path: str) -> bool:
        """Whether the file gives a key."""
        return value_at(self.document.value, path) is not None

    def without(self, *paths: str) -> dict[str, object]:
        """Settings that leave out those of these keys that the file gives."""
        return {path: None for path in paths if self.states(path)}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of ranks along each axis that divides the job."""
        parallel = self.scenario.parallel
        return {axis: getattr(parallel, axis) for axis in ("tensor", "context", "pipeline", "data")}

    @property
    def batch(self) -> int:
        """Samples of a step, over all replicas."""
        schedule = self.scenario.schedule
        return schedule.microbatches * schedule.microbatch_size * self.scenario.parallel.data

    def divided(self, data: int, size: int) -> dict[str, object] | None:
        """Settings that keep the samples of a step with other replicas or micro-batches; None if none do.

        Args:
            data: the number of replicas.
            size: the samples of a micro-batch, at most; fewer where a replica's samples are no multiple.
        """
        if self.batch % data:
            return None
        each = self.batch // data
        if self.scenario.model is None:
            return {"schedule.microbatches": each}
        size = max(one for one in range(1, size + 1) if each % one == 0)
        settings: dict[str, object] = {} if self.scenario.batch is not None else {"batch": self.batch}
        settings |= self.without("schedule.microbatches")
        if size != self.scenario.schedule.microbatch_size:
            settings["schedule.microbatch_size"] = size
        return settings

    @cached_property
    def framework(self) -> Framework | None:
        """What starts it."""
        return framework_of(self.scenario)

    @property
    def by_megatron(self) -> bool:
        """Whether Megatron-LM starts it."""
        return self.framework is not None and self.framework.name == MEGATRON

    @property
    def by_torchtitan(self) -> bool:
        """Whether torchtitan starts it."""
        return self.framework is not None and self.framework.name == TORCHTITAN

    @property
    def blocks(self) -> int:
        """The layers of a model that a pipeline divides; 0 if that is unknown."""
        options = None if self.scenario.model is None else self.scenario.model.options
        return options.layers if isinstance(options, Transformer) else 0
