"""Progress of a plan's programs when they run concurrently, each action after the ops that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hybrid_des.pipeline.op import KINDS, NEEDS, Action, Kind, Path, Place

RESULT: Mapping[Kind, int] = {"F": 0, "B": 1, "I": 1, "W": 2}  # activations, their gradients, weight gradients
NEEDED = {kind: {(RESULT[other], away): None for other, away in NEEDS[kind]} for kind in KINDS}  # without duplicates
MARK: Mapping[Kind, int] = {"F": 1, "B": 1, "I": 2, "W": 2}  # how a result is marked: 2 where the backward is split


class RepeatedOpError(Exception):
    """An op occurs twice."""


def actions_done(
    programs: Sequence[Sequence[Action]], paths: Sequence[Path], path_of: Sequence[int], stage_of: Mapping[Place, int]
) -> list[int] | None:
    """Number of actions that each rank completes before no rank can proceed.

    None if an op is repeated, or not where it belongs, or if all are done and one is missing.
    """
    stride = len(path_of)
    beyond = b"\1" * stride  # a stage has one byte per micro-batch; beyond either end, all results exist
    results = [bytearray(beyond + bytes(stride * len(paths[0])) + beyond) for _ in range(3)]
    result_of = {kind: results[RESULT[kind]] for kind in KINDS}
    needed = {kind: [(results[result], away * stride) for result, away in NEEDED[kind]] for kind in KINDS}
    path_at = dict(enumerate(path_of))
    waiting: dict[int, list[int]] = {}  # index of a result → ranks that wait for it
    at = [0] * len(programs)

    def run(rank: int) -> Iterator[None]:
        first = [{chunk: (stage_of[r, chunk] + 1) * stride for r, chunk in path if r == rank} for path in paths]
        for action in programs[rank]:
            for kind, microbatch, chunk in action:
                place = first[path_at[microbatch]][chunk] + microbatch
                for result, away in needed[kind]:
                    while not result[place + away]:
                        waiting.setdefault(place + away, []).append(rank)
                        yield
            for kind, microbatch, chunk in action:
                place = first[path_at[microbatch]][chunk] + microbatch
                result = result_of[kind]
                if result[place]:
                    raise RepeatedOpError
                result[place] = MARK[kind]
                if place in waiting:
                    ready.extend(waiting.pop(place))
            at[rank] += 1

    runs = [run(rank) for rank in range(len(programs))]
    ready = list(range(len(programs)))
    try:
        while ready:
            next(runs[ready.pop()], None)
    except (KeyError, RepeatedOpError):
        return None
    return at if at != [*map(len, programs)] or _complete(*results) else None


def _complete(forwards: bytearray, gradients: bytearray, weights: bytearray) -> bool:
    """Whether no op is missing: all results exist, and weight gradients exactly where the backward is split."""
    split, made = (marks.replace(b"\1", b"\0") for marks in (gradients, weights))
    return 0 not in forwards and 0 not in gradients and split == made
