"""Plans for which a way to simulate them failed or worked, remembered for later runs of the same process."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from weakref import WeakValueDictionary

from hybrid_des.pipeline.plan import Plan


class NotedPlans:
    """Plans by identity, since comparing them takes long, and by how they were simulated; they are not kept alive."""

    def __init__(self) -> None:
        self._plans: WeakValueDictionary[Hashable, Plan] = WeakValueDictionary()

    def __iter__(self) -> Iterator[Plan]:
        return self._plans.values()

    def has(self, plan: Plan, *how: Hashable) -> bool:
        """Whether a plan that was simulated so is noted."""
        return self._plans.get((id(plan), *how)) is plan

    def note(self, plan: Plan, *how: Hashable) -> None:
        """Note a plan that was simulated so."""
        self._plans[id(plan), *how] = plan

    def drop(self, plan: Plan, *how: Hashable) -> bool:
        """Forget a plan that was simulated so; whether it was noted."""
        return self._plans.pop((id(plan), *how), None) is plan

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()
