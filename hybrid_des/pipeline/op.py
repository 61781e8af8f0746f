"""Operations of a pipeline rank on a micro-batch, their dependencies, and the paths through the model.

A stage is a part of the model, a chunk is one of the stages that a pipeline rank holds (a virtual pipeline stage).
`F` is a forward, `B` a whole backward, `I` its input gradient and `W` its weight gradient where the backward is split.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]
KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
WHOLE: tuple[Kind, ...] = ("F", "B")  # a micro-batch's ops on a stage …
SPLIT: tuple[Kind, ...] = ("F", "I", "W")  # … and where its backward is split

# The dependency rule: an op of a kind needs these ops of its micro-batch, at this offset in stages. Of B and I it needs
# the one that the stage has. A dependency across ranks is a message: an activation for a forward, a gradient for a
# backward.
NEEDS: Mapping[Kind, tuple[tuple[Kind, int], ...]] = {
    "F": (("F", -1),),
    "B": (("F", 0), ("B", +1), ("I", +1)),
    "I": (("F", 0), ("B", +1), ("I", +1)),
    "W": (("I", 0),),
}
SOURCE: Mapping[Kind, int] = {kind: offset for kind, needs in NEEDS.items() for _, offset in needs if offset}
"""Offset of the stage that sends an op's message; an op that is not listed receives none."""
TARGET: Mapping[Kind, int] = {kind: -offset for needs in NEEDS.values() for kind, offset in needs if offset}
"""Offset of the stage that receives an op's message; an op that is not listed sends none."""


class Op(NamedTuple):
    """One operation of a pipeline rank: its kind, its micro-batch, and the rank's chunk on which it runs."""

    kind: Kind
    microbatch: int
    chunk: int = 0


Action = tuple[Op, ...]  # one op, or two that run as one (F with B)
Place = tuple[int, int]  # (pipeline rank, chunk)
Path = tuple[Place, ...]  # a micro-batch's route through the model, stage by stage


def carried(op: Op) -> str:
    """Name the content of the messages that an op receives and sends."""
    return "activation" if op.kind == "F" else "gradient"


def loop(pipeline: int, chunks: int) -> Path:
    """Assign stages to ranks in turn: chunk c of rank r is stage c·p + r."""
    return tuple((rank, chunk) for chunk in range(chunks) for rank in range(pipeline))


def wave(pipeline: int, chunks: int) -> Path:
    """Even chunks run down the ranks, odd chunks back up; with two chunks this is a V."""
    down = range(pipeline)
    return tuple((rank, chunk) for chunk in range(chunks) for rank in (down if chunk % 2 == 0 else reversed(down)))


def two_way(pipeline: int) -> tuple[Path, Path]:
    """Two copies of the model: chunk 0 runs from rank 0 to p−1, chunk 1 from p−1 to 0."""
    return tuple((r, 0) for r in range(pipeline)), tuple((r, 1) for r in reversed(range(pipeline)))
