"""Packers of documents into micro-batches, one per file.

    @packer("mine", summary="…")
    def mine(lengths: Sequence[int], request: PackRequest) -> Packing: ...      # replica → micro-batch → documents

A packer gets the lengths of the documents of a step, in the order given, and returns their places in that
order for every micro-batch of every replica. All documents must be there, each once, and all replicas must have the
same number of micro-batches. One that is registered with `lanes=True` lays documents out over all ranks along context
and data itself: micro-batch → lane → documents; a document that stands in several neighbouring lanes is split over
them.

A packer with options registers their class, `options=Mine`, and receives an instance as its last argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import index
from typing import NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.options import Options
from hybrid_des.registry import Registry

Packing = Sequence[Sequence[Sequence[int]]]  # replica → micro-batch → places of documents; or micro-batch → lane → …
Packer = Callable[..., Packing]  # (lengths, request[, options]) → packing; raises `Refusal`

NONE = "none"
_REGISTRY: Registry[Packer] = Registry("packing", "hybrid_des.workload.packing")
names = _REGISTRY.names
find = _REGISTRY.__getitem__


class PackRequest(NamedTuple):
    """What a packer is asked for.

    Attributes:
        replicas, context: ranks along both axes; a lane is one of each, context ranks of a replica side by side.
        samples: documents of a micro-batch that is not packed.
        tokens: the most tokens of a micro-batch, unless an option says otherwise.
        microbatches: of a replica; None: as many as the documents need.
        linear: tokens of a document whose attention has as many FLOP as the rest of the model.
        multiple: what the number of micro-batches of a replica is a multiple of, if the documents decide it.
    """

    replicas: int
    context: int = 1
    samples: int = 1
    tokens: int = 1
    microbatches: int | None = None
    linear: int = 2**16
    multiple: int = 1


class Pack(NamedTuple):
    """Documents that neighbouring lanes compute together in one micro-batch.

    Attributes:
        documents: their places in the step.
        ranks: the lanes over which each of them is split.
    """

    documents: tuple[int, ...]
    ranks: int


Packed = tuple[tuple[Pack, ...], ...]  # micro-batch → packs of all lanes, in their order


def packer(
    name: str,
    *,
    summary: str,
    options: type[Options] | None = None,
    each: Callable[[PackRequest], int] | None = None,
    holds: Callable[..., int] | None = None,
    lanes: bool = False,
) -> Callable[[Packer], Packer]:
    """Register a packer under its name in a scenario's `data.packing`.

    Args:
        name: value of the key.
        summary: one-line description.
        options: class of its options, which extend a scenario's `data:`.
        each: the documents of a micro-batch, if all have as many; None: as many as fit.
        holds: (request[, options]) → the most tokens of a document that finds a place. Default: those of a micro-batch,
            or any number where every micro-batch has `each` documents.
        lanes: whether it lays documents out over context ranks itself; it decides the number of micro-batches.
    """
    limit = holds or (None if each else lambda request, *options: request.tokens)
    return _REGISTRY(name, options, summary=summary, each=each, holds=limit, lanes=lanes)


def pack(name: str, lengths: Sequence[int], request: PackRequest, *options: Options, split: bool = True) -> Packed:
    """The micro-batches of a packer, checked.

    Args:
        name: of the packer.
        lengths: tokens of the documents of the step.
        request: the ranks and limits.
        options: an instance of the packer's class of options, if it has one.
        split: whether context ranks share every document; else each takes whole ones.

    Raises:
        UsageError: a document is missing or there twice, or replicas have different numbers of micro-batches.
        Refusal: the packer cannot do this.
    """
    entry = find(name)
    levels = "micro-batch → lane" if entry.facts["lanes"] else "replica → micro-batch"
    built = entry.build(lengths, request, *options)
    try:
        packing = [[tuple(map(index, documents)) for documents in group] for group in built]
    except TypeError:
        raise UsageError(f'packing "{name}": expected {levels} → numbers of documents') from None
    packed = tuple(_packs_of_lanes(packing) if entry.facts["lanes"] else _packs_of_replicas(packing, request, name))
    if not entry.facts["lanes"] and not split:
        packed = tuple(_whole(packs, lengths, request.context) for packs in packed)
    _check(name, packed, len(lengths), request)
    return packed


def _packs_of_replicas(packing: Packing, request: PackRequest, name: str) -> Iterator[tuple[Pack, ...]]:
    counts = [len(replica) for replica in packing]
    if len(counts) != request.replicas or len(set(counts)) != 1:
        numbers = ", ".join(map(str, counts[:8]))
        message = f"expected {request.replicas} replicas with as many micro-batches each, found {numbers or 'none'}"
        raise UsageError(f'packing "{name}": {message}')
    for number in range(counts[0]):
        yield tuple(Pack(tuple(replica[number]), request.context) for replica in packing)


def _packs_of_lanes(packing: Packing) -> Iterator[tuple[Pack, ...]]:
    for lanes in packing:
        groups = [(documents, len(list(equal))) for documents, equal in groupby(map(tuple, lanes))]
        yield tuple(Pack(documents, ranks) for documents, ranks in groups)


def _whole(packs: Sequence[Pack], lengths: Sequence[int], context: int) -> tuple[Pack, ...]:
    """Whole documents on each context rank: the longest first, to the rank with the least attention so far."""
    lanes = []
    for group in packs:
        held: list[list[int]] = [[] for _ in range(context)]
        work = [0] * context
        for document in sorted(group.documents, key=lambda document: (-lengths[document], document)):
            least = work.index(min(work))
            held[least].append(document)
            work[least] += lengths[document] ** 2
        lanes += [Pack(tuple(documents), 1) for documents in held]
    return tuple(lanes)


def _check(name: str, packed: Packed, documents: int, request: PackRequest) -> None:
    """Every document is in one micro-batch, and every micro-batch has work for all lanes."""
    counts = Counter(document for packs in packed for one in packs for document in one.documents)
    for document in range(documents):
        if counts[document] != 1:
            where = "no micro-batch" if not counts[document] else "more than one micro-batch"
            raise UsageError(f'packing "{name}": document {document} of {documents} is in {where}')
    if unknown := counts.keys() - set(range(documents)):
        raise UsageError(f'packing "{name}": there is no document {min(unknown)}; the step has {documents}')
    lanes = request.replicas * request.context
    for number, packs in enumerate(packed):
        if sum(one.ranks for one in packs) != lanes:
            message = f"micro-batch {number} has {sum(one.ranks for one in packs)} lanes; expected {lanes}"
            raise UsageError(f'packing "{name}": {message}')
    if request.microbatches is not None and len(packed) != request.microbatches:
        message = f"expected {request.microbatches} micro-batches per replica, found {len(packed)}"
        raise UsageError(f'packing "{name}": {message}')
