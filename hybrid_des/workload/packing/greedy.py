"""Documents fill micro-batches in the order given (next fit).

    lengths         5 4 3 6 2 7 1            8 tokens per micro-batch
    micro-batches   [5] [4 3] [6 2] [7 1]    dealt to the replicas in turn

As the scheduler dp_balanced of NVIDIA/Megatron-LM (megatron/core/datasets/data_schedule.py) does it, also where the
number of micro-batches is no multiple of the replicas (and, with virtual stages, of the pipeline ranks): the last
documents of the last micro-batches that have several then get micro-batches of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_des.errors import Refusal
from hybrid_des.options import Options, TokenCount
from hybrid_des.workload.packing.registration import Packing, PackRequest, packer


class Filled(Options):
    """How much a micro-batch holds."""

    tokens: TokenCount | None = None
    """The most tokens of a micro-batch, over all of its context ranks. Default: those of its samples."""


def most_tokens(request: PackRequest, options: Filled) -> int:
    """The most tokens of a micro-batch."""
    return options.tokens or request.tokens


@packer("greedy", summary="in the order given, as many as fit", options=Filled, holds=most_tokens)
def greedy(lengths: Sequence[int], request: PackRequest, options: Filled) -> Packing:
    """Next fit, dealt to the replicas in turn."""
    bins = in_order(lengths, most_tokens(request, options))
    each = request.microbatches
    if each is None:
        each = -(-len(bins) // (request.replicas * request.multiple)) * request.multiple
    split_last(bins, each * request.replicas)
    return [bins[replica :: request.replicas] for replica in range(request.replicas)]


def in_order(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """The documents of each micro-batch: a new one begins where the next document does not fit any more."""
    bins: list[list[int]] = []
    held = tokens
    for document, length in enumerate(lengths):
        if held + length > tokens:
            bins.append([])
            held = 0
        bins[-1].append(document)
        held += length
    return bins


def split_last(bins: list[list[int]], count: int) -> None:
    """Give the last documents of the last micro-batches their own until there are so many.

    Raises:
        Refusal: there are too few documents, or more micro-batches than that.
    """
    if len(bins) > count:
        raise Refusal(f"data: the documents of a step fill {len(bins)} micro-batches, of which there are {count}")
    last = len(bins) - 1
    while len(bins) < count:
        while last >= 0 and len(bins[last]) < 2:
            last -= 1
        if last < 0:
            raise Refusal(f"data: {len(bins)} documents per step are too few for {count} micro-batches")
        bins.append([bins[last].pop()])
