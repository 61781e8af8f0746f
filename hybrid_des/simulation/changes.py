"""Changes to the durations of ops that no scenario key can express: one rank faster, all ranks alike.

A change is a function of the global rank, the task and one of its durations. It is applied to
lowered programs, so it sees the effects of everything else on durations.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from hybrid_des.planning.tasks import Compute, ComputeBeside, Program, Segment, Task, Work

Retime = Callable[[int, Task, int], int]


def retimed(program: Program, rank: int, retime: Retime) -> Program:
    """The program of a rank with other durations."""
    known: dict[tuple[int, tuple[int, ...]], Work] = {}

    def changed(task: Task) -> Task:
        work = task.work
        durations = tuple(
            retime(rank, task, segment.duration)
            for segment in work.segments
            if isinstance(segment, Compute | ComputeBeside)
        )
        key = (id(work), durations)
        if key not in known:
            left = iter(durations)
            known[key] = work._replace(segments=tuple(_with(segment, left) for segment in work.segments))
        return task._replace(work=known[key])

    return replace(program, compute=tuple(map(changed, program.compute)), update=tuple(map(changed, program.update)))


def _with(segment: Segment, durations: Iterator[int]) -> Segment:
    if isinstance(segment, Compute | ComputeBeside):
        return segment._replace(duration=next(durations))
    return segment
