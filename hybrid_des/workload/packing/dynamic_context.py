"""Every document takes as many ranks as it needs: dynamic context parallelism.

    tokens per rank  2048     lane 0  1  2  3
    micro-batch 0             8192  ─  ─  ─      a document of 8,192 tokens takes four ranks,
    micro-batch 1             3000  ─  900 800   one of 3,000 two, shorter ones one each
                                       500 700

As the scheduler of NVIDIA/Megatron-LM lays them out (DefaultDynamicCPScheduler in
megatron/core/datasets/data_schedule.py; NVIDIA-NeMo/RL describes its own, docs/design-docs/
megatron-dynamic-context-parallel.md), over the ranks along data and context together:

    ranks         the least power of two with which a document's share is at most `tokens_per_rank`, at least `least`
    work          tokens² / ranks, on each of them
    order         longest first, in bins of about equal work, as many as there are different numbers of ranks
    placement     a new group of ranks while so many are free; else the group of this size with the least work that has
                  room; a document that finds neither waits for the next micro-batch, as do all after it
    end           once a document takes fewer ranks than the first, a micro-batch ends when no rank has 5 % less work
                  than the busiest
    free ranks    go to the smallest groups, which double in size, the first one first
    multiple      with virtual stages, micro-batches are divided, the last ones first, until they are a multiple of the
                  pipeline ranks: one keeps the groups on the second half of its ranks, a new one gets the others
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from hybrid_des.errors import Refusal
from hybrid_des.options import Count, Options, TokenCount
from hybrid_des.workload.packing.registration import Packing, PackRequest, packer

SLACK, MORE = 0.05, 1.1  # of the busiest rank's work that another may lack; of a bin's share of all work


class PerRank(Options):
    """How many ranks a document takes."""

    tokens_per_rank: TokenCount | None = None
    """The most tokens of a micro-batch on one rank; a longer document takes 2, 4, 8 … ranks.

    Default: those of its samples, divided by `parallel.context`."""
    least: Count = 1
    """The fewest ranks of a document, a power of two."""


@dataclass
class _Group:
    """Neighbouring ranks that share documents."""

    ranks: int
    documents: list[int] = field(default_factory=list)
    tokens: int = 0
    work: float = 0.0


class _Limits(NamedTuple):
    """Tokens of a rank, and the fewest ranks of a document."""

    room: int
    least: int


def lanes_of(request: PackRequest) -> int:
    """The ranks along data and context, over which documents are laid out."""
    return request.replicas * request.context


def room_of(request: PackRequest, options: PerRank) -> int:
    """The most tokens of a micro-batch on one rank."""
    return options.tokens_per_rank or max(1, request.tokens // request.context)


@packer(
    "dynamic-context",
    summary="every document takes the 1, 2, 4 … ranks that it needs, as in Megatron-LM",
    options=PerRank,
    holds=lambda request, options: room_of(request, options) * lanes_of(request),
    lanes=True,
)
def dynamic_context(lengths: Sequence[int], request: PackRequest, options: PerRank) -> Packing:
    """Micro-batch → lane → documents.

    Raises:
        Refusal: the ranks, or the least of a document, are no power of two; there are too few documents.
    """
    lanes = lanes_of(request)
    if lanes & (lanes - 1):
        raise Refusal(f"data.packing: dynamic-context halves {lanes} ranks (data × context); expected a power of two")
    if options.least & (options.least - 1) or options.least > lanes:
        raise Refusal(f"data.least: {options.least}; expected a power of two of at most {lanes} ranks")
    limits = _Limits(room_of(request, options), options.least)
    waiting = sorted(range(len(lengths)), key=lambda document: -lengths[document])
    microbatches = list[list[_Group]]()
    while waiting:
        groups, waiting = _next(waiting, lengths, lanes, limits)
        _spread(groups, lanes)
        microbatches.append(groups)
    _divide(microbatches, lanes, request.multiple)
    return [[group.documents for group in groups for _ in range(group.ranks)] for groups in microbatches]


def _ranks_of(length: int, limits: _Limits) -> int:
    """The ranks that a document takes."""
    ranks = limits.least
    while ranks * limits.room < length:
        ranks *= 2
    return ranks


def _next(
    waiting: Sequence[int], lengths: Sequence[int], lanes: int, limits: _Limits
) -> tuple[list[_Group], list[int]]:
    """The groups of a micro-batch, and the documents that are left for the next ones."""
    ranks = {document: _ranks_of(lengths[document], limits) for document in waiting}
    work = {document: lengths[document] ** 2 / ranks[document] for document in waiting}
    bins, groups = _bins(waiting, ranks, work), list[_Group]()
    smaller, free = False, lanes
    while bins:
        sizes = {group.ranks for group in groups}
        chosen = next((one for one in bins if one and (ranks[one[0]] in sizes or ranks[one[0]] <= free)), None)
        if chosen is None:
            break
        document = chosen[0]
        size, length = ranks[document], lengths[document]
        if size <= free:
            groups.append(group := _Group(size))
            free -= size
        else:
            room = size * limits.room - length
            able = [one for one in groups if one.ranks == size and one.tokens <= room]
            if not able:
                break
            group = min(able, key=lambda each: each.work)
        group.documents.append(chosen.popleft())
        group.tokens += length
        group.work += work[document]
        while bins and not bins[0]:
            bins.pop(0)
        smaller = smaller or size < groups[0].ranks
        if smaller and bins and _even(groups, free):
            break
    return groups, [document for one in bins for document in one]


def _even(groups: Sequence[_Group], free: int) -> bool:
    most = max(group.work for group in groups)
    least = 0.0 if free else min(group.work for group in groups)
    return most - least <= SLACK * most


def _bins(waiting: Sequence[int], ranks: dict[int, int], work: dict[int, float]) -> list[deque[int]]:
    """The documents in their order, in bins of about equal work: one for each number of ranks, if there are so many."""
    left = len(set(ranks.values()))
    share = sum(work.values()) / left
    bins, current, done = list[deque[int]](), deque[int](), 0.0
    for number, document in enumerate(waiting):
        last = len(waiting) - number <= left - len(bins)
        if current and (done + work[document] > share * MORE or last):
            bins.append(current)
            current, done = deque(), 0.0
            left -= 1
        current.append(document)
        done += work[document]
    return [*bins, current]


def _spread(groups: Sequence[_Group], lanes: int) -> None:
    """Give free ranks to the smallest groups, which double, in their order."""
    while sum(group.ranks for group in groups) < lanes:
        smallest = min(group.ranks for group in groups)
        next(group for group in groups if group.ranks == smallest).ranks *= 2


def _divide(microbatches: list[list[_Group]], lanes: int, multiple: int) -> None:
    """Divide micro-batches of several groups until their number is a multiple, from the last one on."""
    lacking = -len(microbatches) % multiple
    while lacking:
        before = lacking
        for number in reversed(range(len(microbatches))):
            if not lacking:
                break
            groups = microbatches[number]
            if len(groups) > 1:
                first = 1 + [*accumulate(group.ranks for group in groups)].index(lanes // 2)
                parts = groups[first:], groups[:first]
                for part in parts:
                    _spread(part, lanes)
                microbatches[number] = parts[0]
                microbatches.append(parts[1])
                lacking -= 1
        if lacking == before:
            count = len(microbatches) + lacking
            raise Refusal(
                f"data: the documents of a step are too few for {count} micro-batches, a multiple of {multiple}"
            )
