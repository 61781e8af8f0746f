"""Packers: no document is lost, none is there twice, and micro-batches hold what fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.errors import Refusal, UsageError
from hybrid_des.registry import import_file
from hybrid_des.workload.packing import registration as packers
from hybrid_des.workload.packing.registration import PackRequest, pack

ROOM = 100  # tokens of a micro-batch
PACKED = [name for name in packers.names() if packers.find(name).facts["each"] is None]


@st.composite
def steps(draw):
    """Replicas, context ranks, and the lengths of enough documents for a whole number of micro-batches."""
    replicas, samples, count = draw(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 8)))
    context = draw(st.sampled_from([1, 2, 4]))
    documents = replicas * samples * count
    lengths = draw(st.lists(st.integers(1, ROOM), min_size=documents, max_size=documents))
    return lengths, PackRequest(replicas, context, samples, ROOM)


def packed(name, lengths, request, **more):
    if packers.find(name).facts["lanes"]:  # which halves them
        request = request._replace(replicas=2 ** (request.replicas.bit_length() - 1))
    return pack(name, lengths, request, *packers.find(name).arguments(), **more)


def held(packs, lengths):
    """Tokens of each micro-batch of each replica."""
    return [[sum(lengths[document] for document in group.documents) for group in groups] for groups in packs]


@given(steps())
def test_every_packer_conserves_tokens(step):
    lengths, request = step
    for name in packers.names():
        packs = packed(name, lengths, request)
        documents = sorted(document for groups in packs for group in groups for document in group.documents)
        assert documents == list(range(len(lengths)))
        assert sum(map(sum, held(packs, lengths))) == sum(lengths)


@given(steps())
def test_packed_micro_batches_hold_what_fits_and_are_never_empty(step):
    lengths, request = step
    for name in PACKED:
        of_each = held(packed(name, lengths, request), lengths)
        assert all(0 < tokens <= ROOM for replicas in of_each for tokens in replicas)


@given(steps())
def test_balanced_has_the_micro_batches_of_greedy(step):
    lengths, request = step
    most = {}
    for name in ("greedy", "balanced"):
        packs = packed(name, lengths, request)
        work = [0] * request.replicas
        for groups in packs:
            for replica, group in enumerate(groups):
                work[replica] += sum(lengths[one] * (request.linear + lengths[one]) for one in group.documents)
        most[name] = len(packs), max(work)
    assert most["balanced"][0] == most["greedy"][0]
    longest = max(length * (request.linear + length) for length in lengths)
    assert most["balanced"][1] <= most["greedy"][1] + longest


@given(steps())
def test_context_ranks_that_take_whole_documents_take_each_once(step):
    lengths, request = step
    packs = packed("greedy", lengths, request, split=False)
    assert all(group.ranks == 1 for groups in packs for group in groups)
    assert all(len(groups) == request.replicas * request.context for groups in packs)
    assert sorted(one for groups in packs for group in groups for one in group.documents) == list(range(len(lengths)))


def test_greedy_deals_micro_batches_to_replicas_in_turn():
    """The docstring's picture, over two replicas of 8 tokens."""
    packs = packed("greedy", [5, 4, 3, 6, 2, 7, 1], PackRequest(2, tokens=8))
    assert [[group.documents for group in groups] for groups in packs] == [[(0,), (1, 2)], [(3, 4), (5, 6)]]


def test_greedy_splits_the_last_micro_batches_for_whole_replicas():
    packs = packed("greedy", [3, 3, 8, 4, 4], PackRequest(4, tokens=8))
    assert [group.documents for group in packs[0]] == [(0, 1), (2,), (3,), (4,)]


def test_too_few_documents_are_refused():
    with pytest.raises(Refusal, match="data: 2 documents per step are too few for 3 micro-batches"):
        packed("greedy", [3, 3], PackRequest(3, tokens=8))


def test_balanced_spreads_long_documents_that_greedy_packs_together():
    lengths, request = [6, 6, 3, 3, 3, 3], PackRequest(2, tokens=12)
    assert [group.documents for group in packed("greedy", lengths, request)[0]] == [(0, 1), (2, 3, 4, 5)]
    balanced = [sorted(lengths[one] for one in group.documents) for group in packed("balanced", lengths, request)[0]]
    assert balanced == [[3, 3, 6], [3, 3, 6]]


@pytest.mark.parametrize(
    ("lengths", "sums"),
    [
        ([4, 6, 5, 2, 3], [[4, 6], [2, 3, 5]]),  # longest first to the least work leaves no room for the 2
        ([4, 2, 2, 2, 3, 5, 2], [[2, 3, 5], [2, 2, 2, 4]]),  # nor does the fullest with room, for the last 2
    ],
    ids=["the fullest with room", "those of greedy"],
)
def test_balanced_fills_micro_batches_that_leave_no_room(lengths, sums):
    (first,), (second,) = packed("balanced", lengths, PackRequest(1, tokens=10))
    assert [sorted(lengths[one] for one in group.documents) for group in (first, second)] == sums


PLUG_IN = """
from hybrid_des.workload.packing.registration import packer

@packer("backwards", summary="the last document first")
def backwards(lengths, request):
    each = len(lengths) // request.replicas
    return [[[document] for document in range(len(lengths))[::-1][replica::request.replicas]]
            for replica in range(request.replicas)]

@packer("forgetful", summary="without the last document")
def forgetful(lengths, request):
    return [[range(len(lengths) - 1)]] + [[[]]] * (request.replicas - 1)

@packer("twice", summary="the first document twice")
def twice(lengths, request):
    return [[[0]] * len(lengths)] * request.replicas

@packer("unequal", summary="replicas with different numbers of micro-batches")
def unequal(lengths, request):
    return [[[0]], [[1], [2]]]

@packer("flat", summary="no micro-batches")
def flat(lengths, request):
    return [1, 2]

@packer("imaginary", summary="a document that is not there")
def imaginary(lengths, request):
    return [[[0, 1, 2, 7]], [[3]]]
"""


def test_packers_of_users_are_checked(write, scratch):
    import_file(write(PLUG_IN, "mine.py"))
    lengths, request = [5, 4, 3, 2], PackRequest(2, tokens=8)
    packs = packed("backwards", lengths, request)
    assert [[group.documents for group in groups] for groups in packs] == [[(3,), (2,)], [(1,), (0,)]]
    for name, message in {
        "forgetful": "document 3 of 4 is in no micro-batch",
        "twice": "document 0 of 4 is in more than one micro-batch",
        "unequal": "expected 2 replicas with as many micro-batches each, found 1, 2",
        "flat": "expected replica → micro-batch → numbers of documents",
        "imaginary": "there is no document 7; the step has 4",
    }.items():
        with pytest.raises(UsageError, match=f'packing "{name}": {message}'):
            packed(name, lengths, request)
