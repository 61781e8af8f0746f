"""Options of `hybrid-des measure`: which operators, collectives and pipelines, of which sizes, and where to write."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Options(NamedTuple):
    """What is measured.

    Attributes:
        out: the folder.
        modules: a user's function of stages, as MODULE:FUNCTION.
        shapes: what the first stage takes per micro-batch.
        model: the name of a published model, or the file of a scenario with one.
        tensor: numbers of tensor ranks that share the model's layers.
        pipeline: pipeline ranks; 1: no pipeline.
        chunks: numbers of chunks per rank.
        microbatches: of a pipeline.
        repeats: of each operator and collective.
        rounds: of each schedule.
        again: whether earlier rows in the folder are dropped.
    """

    out: Path
    modules: str | None = None
    shapes: str | None = None
    model: str | None = None
    tensor: tuple[int, ...] = (1,)
    pipeline: int = 1
    chunks: tuple[int, ...] = (1,)
    microbatches: int = 0
    repeats: int = 20
    rounds: int = 3
    again: bool = False
