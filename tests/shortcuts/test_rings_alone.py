"""Rings that a run takes at once: everything else happens as it does with their messages."""

from dataclasses import replace
from fractions import Fraction
from itertools import chain
from random import Random

import numpy as np
import pytest
from support.fabrics import GB, build, node, star, wires
from support.runs import totals
from support.scenarios import merged
from support.stretches import stretched_values
from support.two_stages import TWO_STAGES, planned

from hybrid_des import collectives
from hybrid_des.analysis.counterfactual.what_if import Part
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import on_channels
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.engine.causes import Causes
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.folded_transport import LineageLink, folded_transport
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import Fold, FoldedAxis
from hybrid_des.layout import Layout
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts import attempts, rings_alone
from hybrid_des.shortcuts.attempts import Refusals
from hybrid_des.shortcuts.rings_alone import BOTH, GATHERS, REDUCTIONS
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation import run as plain
from hybrid_des.simulation.speeds import DurationOverride

TABLES = "steps", "ops", "waits", "exchanges"
IDLE = {"workload": {"activation": 0}}  # links are free when rings begin
ONE_GPU_PER_NODE = {"cluster": {"nodes": 16, "gpus_per_node": 1, "infiniband": {"nics_per_node": 1}}}
CHUNKS = {  # rings of one chunk begin while messages of the other are under way
    "cluster": {"nvlink": {"latency": 0}, "infiniband": {"latency": "10 ns"}},
    "schedule": {"kind": "interleaved-1f1b", "microbatches": 4, "chunks": 2},
    "workload": {"parameters": 64},
}


class Rings:
    """Compares runs that take rings at once with those that simulate their messages.

    Attributes:
        taken: how many the last run took.
        alone: how many were simulated alone.
    """

    def __init__(self, patch):
        self.taken, self.alone, self.made = 0, 0, []
        ring, started = rings_alone.GroupAtOnce, plain.started
        begin, alone = ring._begin, ring._alone

        def begun(*given):
            begin(*given)
            self.taken += 1

        def simulated(*given):
            self.alone += 1
            return alone(*given)

        def noted(*given, **more):
            self.taken = 0
            job = started(*given, **more)
            self.made.append(job.transport)
            return job

        patch.setattr(rings_alone, "FEWEST", 1)
        patch.setattr(attempts, "kinds_of_rings", every_kind)
        patch.setattr(ring, "_begin", begun)
        patch.setattr(ring, "_alone", simulated)
        patch.setattr(plain, "started", noted)

    def of(self, variant):
        """How many rings a run takes, how many it simulates alone, and in how many ways they are disturbed."""
        self.taken, self.alone, self.made = 0, 0, []
        found = self._outcome(variant, whole=False)
        counts = self.taken, self.alone
        disturbed = len(Refusals.of(variant.parts).reasons)
        found_again = self._outcome(variant, whole=False)
        assert (self.taken, self.alone) == counts
        assert found == found_again == self._outcome(variant, whole=True)
        return *counts, disturbed

    def _outcome(self, variant, *, whole):
        done = run(variant.scenario, parts=variant.parts, retime=variant.retime, fold_from=2, by_messages=whole)
        tables = [getattr(done.timeline, name) for name in TABLES]
        rows = [sorted(zip(*(np.asarray(one[name]).tolist() for name in sorted(one)), strict=True)) for one in tables]
        busy = [link for link in self.made[-1].links.values() if link.free and link.bandwidth is not None]
        links = sorted((link.spec.name, link.free, last_at(link)) for link in busy)
        return done.duration, done.peak_memory, done.peak_chunks, done.unfolded, done.ranks, totals(done), rows, links


def last_at(link):
    """When a message last reached a link."""
    return link.last[0] if isinstance(link, LineageLink) and not link.shared else getattr(link, "when", None)


def every_kind(scenario, parts, *, tied):
    if not rings_alone.kinds_of_rings(scenario, parts, tied=True):
        return ()
    return (BOTH, REDUCTIONS) if parts.reductions.gather else (BOTH,)


@pytest.fixture
def rings(monkeypatch):
    return Rings(monkeypatch)


def with_forwards(variant, duration):
    """The same with forwards that take so many picoseconds."""
    retime = DurationOverride(lambda _, call, took: duration if call.kind == "F" else took, lambda _: 0)
    return replace(variant, retime=retime)


