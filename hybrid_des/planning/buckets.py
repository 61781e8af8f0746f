"""Buckets: how a stage's gradients are split for reduction, and when each bucket is ready.

A rank accumulates gradients over its micro-batches in place, so buckets are filled only by the op that computes the
weight gradients of the stage's last micro-batch (W if the backward is split).

    stage      equal buckets of at most `bucket`; all are ready when that op ends
    ddp        PyTorch's DistributedDataParallel: whole tensors in reverse order; one that reaches the cap closes its
               bucket, of 1 MiB for the first (`first_bucket`; newer versions: by default only), then 25 MiB by default
               (docs.pytorch.org/docs/stable/notes/ddp; compute_bucket_assignment_by_size in
               torch/csrc/distributed/c10d/reducer.cpp). Each is ready as soon as the hook of its last gradient has
               run, during that op. Where tensors are unknown, buckets are cut to the caps, evenly
    megatron   also ready during that op, but only the first chunk of the first pipeline rank is split: the other
               stages finish earlier, off the critical path, and keep one bucket each; the default is 40 million
               gradients per bucket, or one million per replica if that is more (Megatron without overlap keeps one
               bucket per stage; here the given size is used)
               (NVIDIA/Megatron-LM, megatron/core/distributed/distributed_data_parallel.py)

Gradients are assumed to become ready at a constant rate. Without `overlap`, all buckets are sent after the pipeline.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.errors import Refusal
from hybrid_des.units import split_evenly

FIRST = 2**20  # bytes: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES


MOST = 2**20  # buckets per stage


DONE = Fraction(1)


class Bucket(NamedTuple):
    """Gradients that are reduced together: their number, and the fraction of the op after which they are ready."""

    elements: int
    leaves: Fraction


def buckets_of(
    parameters: int,
    codec: Codec,
    size: int | None,
    rule: str,
    stage: int,
    tensors: Sequence[int] = (),
    *,
    first: int | None = FIRST,
) -> tuple[Bucket, ...]:
    """Split a stage's gradients into buckets of at most `size` bytes on the wire (None: one bucket).

    With `ddp` and tensors, in the order of the forward, buckets consist of whole ones, and the last may exceed `size`.
    `first` is the cap of its first bucket (None: that of the others).

    Raises:
        Refusal: there would be too many buckets.
    """
    if size is None or (rule == "megatron" and stage > 0):
        return (Bucket(parameters, DONE),)
    if rule == "stage":
        return tuple(Bucket(elements, DONE) for elements in _even(parameters, codec, size))
    sizes, cap = _even(parameters, codec, size), min(first or size, size)
    if rule == "ddp" and tensors:
        sizes = _whole(tensors, codec, size, cap)
    elif rule == "ddp":
        most = _most(parameters, codec, cap)
        sizes = [most, *_even(parameters - most, codec, size)] if most < parameters else [parameters]
    ends = accumulate(sizes)
    return tuple(
        Bucket(n, Fraction(end, parameters) if parameters else DONE) for n, end in zip(sizes, ends, strict=True)
    )


def padded(buckets: Sequence[Bucket], multiple: int) -> tuple[Bucket, ...]:
    """Buckets padded to a multiple of the group's size, on each channel, so that all members hold equal shares.

    As in Megatron's distributed optimizer, whose multiple is the least of the group's size and 128, and 2¹⁶ if asked
    (NVIDIA/Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py).
    """
    return tuple(bucket._replace(elements=-(-bucket.elements // multiple) * multiple) for bucket in buckets)


def _even(elements: int, codec: Codec, size: int) -> Sequence[int]:
    count = max(1, -(-codec.payload_bytes(elements) // size))
    if count > MOST:
        raise Refusal(f"gradients.bucket: {size} bytes split a stage into {count} buckets; at most {MOST}")
    return split_evenly(elements, count)


def _whole(tensors: Sequence[int], codec: Codec, size: int, cap: int) -> list[int]:
    """The elements of buckets of whole tensors, the last ones first; each is closed by the tensor that fills it."""
    sizes, held = list[int](), 0
    for elements in reversed(tensors):
        held += elements
        if codec.payload_bytes(held) >= cap:
            sizes.append(held)
            held, cap = 0, size
    return [*sizes, held] if held or not sizes else sizes


def _most(elements: int, codec: Codec, size: int) -> int:
    """The largest number of at most `elements` elements that fits into `size` bytes; at least one."""
    fitting = int(size / codec.bytes_per_element)
    while fitting > 1 and codec.payload_bytes(fitting) > size:
        fitting -= 1
    return max(1, min(elements, fitting))
