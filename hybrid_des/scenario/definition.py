"""The scenario: a frozen, validated description of what is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from hybrid_des.options import Flag, Section, Text, choice, whole
from hybrid_des.scenario.checks import Sections, problems_of
from hybrid_des.scenario.defaults import fill
from hybrid_des.scenario.machine import Cluster
from hybrid_des.scenario.problem import Problems
from hybrid_des.scenario.reduction import Gradients
from hybrid_des.scenario.sections import Numerics, Parallel, Schedule, Workload


def _or_none(value: Any) -> Any:
    return None if value == "none" else value


class Scenario(Section):
    """A training step to simulate: machine, layout, schedule, costs."""

    version: Annotated[int, whole(1, 1)] = 1
    """Version of this format."""
    name: Text = "scenario"
    """Name in reports and output. Default: the file's stem."""
    description: Text = ""
    """What it shows."""
    cluster: Cluster
    parallel: Parallel = Field(default_factory=Parallel)
    schedule: Schedule
    workload: Workload
    gradients: Gradients = Field(default_factory=Gradients)
    numerics: Annotated[
        Numerics | None, BeforeValidator(_or_none, json_schema_input_type=Literal["none"] | Numerics | None)
    ] = None
    """Real training on the simulated GPUs."""
    steps: Annotated[int, whole(1, 2**22)] = 1
    """Training steps."""
    barrier: Flag = True
    """Whether all ranks start a step together."""
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0
    """Seed of all random numbers."""
    on_oom: Annotated[Literal["warn", "error"], choice("warn", "error")] = "warn"
    """What happens when a GPU runs out of memory."""
    record: Annotated[Literal["all", "compute", "none"], choice("all", "compute", "none")] = "all"
    """What the timeline records; compute: no rows for messages; none: summary only."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return fill(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        sections = Sections(self.cluster, self.parallel, self.schedule, self.workload, self.gradients, self.numerics)
        problems = problems_of(sections)
        if problems:
            raise Problems(problems)
        return self