@pytest.mark.parametrize(("change", "expected"), [
    ({}, (2, 2, 0)),  # the last stage has just sent activations back, the first has not
    (IDLE, (2, 1, 0)),
    ({"sharding": "zero-1"}, (2, 2, 1)),  # members end apart, so they begin to gather apart
    ({**ONE_GPU_PER_NODE, "sharding": "zero-1"}, (4, 3, 0)),
    ({"gradients": {"overlap": False}}, (2, 2, 0)),
    ({"gradients": {"algorithm": "recursive-doubling", "channels": None}}, (0, 0, 0)),
    ({"gradients": {"channels": 2}}, (2, 2, 0)),
    ({"gradients": {"algorithm": "nccl"}}, (2, 1, 0)),  # its kernels launch after the activations have been sent
    ({"gradients": {"algorithm": "nccl", "channels": 4}, "sharding": "zero-1"}, (4, 2, 0)),
    ({"steps": 2}, (4, 4, 0)),
    ({"steps": 2, "barrier": False}, (0, 2, 1)),  # messages tie that follow ends of several members
    ({"cluster": {"sharing": "fair"}}, (0, 0, 0)),
    ({**ONE_GPU_PER_NODE, "gradients": {"bucket": 20_000}}, (4, 2, 0)),  # all members end their first bucket together
])  # fmt: skip
def test_members_go_on_as_they_do_with_messages(rings, change, expected):
    assert rings.of(planned(change)) == expected


def test_rings_wired_alike_are_simulated_alone_once(rings):
    base = planned(IDLE)
    assert rings.of(base) == (2, 1, 0)
    assert rings.of(Part("kind", "F", ("F",)).scaled(base, Fraction(1, 2))) == (2, 0, 0)
    of_one_stage = [f"node{node}/nic{nic}/{way}" for node in (2, 3) for nic in range(4) for way in ("in", "out")]
    assert rings.of(base.with_links(dict.fromkeys(of_one_stage, Fraction(2)))) == (2, 2, 0)


@pytest.mark.parametrize(("latency", "alone"), [("1 us", 1), ("2 us", 2)])
def test_latencies_tell_rings_apart(rings, latency, alone):
    """Wires to a hub, those of the second stage with a latency of their own."""
    wires = [
        {"between": [f"gpu{gpu}", "hub"], "bandwidth": "1 GB/s", "latency": latency if gpu > 3 else "1 us"}
        for gpu in range(8)
    ]
    cluster = {"gpus_per_node": 8, "topology": "links", "links": wires}
    values = {**merged(TWO_STAGES, IDLE), "cluster": cluster, "parallel": {"pipeline": 2, "data": 4}}
    values["parallel"]["order"] = ["tensor", "data", "pipeline"]
    assert rings.of(planned(of=values)) == (2, alone, 0)


def test_rings_are_taken_where_no_message_waits(rings):
    alone = planned().without_queueing()
    assert rings.of(alone) == (2, 1, 0)
    assert rings.of(alone.with_all_links(None)) == (2, 1, 0)


def test_members_that_begin_apart_send_messages(rings):
    assert rings.of(planned({"cluster": {"infiniband": {"nics_per_node": 1}}})) == (0, 0, 1)


@pytest.mark.parametrize(("forward", "expected"), [
    (1_019_999, (0, 1, 1)),  # a message reaches a link of the ring a picosecond after it began
    (1_020_000, (0, 0, 1)),
    (1_020_001, (4, 3, 0)),
])  # fmt: skip
def test_a_message_that_reaches_a_link_meanwhile_disturbs(rings, forward, expected):
    assert rings.of(with_forwards(planned(CHUNKS), forward)) == expected


def test_messages_pass_rings_on_infinite_links(rings):
    infinite = {"cluster": {link: {"bandwidth": "inf"} for link in ("nvlink", "infiniband")}}
    assert rings.of(with_forwards(planned(CHUNKS, infinite), 19_999)) == (4, 1, 0)


def test_what_follows_the_end_of_a_ring_is_unordered(rings):
    """But among itself, and whichever of a member's channels ends last."""
    whole = ProcessGroup("ring", 0, range(8), [0] * 8, channels=[range(8), range(8)])
    quick = wires(*(f"gpu{rank}-hub" for rank in range(8)), bandwidth=10**6 * GB, latency=1000)  # both end at one time
    fabric = build("links", node(8), links=quick)
    all_ranks = Fold(Layout({"data": 8}, ["data"]), [])
    transport, seen = folded_transport(fabric, "fifo", Recorder(), all_ranks, [whole]), []
    env, ring = transport.env, collectives.configured("ring", {"channels": 2})
    taken = rings_alone.RingsAlone(transport, Parts(), BOTH).of_gradients(whole, whole, range(8), ring)

    def part(group):
        yield from on_channels(group, Buffer(1600, codecs.find("fp32").build()), taken)
        seen.append(env.lineage)

    for place in range(8):
        transport.begin(place)
        env.process(part(Group(transport, whole, place)))
    env.run()
    assert rings.taken == 1
    assert len({chain for chain, *_ in seen} - {None}) == 8
    assert not any(env.decided(one, other) for one in seen for other in seen if one != other)


