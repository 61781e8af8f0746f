"""Dynamic context parallelism lays documents out as the published scheduler does."""

from random import Random

import pytest

from hybrid_des.errors import Refusal
from hybrid_des.workload.packing.dynamic_context import PerRank
from hybrid_des.workload.packing.registration import PackRequest, pack
from tests.support.dynamic_context import schedule

ROOM = 2048


def packed(lengths, ranks, room=ROOM, least=1, multiple=1):
    request = PackRequest(ranks, tokens=room * ranks, multiple=multiple)
    return pack("dynamic-context", lengths, request, PerRank(tokens_per_rank=room, least=least))


def spread_out(packs):
    """Micro-batch → rank → documents."""
    return [[list(group.documents) for group in groups for _ in range(group.ranks)] for groups in packs]


def batch(random):
    """Lanes, room, the least ranks of a document, and lengths that find a place."""
    ranks, room, sigma = 2 ** random.randrange(0, 7), random.choice([512, 2048, 4096]), random.choice([0.3, 1.0, 2.0])
    least = min(ranks, random.choice([1, 1, 1, 2, 4]))
    count = random.randrange(1, 6 * ranks + 4)
    lengths = [min(room * ranks, max(1, int(random.lognormvariate(6.5, sigma)))) for _ in range(count)]
    return ranks, room, least, lengths


def test_documents_lie_as_the_published_scheduler_lays_them():
    random = Random(41)
    for _ in range(300):
        ranks, room, least, lengths = batch(random)
        ours = spread_out(packed(lengths, ranks, room, least))
        assert ours == schedule(lengths, ranks, room, least), (ranks, room, least, lengths)


def test_micro_batches_of_virtual_stages_are_divided_as_published():
    random, refused = Random(42), 0
    for _ in range(300):
        ranks, room, least, lengths = batch(random)
        multiple = random.choice([2, 3, 4])
        expected = schedule(lengths, ranks, room, least, multiple)
        try:
            ours = spread_out(packed(lengths, ranks, room, least, multiple))
        except Refusal as refusal:
            assert f"a multiple of {multiple}" in str(refusal)
            ours, refused = None, refused + 1
        assert ours == expected, (ranks, room, least, lengths, multiple)
        assert ours is None or len(ours) % multiple == 0
    assert 0 < refused < 100


def test_shares_of_documents_are_within_the_tokens_per_rank():
    random = Random(7)
    for _ in range(50):
        ranks, room, least, lengths = batch(random)
        for groups in packed(lengths, ranks, room, least):
            assert sum(group.ranks for group in groups) == ranks
            for group in groups:
                assert sum(lengths[document] for document in group.documents) <= room * group.ranks


@pytest.mark.parametrize(
    ("ranks", "least", "message"),
    [
        (6, 1, "data.packing: dynamic-context halves 6 ranks (data × context); expected a power of two"),
        (4, 3, "data.least: 3; expected a power of two of at most 4 ranks"),
        (4, 8, "data.least: 8; expected a power of two of at most 4 ranks"),
    ],
)
def test_ranks_are_powers_of_two(ranks, least, message):
    with pytest.raises(Refusal, match="expected") as refused:
        packed([100, 200], ranks, least=least)
    assert str(refused.value) == message
