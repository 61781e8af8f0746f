"""A scenario as its checks read it: the sections that several of them compare.

The checks stand below the `Scenario` that runs them, so they name what they read, and not the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.experts import ExpertTraffic
from hybrid_des.scenario.sections.numerics import Numerics
from hybrid_des.scenario.sections.training import Gradients, ModelChoice, Parallel, Schedule, Workload


class Whole(Protocol):
    """What checks of a whole scenario read of it; each attribute is the `Scenario`'s of that name."""

    # fmt: off
    @property
    def cluster(self) -> Cluster: ...  # noqa: D102
    @property
    def parallel(self) -> Parallel: ...  # noqa: D102
    @property
    def schedule(self) -> Schedule: ...  # noqa: D102
    @property
    def gradients(self) -> Gradients: ...  # noqa: D102
    @property
    def workload(self) -> Workload | None: ...  # noqa: D102
    @property
    def model(self) -> ModelChoice | None: ...  # noqa: D102
    @property
    def numerics(self) -> Numerics | None: ...  # noqa: D102
    @property
    def experts(self) -> ExpertTraffic: ...  # noqa: D102
    @property
    def recompute(self) -> str | tuple[str, ...]: ...  # noqa: D102
    @property
    def sharding(self) -> str: ...  # noqa: D102
    @property
    def tensor_traffic(self) -> str: ...  # noqa: D102
    @property
    def fold(self) -> int | str: ...  # noqa: D102
    @property
    def record(self) -> str: ...  # noqa: D102
    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def barrier(self) -> bool: ...  # noqa: D102
    @property
    def fsdp(self) -> bool: ...  # noqa: D102
    @property
    def outer_groups(self) -> int: ...  # noqa: D102
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self: ...  # noqa: D102
    # fmt: on