def test_rings_whose_members_stand_for_others_send_messages(rings):
    """Rank 2 of the ring of ranks 0, 2 and 4 sends to rank 1, which stands for rank 4."""
    values = stretched_values(Random(1)) | {
        "cluster": {"gpu": "h100", "nodes": 6, "gpus_per_node": 1},
        "parallel": {"data": 6, "expert": 2},
        "schedule": {"kind": "1f1b", "microbatches": 2},
        "gradients": {"algorithm": "ring", "channels": 1, "pad": True},
        "sharding": "none",
        "fold": 3,
    }  # fmt: skip
    assert rings.of(planned(of=values)) == (0, 1, 1)


def test_rows_of_messages_are_kept_if_asked_for(rings):
    scenario = scenario_from(merged(TWO_STAGES, {"record": "all"}))
    rows = [
        len(run(scenario, fold_from=2, by_messages=whole).timeline.all_messages()["start"]) for whole in (False, True)
    ]
    assert rows[0] == rows[1] > 0


def test_causes_of_messages_are_recorded(rings):
    counts = []
    for whole in (False, True):
        trace, variant = Causes(), planned()
        run(variant.scenario, parts=variant.parts, trace=trace, fold_from=2, by_messages=whole)
        counts.append({name: len(column) for table in trace.columns().values() for name, column in table.items()})
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("fewest", "channels", "taken"), [(7, 1, 2), (8, 1, 0), (14, 2, 2), (15, 2, 0)])
def test_short_rings_are_simulated(rings, monkeypatch, fewest, channels, taken):
    monkeypatch.setattr(rings_alone, "FEWEST", fewest)
    variant = planned({"gradients": {"channels": channels}})
    assert rings.of(variant)[0] == taken
    if not taken:
        assert not rings_alone.kinds_of_rings(variant.scenario, variant.parts, tied=True)


def test_trees_are_simulated(rings):
    """Which the tuner of NCCL takes for few bytes over several nodes."""
    few = {"gradients": {"algorithm": "nccl", "channels": None}, "workload": {"parameters": 800}}
    assert rings.of(planned(few)) == (0, 0, 0)


class Parts:
    """Something of which outcomes are known."""

    def __init__(self):
        self.reductions, self.remembered = None, {}


def ends_of(fabric, fold, groups, *, at_once):
    """When each simulated member of some rings ends, of which one begins every millisecond.

    Args:
        fabric: the wiring.
        fold: which ranks are simulated.
        groups: for each ring its ranks and the elements of its buffer.
        at_once: whether rings are taken at once.
    """
    rings = [ProcessGroup("ring", stage, ranks, [0] * len(ranks)) for stage, (ranks, _) in enumerate(groups)]
    transport, parts, ends = folded_transport(fabric, "fifo", Recorder(), fold, rings), Parts(), []
    env, ring = transport.env, collectives.configured("ring", {"channels": 1})

    def part(collective, group, buffer, begin):
        yield env.timeout(begin)
        yield from collective(group, buffer)
        ends.append((begin, group.me, env.now))

    for whole, (ranks, elements) in zip(rings, groups, strict=True):
        places = [place for place, rank in enumerate(ranks) if fold.simulated(rank)]
        taken = rings_alone.RingsAlone(transport, parts, BOTH)
        collective = taken.of_gradients(whole, whole, places, ring) if at_once else ring
        for place in places:
            transport.begin(ranks[place])
            buffer = Buffer(elements, codecs.find("fp32").build())
            env.process(part(collective, Group(transport, whole, place), buffer, 10**9 * (1 + whole.stage)))
    env.run()
    return sorted(ends)


def folded(ranks, keep):
    return Fold(Layout({"data": ranks}, ["data"]), [FoldedAxis("data", keep)])


def test_rings_of_other_sizes_are_not_alike(rings):
    """Of each ring, one member is simulated, whose messages take as many links."""
    groups = [(range(8), 80), (range(0, 8, 2), 80), (range(8), 160)]
    ends = [ends_of(build("links", node(8), links=star(8)), folded(8, 1), groups, at_once=way) for way in (True, False)]
    assert ends[0] == ends[1]
    assert rings.alone == 3


