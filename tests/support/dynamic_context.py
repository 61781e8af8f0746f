"""The published scheduler of dynamic context parallelism, followed rank by rank on lists, apart from the packer.

DefaultDynamicCPScheduler of NVIDIA/Megatron-LM (megatron/core/datasets/data_schedule.py and data_schedule_utils.py,
commit 00c51e1); with virtual stages, numbers of micro-batches are multiples of a group.
"""

import math


def needed(length, room, least):
    """Ranks that a document takes: a power of two."""
    return max(least, 2 ** max(0, math.ceil(math.log2(length / room))))


def schedule(lengths, ranks, room, least, multiple=1):
    """Micro-batch → rank → numbers of documents; None: they cannot be such a multiple."""
    left = sorted(((length, -number) for number, length in enumerate(lengths)), reverse=True)
    left = [(-number, length) for length, number in left]
    microbatches = []
    while left:
        held, left = _microbatch(left, ranks, room, least)
        microbatches.append(held)
    return _aligned(microbatches, multiple)


def _share(length, room, least):
    return length * length / needed(length, room, least)


def _buckets(left, room, least):
    shares = [_share(length, room, least) for _, length in left]
    kinds = len({needed(length, room, least) for _, length in left})
    target, open_buckets, buckets, sums = sum(shares) / kinds, kinds, [[]], [0.0]
    for index, (document, share) in enumerate(zip(left, shares, strict=True)):
        closed = len(buckets) - 1
        too_much = sums[-1] + share > 1.1 * target
        if buckets[-1] and (too_much or len(left) - index <= open_buckets - closed):
            buckets.append([])
            sums.append(0.0)
            open_buckets -= 1
        buckets[-1].append(document)
        sums[-1] += share
    return buckets


def _microbatch(left, ranks, room, least):
    buckets = _buckets(left, room, least)
    held, busy, group_of = [[] for _ in range(ranks)], [0.0] * ranks, [None] * ranks
    filled, sizes, widest, balancing = {}, {}, None, False
    while buckets:
        free = [rank for rank in range(ranks) if group_of[rank] is None]
        heads = [bucket[0] if bucket else None for bucket in buckets]
        usable = [
            index for index, head in enumerate(heads)
            if head and (needed(head[1], room, least) in sizes.values() or len(free) >= needed(head[1], room, least))
        ]  # fmt: skip
        if not usable:
            break
        number, length = heads[usable[0]]
        size = needed(length, room, least)
        widest = widest or size
        if len(free) >= size:
            group = len(sizes)
            sizes[group], filled[group] = size, 0.0
            for rank in free[:size]:
                group_of[rank] = group
        else:
            fitting = [one for one in sizes if sizes[one] == size and filled[one] + length / size <= room]
            if not fitting:
                break
            group = min(fitting, key=lambda one: (busy[group_of.index(one)], one))
        filled[group] += length / size
        for rank in range(ranks):
            if group_of[rank] == group:
                held[rank].append(number)
                busy[rank] += _share(length, room, least)
        buckets[usable[0]].pop(0)
        while buckets and not buckets[0]:
            del buckets[0]
        balancing |= size < widest
        if balancing and buckets and max(busy) - min(busy) <= 0.05 * max(busy):
            break
    return _stretched(held, group_of, sizes), [document for bucket in buckets for document in bucket]


def _stretched(held, group_of, sizes):
    """Ranks without documents join the smallest groups, which double."""
    members = [[held[rank] for rank in range(len(held)) if group_of[rank] == group] for group in sizes]
    while sum(map(len, members)) < len(held):
        smallest = min(map(len, members))
        index = [len(one) for one in members].index(smallest)
        members[index] = members[index] * 2
    return [documents for one in members for documents in one]


def _aligned(microbatches, multiple):
    """Halves of the ranks become micro-batches of their own; the tail is tried first, then the one before, in turns."""
    index, idle = len(microbatches) - 1, 0
    while len(microbatches) % multiple:
        if index < 0:
            if idle >= len(microbatches):
                return None
            index = len(microbatches) - 1
        ranks = microbatches[index]
        half = len(ranks) // 2
        if all(documents == ranks[0] for documents in ranks):
            idle += 1
        else:
            microbatches[index] = _doubled(ranks[half:], len(ranks))
            microbatches.append(_doubled(ranks[:half], len(ranks)))
            idle = 0
        index -= 1
    return microbatches


def _doubled(ranks, count):
    """The first of the smallest groups grow over ranks without documents."""
    while len(ranks) < count:
        sizes = {tuple(documents): ranks.count(documents) for documents in ranks}
        grown = next(documents for documents, size in sizes.items() if size == min(sizes.values()))
        at = ranks.index(list(grown))
        ranks = ranks[:at] + [list(grown)] * sizes[grown] + ranks[at:]
    return ranks
