"""Documents are divided so that micro-batches, and replicas, take about as long as each other.

    1   as many micro-batches as `greedy` needs; the longest document first, each to the micro-batch with the least
        work among those that have room for it (longest processing time first: Graham, SIAM J. Appl. Math. 17, 1969)
    2   the micro-batches with the most work first, each to the replica with the least that still lacks one

The work of a document is its tokens · (linear + tokens): attention takes as long as all else where it has `linear`
tokens. If step 1 finds no room for a document, the longest first each take the fullest micro-batch with room (best fit
decreasing); if that fails too, micro-batches stay those of `greedy`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from hybrid_des.workload.packing.greedy import Filled, greedy, most_tokens
from hybrid_des.workload.packing.registration import Packing, PackRequest, packer


@packer(
    "balanced",
    summary="longest first, to the micro-batch and then the replica with the least work",
    options=Filled,
    holds=most_tokens,
)
def balanced(lengths: Sequence[int], request: PackRequest, options: Filled) -> Packing:
    """Longest first, twice."""
    plain = [documents for replica in greedy(lengths, request, options) for documents in replica]
    work = [length * (request.linear + length) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda document: -lengths[document])
    tokens, count = most_tokens(request, options), len(plain)
    bins = _least_work(order, lengths, work, count, tokens) or _best_fit(order, lengths, count, tokens) or plain
    totals = [sum(work[document] for document in documents) for documents in bins]
    replicas: list[list[Sequence[int]]] = [[] for _ in range(request.replicas)]
    sums, each = [0] * request.replicas, count // request.replicas
    for number in sorted(range(count), key=lambda number: -totals[number]):
        least = min((one for one in range(len(sums)) if len(replicas[one]) < each), key=sums.__getitem__)
        replicas[least].append(bins[number])
        sums[least] += totals[number]
    return replicas


def _least_work(
    order: Sequence[int], lengths: Sequence[int], work: Sequence[int], count: int, tokens: int
) -> list[list[int]] | None:
    """The documents in this order, each to the micro-batch with the least work that has room; None if one has none.

    A micro-batch without room waits aside until the documents, which only get shorter, fit again.
    """
    bins: list[list[int]] = [[] for _ in range(count)]
    room, done = [tokens] * count, [0] * count
    free, aside = [(0, number) for number in range(count)], list[tuple[int, int]]()
    heapify(free)
    for document in order:
        length = lengths[document]
        while aside and -aside[0][0] >= length:
            number = heappop(aside)[1]
            heappush(free, (done[number], number))
        while free and room[free[0][1]] < length:
            number = heappop(free)[1]
            heappush(aside, (-room[number], number))
        if not free:
            return None
        number = heappop(free)[1]
        bins[number].append(document)
        room[number] -= length
        done[number] += work[document]
        heappush(free, (done[number], number))
    return bins if all(bins) else None


def _best_fit(order: Sequence[int], lengths: Sequence[int], count: int, tokens: int) -> list[list[int]] | None:
    """The documents in this order, each to the fullest micro-batch that has room; None if one has none."""
    bins: list[list[int]] = [[] for _ in range(count)]
    by_room = [(tokens, number) for number in range(count)]
    for document in order:
        fullest = bisect_left(by_room, (lengths[document], 0))
        if fullest == count:
            return None
        room, number = by_room.pop(fullest)
        bins[number].append(document)
        insort(by_room, (room - lengths[document], number))
    return bins if all(bins) else None
