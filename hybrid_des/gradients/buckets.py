"""Buckets: in which parts a stage's gradients are reduced, and when each part may leave.

A rank accumulates gradients over its micro-batches in place, so nothing leaves before the last one: the op of the
stage's last micro-batch that computes weight gradients (W where the backward is split) is the one that fills buckets.

    stage      a stage is cut into equal buckets of at most `bucket`; all of them leave when that op ends
    ddp        PyTorch's DistributedDataParallel: buckets in reverse order of parameters, the first of at most 1 MiB
               (newer versions: only where the size is left at its default); each leaves as soon as the hook of its
               last gradient has run, so during that op; 25 MiB by default
               (docs.pytorch.org/docs/stable/notes/ddp, torch/csrc/distributed/c10d/reducer.hpp)
    megatron   the same while that op runs, but only the first pipeline rank's first chunk is cut: the other stages are
               finished earlier and off the critical path, and keep one bucket each; by default a bucket holds
               40 million gradients, or a million for each replica where that is more (there, without overlap, all
               stages keep one; here what is given is obeyed)
               (NVIDIA/Megatron-LM, megatron/core/distributed/distributed_data_parallel.py)

Gradients are taken to appear evenly over that op. Without `overlap` everything leaves after the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from hybrid_des.collectives.codecs import Codec
from hybrid_des.errors import Refusal
from hybrid_des.units import split_evenly

FIRST = 2**20  # bytes: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
MOST = 2**20  # buckets of a stage
DONE = Fraction(1)


class Bucket(NamedTuple):
    """Gradients that are reduced together: how many, and the share of the completing op after which all are there."""

    elements: int
    leaves: Fraction


def buckets_of(parameters: int, codec: Codec, size: int | None, rule: str, stage: int) -> tuple[Bucket, ...]:
    """Cut a stage's gradients into buckets of at most `size` bytes on the wire (None: one bucket).

    Raises:
        Refusal: that would be too many.
    """
    if size is None or (rule == "megatron" and stage > 0):
        return (Bucket(parameters, DONE),)
    if rule == "stage":
        return tuple(Bucket(elements, DONE) for elements in _even(parameters, codec, size))
    sizes = _even(parameters, codec, size)
    if rule == "ddp":
        first = _most(parameters, codec, min(FIRST, size))
        sizes = [first, *_even(parameters - first, codec, size)] if first < parameters else [parameters]
    ends = accumulate(sizes)
    return tuple(
        Bucket(n, Fraction(end, parameters) if parameters else DONE) for n, end in zip(sizes, ends, strict=True)
    )


def _even(elements: int, codec: Codec, size: int) -> Sequence[int]:
    count = max(1, -(-codec.payload_bytes(elements) // size))
    if count > MOST:
        raise Refusal(f"gradients.bucket: {size} bytes cut the gradients of a stage into {count}; at most {MOST}")
    return split_evenly(elements, count)


def _most(elements: int, codec: Codec, size: int) -> int:
    """The most elements, of so many, that fit into a size; at least one."""
    fitting = int(size / codec.bytes_per_element)
    while fitting > 1 and codec.payload_bytes(fitting) > size:
        fitting -= 1
    return max(1, min(elements, fitting))