def test_rings_with_members_at_other_places_are_not_alike(rings):
    """In the second one, members send to others: 0 to the image of 2, 1 to that of 0, and 2 to that of 1."""
    ups = [wires(f"gpu{rank}-hub", bandwidth=(1 + rank % 3) * GB, one_way=True) for rank in range(9)]
    downs = wires(*(f"hub-gpu{rank}" for rank in range(9)), one_way=True)
    fabric = build("links", node(9), links=(*chain(*ups), *downs))
    groups = [(range(9), 9000), ((0, 8, 1, 3, 2, 4, 6, 5, 7), 9000)]
    ends = [ends_of(fabric, folded(9, 3), groups, at_once=way) for way in (True, False)]
    assert ends[0] == ends[1]
    assert rings.alone == 2


def crossing(latency, first=0):
    """Two rings of two ranks, whose messages share a link: a slow one in the first, the next one in the second.

    Args:
        latency: of the first links of ranks 1 and 3, in picoseconds.
        first: of that of rank 0.
    """
    of_first = wires("gpu0-a", latency=first, one_way=True) + wires("b-c", "b-d", "d-gpu0", one_way=True)
    of_second = wires("gpu2-e", "g-h", "h-gpu2", one_way=True)
    slow = wires("a-b", "e-g", "f-g", bandwidth=GB // 2, one_way=True)
    late = wires("gpu1-a", "gpu3-f", latency=latency, one_way=True) + wires(
        "c-gpu1", "h-gpu3", latency=7000, one_way=True
    )
    between = wires("gpu0-v", "v-w", "w-x", "x-y", "y-gpu2")
    fabric = build("links", node(4), links=(*of_first, *of_second, *slow, *late, *between))
    return fabric, Fold(Layout({"data": 4}, ["data"]), [])


def test_rings_that_share_links_otherwise_are_not_alike(rings):
    fabric, all_ranks = crossing(3000)
    groups = [((0, 1), 8), ((2, 3), 8)]
    ends = [ends_of(fabric, all_ranks, groups, at_once=way) for way in (True, False)]
    assert ends[0] == ends[1]
    assert rings.alone == 2


@pytest.mark.parametrize(("latency", "why"), [
    (0, "messages of a ring arrive when it begins"),
    (3000, "messages of ranks 0 and 1 reach link a/to/b at the same time, and .* differs between replicas"),
])  # fmt: skip
def test_rings_whose_messages_meet_in_unknown_order_are_not_taken(rings, latency, why):
    fabric, all_ranks = crossing(latency, latency)
    with pytest.raises(FoldRefusal, match=f"^{why}$"):
        ends_of(fabric, all_ranks, [((0, 1), 8)], at_once=True)


def test_rings_of_other_images_are_not_alike(rings):
    """Each member sends to the next rank in the first ring, and to the third one in the second."""
    groups = [(range(8), 80), ((0, 3, 6, 1, 4, 7, 2, 5), 80)]
    ends = [ends_of(build("links", node(8), links=star(8)), folded(8, 1), groups, at_once=way) for way in (True, False)]
    assert ends[0] == ends[1]
    assert rings.alone == 2


@pytest.mark.parametrize(("change", "traced", "expected"), [
    ({}, False, (REDUCTIONS,)),
    ({"sharding": "zero-1"}, False, (BOTH, REDUCTIONS)),
    ({"sharding": "zero-1", "overlap": {"parameters": True}}, False, (REDUCTIONS,)),
    (CHUNKS, False, ()),
    (CHUNKS, True, (REDUCTIONS,)),
    ({**CHUNKS, "gradients": {"overlap": False}}, False, (REDUCTIONS,)),
    ({**CHUNKS, "sharding": "zero-1"}, False, (GATHERS,)),
    ({**CHUNKS, "sharding": "zero-1"}, True, (BOTH, GATHERS)),
])  # fmt: skip
def test_ways_in_which_nothing_is_expected_to_disturb_rings(change, traced, expected, monkeypatch):
    monkeypatch.setattr(rings_alone, "FEWEST", 1)
    variant = planned(change)
    assert rings_alone.kinds_of_rings(variant.scenario, variant.parts, tied=traced) == expected


def test_rings_that_were_disturbed_are_not_tried_again(rings):
    variant, tries = with_forwards(planned(CHUNKS), 1_020_000), []
    for _ in range(2):
        rings.made.clear()
        run(variant.scenario, parts=variant.parts, retime=variant.retime, fold_from=2)
        tries.append(len(rings.made))
    assert tries[0] > tries[1] > 0
