"""Everything that can go wrong on purpose, and the exit code each maps to.

A message is one line (a deadlock: one line a rank), says what is wrong, where, and what would be right.
"""

from __future__ import annotations

from collections.abc import Sequence


class HybridDesError(Exception):
    """Base of every error a user can cause; `exit_code` is what the command line ends with."""

    exit_code = 2


class UsageError(HybridDesError):
    """The command, or a value handed to a function, is wrong."""


class ScenarioError(HybridDesError):
    """A scenario is wrong; `problems` holds one line for each thing to mend."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Refusal(HybridDesError):
    """A schedule, collective or topology does not exist for the sizes asked for; the message says which do."""


class TooLongError(HybridDesError):
    """A message takes longer than can be meant; the message says which unit may have been forgotten."""


class PlanError(HybridDesError):
    """An order of operations is impossible: something is missing, doubled, misplaced or waits in a circle."""


class SimulationError(HybridDesError):
    """The scenario is well-formed, but its simulation could not be carried through."""

    exit_code = 1


class DeadlockError(SimulationError):
    """Processes are stuck; the message names each stuck rank, the operation it is at and what it waits for."""


class CircularOrderError(PlanError, DeadlockError):
    """A deadlock that can be seen from the order alone, before anything is simulated."""


class OutOfMemoryError(SimulationError):
    """A GPU holds more than its memory while the scenario says `on_oom: error`."""


class NumericsError(SimulationError):
    """A payload holds NaN or infinity, or a verified schedule computes something else than serial training."""
