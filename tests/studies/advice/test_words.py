"""What differs between two plans, in words that say from what to what."""

import pytest

from hybrid_des import load
from hybrid_des.studies.advice.words import words_of

MIXTURE = {
    "kind": "transformer", "layers": 16, "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 512, "sequence": 512,
    "experts": {"count": 16, "active": 2, "ffn": 512},
}  # fmt: skip


def scenario(schedule, experts=None):
    cluster, parallel = {"gpu": "h100", "nodes": 2}, {"pipeline": 4, "data": 4, "expert": 4}
    schedule, experts = {"microbatches": 8, **schedule}, experts or {}
    given = {"cluster": cluster, "parallel": parallel, "schedule": schedule, "experts": experts}
    return load({**given, "model": MIXTURE})


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"kind": "1f1b"}, "4 virtual stages"),
        ({"kind": "interleaved-1f1b", "chunks": 2}, "2 → 4 virtual stages"),
        ({"kind": "dualpipe-v", "chunks": 2}, "interleaved 1F1B schedule, 4 virtual stages"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["kind"],
)
def test_virtual_stages_are_named_after_the_schedule_before(before, said):
    assert words_of(scenario(before), scenario({"kind": "interleaved-1f1b", "chunks": 4})) == (said,)


def test_pairs_are_named_where_exchanges_had_a_stream_already():
    plain, paired = ({"kind": "1f1b", "pairs": pairs} for pairs in (False, True))
    beside = ("expert all-to-alls overlapped with computation",)
    assert words_of(scenario(plain, {"streams": True}), scenario(paired, {"streams": True})) == beside
    assert words_of(scenario(plain), scenario(paired, {"streams": True})) == beside
    assert words_of(scenario(plain), scenario(plain, {"streams": True})) == ()
