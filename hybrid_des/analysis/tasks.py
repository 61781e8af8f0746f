"""Tasks that do not depend on each other, such as what-ifs, and who runs them: here one after the other.

`hybrid_des.studies.forked` runs them in several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Task = Callable[[], Any]
AtOnce = Callable[[Sequence[Task]], list[Any]]  # runs tasks; returns their results in the order of the tasks


@dataclass(frozen=True)
class LocalTask:
    """A task that is run for what it leaves in this process, which other processes would not pass on.

    Where others run tasks, this process runs it meanwhile; anywhere else it is a task like any other.
    """

    task: Task

    def __call__(self) -> None:
        """Run it."""
        self.task()


def in_turn(tasks: Sequence[Task]) -> list[Any]:
    """Run tasks one after the other."""
    return [task() for task in tasks]


def grouped(groups: Sequence[Sequence[Task]], at_once: AtOnce) -> list[list[Any]]:
    """Run the tasks of several groups together; the results of each group."""
    results = iter(at_once([task for group in groups for task in group]))
    return [[next(results) for _ in group] for group in groups]
