"""Errors raised deliberately, and their exit codes.

A message is one line (for a deadlock, one line per rank): what is wrong, where, and what would be right.
"""

from collections.abc import Sequence


class HybridDesError(Exception):
    """Base of all errors a user can cause; `exit_code` is the exit status of the command line."""

    exit_code = 2


class UsageError(HybridDesError):
    """A command or an argument of a function is wrong."""


class ScenarioError(HybridDesError):
    """A scenario is wrong; `problems` holds one line per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Refusal(HybridDesError):
    """A schedule, collective or topology does not support the requested sizes; the message says which it supports."""


class TooLongError(HybridDesError):
    """A transfer takes implausibly long; the message names the unit that may have been forgotten."""


class PlanError(HybridDesError):
    """An order of ops is impossible: an op is missing, duplicated, misplaced or part of a circular wait."""


class SimulationError(HybridDesError):
    """The scenario is well-formed, but its simulation failed."""

    exit_code = 1


class DeadlockError(SimulationError):
    """Processes are stuck; the message names each stuck rank, its current op and what it waits for."""


class CircularOrderError(PlanError, DeadlockError):
    """A deadlock detected from the order alone, before simulation."""


class OutOfMemoryError(SimulationError):
    """A GPU exceeds its memory and the scenario says `on_oom: error`."""


class NumericsError(SimulationError):
    """A payload contains NaN or infinity, or a verified schedule differs from serial training."""
