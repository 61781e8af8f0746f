"""Which prompts may be begun: one inequality for all frameworks.

    begun ≤ trained + (1 + s)·N       N prompts between two weight syncs, s = `rl.ahead`, the allowed staleness

`trained` counts prompts as of the last sync, or with `rl.counted: now` as of now. Prompts that were thrown away (too
old, or with equal rewards) do not count as begun, so that others are drawn. With `rl.barrier`, a batch may be begun
when the batch before has been taken, whatever s is:

    begun ≤ (batches taken + 1)·(prompts of a batch)
"""

from __future__ import annotations

from math import floor

from hybrid_des.scenario.sections.rl import Rl


class Admission:
    """Counts prompts.

    Args:
        rl: the section.
        prompts: of a batch.

    Attributes:
        begun, gone, taken, trained: prompts so far: begun, thrown away, taken by the trainer, trained.
    """

    def __init__(self, rl: Rl, prompts: int) -> None:
        self.begun = self.gone = self.taken = self.trained = 0
        self._prompts, self._barrier, self._at_once = prompts, rl.barrier, rl.counted == "now"
        self._allowance = floor((1 + rl.ahead) * prompts * rl.sync.every)
        self._counted = 0

    @property
    def limit(self) -> int:
        """How many prompts may have been begun by now, without those thrown away."""
        if self._barrier:
            return (self.taken // self._prompts + 1) * self._prompts
        return (self.trained if self._at_once else self._counted) + self._allowance

    @property
    def open(self) -> bool:
        """Whether another prompt may be begun."""
        return self.begun - self.gone < self.limit

    def synced(self) -> None:
        """Count what has been trained."""
        self._counted = self.trained

    def told(self) -> str:
        """The inequality with its numbers."""
        begun = f"{self.begun - self.gone} prompts have been begun"
        return f"{begun}, of {self.limit} that {'rl.barrier' if self._barrier else 'rl.ahead'} allows"
