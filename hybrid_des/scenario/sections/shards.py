"""The section that says among which ranks `sharding` divides, and when weights are gathered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from hybrid_des.options import Count, Flag, Section, choice
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.training import Parallel

LAYERED = ("zero-2", "zero-3")


class Shards(Section):
    """Sharding in groups of ranks (HSDP), and in pipelines."""

    ranks: Count | None = None
    """Neighbouring ranks, of those that hold the same parameters, that divide them. Default: all."""
    outside: Annotated[Literal["none", "zero-1"], choice("none", "zero-1")] = "none"
    """What is divided among these groups: nothing, so that they are replicas, or the optimizer's state."""
    reshard: Flag | None = None
    """With zero-3: whether weights are given back after each use, and gathered again. Default: not in pipelines."""

    def layered(self, sharding: str, parallel: Parallel) -> bool:
        """Whether gradients or weights are divided within a step, so that ranks communicate layer by layer."""
        again = self.ranks is not None or (sharding == "zero-3" and self.reshard is True)
        return sharding in LAYERED and (again or parallel.pipeline == 1)

    def kept(self, parallel: Parallel) -> bool:
        """Whether weights stay gathered within a step."""
        return parallel.pipeline > 1 if self.reshard is None else not self.reshard

    def of_experts(self, parallel: Parallel) -> int | None:
        """Of the ranks that hold the same experts, those that divide them; None: all."""
        if self.ranks is None:
            return None
        return max(1, self.ranks * parallel.tensor // (parallel.expert * parallel.of_expert))


def misfits_of_shards(shards: Shards, parallel: Parallel, sharding: str, *, layered: bool) -> Iterator[Problem]:
    """Groups that do not divide the ranks that hold the same, and settings without effect."""
    if shards.reshard is not None and sharding != "zero-3":
        yield misfit(f"is read with zero-3, which divides weights; not {sharding}", "shards.reshard", "sharding")
    if shards.ranks is None:
        if shards.outside != "none":
            yield misfit("is read with `shards.ranks`, which makes several groups", "shards.outside", "shards.ranks")
        return
    if not layered:
        yield misfit("two levels need layers that communicate one by one: zero-2 or zero-3", "shards.ranks", "sharding")
    holders = parallel.data * parallel.context
    if holders % shards.ranks:
        message = f"the {holders} ranks that hold the same parameters cannot be groups of {shards.ranks}"
        yield misfit(message, "shards.ranks", "parallel.data")
        return
    of_experts, each = holders * parallel.tensor // (parallel.expert * parallel.of_expert), shards.of_experts(parallel)
    if each and of_experts % each:
        message = f"the {of_experts} ranks that hold the same experts cannot be groups of {each}"
        yield misfit(message, "shards.ranks", "parallel.expert")
