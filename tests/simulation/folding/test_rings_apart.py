"""Rings that a folded run follows apart: everything else happens as it does with their messages."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support.campaigns import TIMES
from support.courses import apart_variant, on_a_star, star_case
from support.fabrics import build, node, star
from support.runs import totals

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.engine.causes import Causes
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import HybridDesError
from hybrid_des.layout import Layout
from hybrid_des.simulation import run as simulation
from hybrid_des.simulation.folding import rings_apart
from hybrid_des.simulation.folding.folded_transport import folded_transport
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.ring_course import NEVER_WAITS, Course, Route, is_after
from hybrid_des.simulation.folding.rings_apart import RingsApart, untied
from hybrid_des.simulation.folding.symmetry import Fold, FoldedAxis, root_of
from hybrid_des.simulation.run import run

TABLES = "steps", "ops", "waits", "exchanges"
MOST_MESSAGES = 30_000


@pytest.fixture
def begun(monkeypatch):
    """The members that have begun a ring which is followed apart, and messages of others that reached one under way."""
    counts, of_ring, of_other = Counter(), rings_apart.Followed.begin, rings_apart.Followed.reach

    def begin(*given):
        counts["begun"] += 1
        of_ring(*given)

    def reach(followed, *given):
        counts["others"] += bool(followed._course.heads)
        of_other(followed, *given)

    monkeypatch.setattr(rings_apart, "FEWEST", 2)
    monkeypatch.setattr(rings_apart.Followed, "begin", begin)
    monkeypatch.setattr(rings_apart.Followed, "reach", reach)
    return counts


def outcome(variant, *, whole):
    try:
        done = run(variant.scenario, parts=variant.parts, retime=variant.retime, fold_from=2, whole=whole)
    except HybridDesError as refusal:
        return str(refusal)
    tables = [getattr(done.timeline, name) for name in TABLES]
    rows = [sorted(zip(*(np.asarray(one[name]).tolist() for name in sorted(one)), strict=True)) for one in tables]
    return done.duration, done.peak_memory, done.peak_chunks, done.unfolded, done.ranks, totals(done), rows


def same(seed, begun):
    """Whether a random run takes its rings apart: all, and whether others passed; or why not."""
    try:
        variant = apart_variant(Random(seed))
    except HybridDesError:
        return "impossible"
    if variant.parts.messages * variant.scenario.steps > MOST_MESSAGES:
        return "long"
    begun.clear(), rings_apart._TIED.clear()
    assert outcome(variant, whole=False) == outcome(variant, whole=True), seed
    if not begun["begun"]:
        return "not taken"
    if [*rings_apart._TIED]:
        return "refused"
    return "passed" if begun["others"] else "alone"


def test_random_runs_end_as_they_do_with_messages(begun):
    found = Counter(same(seed, begun) for seed in range(60))
    assert min(found["passed"], found["alone"], found["refused"]) > 2, found


@pytest.mark.slow
def test_many_random_runs_end_as_they_do_with_messages(begun):
    found = Counter(same(seed, begun) for seed in range(60, 800 * TIMES))
    assert min(found["passed"], found["alone"], found["refused"]) > 30 * TIMES, found


def proven(variant):
    """A traced run whose orders are not only watched for, as far as its proof is concerned."""
    scenario = variant.scenario.model_copy(update={"record": "all"})
    try:
        done = run(scenario, parts=variant.parts, trace=Causes(), fold_from=2)
    except HybridDesError as refusal:
        return str(refusal)
    return done.any_order, done.duration, done.unfolded, done.ranks


def same_proof(seed, patch):
    """Whether rings that are followed apart prove as much as their messages; None if they prove nothing."""
    try:
        variant = replace(apart_variant(Random(seed)), retime=None)
    except HybridDesError:
        return None
    if variant.parts.messages * variant.scenario.steps > MOST_MESSAGES // 3:
        return None
    proofs = []
    with patch.context() as patched:
        patched.setattr(simulation, "ties_expected", lambda *_: True)
        patched.setattr(
            simulation, "untied", lambda *given, **more: proofs.append(untied(*given, **more)) or proofs[-1]
        )
        found = proven(variant)
        patched.setattr(simulation, "untied", lambda *_, **__: None)
        assert proven(variant) == found, seed
    return any(proofs)


def test_rings_prove_a_traced_fold_as_messages_do(begun, monkeypatch):
    found = Counter(same_proof(seed, monkeypatch) for seed in range(60))
    assert min(found[True], found[False]) > 5, found


@pytest.mark.slow
def test_rings_prove_many_traced_folds_as_messages_do(begun, monkeypatch):
    found = Counter(same_proof(seed, monkeypatch) for seed in range(60, 600 * TIMES))
    assert min(found[True], found[False]) > 50 * TIMES, found


@pytest.mark.parametrize(("put", "asked", "certain"), [
    ((9, 3), (8, 7), True), ((9, 3), (9, 2), True), ((9, 2), (9, 3), True),
    ((9, 3), (9, 3), False), ((9, -1), (9, 3), False), ((9, 3), (9, -1), False),
])  # fmt: skip
def test_a_message_known_when_its_reader_waits_is_noted(put, asked, certain):
    course = Course.on(0)
    course.add([Route(0, [(NEVER_WAITS, 9)])])
    course.left[0], course.waits[0], course.asked[0], course.inbox[0] = 1, True, asked, ((12, *put),)
    course._read(0, *max(put, asked))
    assert course.coincides != certain


def alike_on_a_star(seed):
    """Whether members end, and others arrive, as they do with messages; why not, if that is not certain."""
    case = star_case(Random(seed))
    try:
        found = on_a_star(case, apart=True)
    except FoldRefusal:
        return "refused"
    assert found == on_a_star(case, apart=False), seed
    return len({*case.begins}) > 1, bool(case.others)


def test_rings_on_a_star_take_the_times_of_their_messages(begun):
    found = Counter(map(alike_on_a_star, range(100, 250)))
    assert all(found[apart, others] > 8 for apart in (False, True) for others in (False, True)), found
    assert found["refused"] < 40


@pytest.mark.slow
def test_many_rings_on_a_star_take_times_of_messages(begun):
    found = Counter(map(alike_on_a_star, range(250, 6000 * TIMES)))
    assert all(found[apart, others] > 200 for apart in (False, True) for others in (False, True)), found


def random_course(rng):
    """Two rings over links with one member each, and the times of their messages."""
    members, steps = rng.choice((1, 2, 5)), rng.choice((20, 100))
    course, took = Course.on(2 * members), []
    for ring in range(2):
        of_ring = range(ring * members, (ring + 1) * members)
        course.add([
            Route(of_ring[(place + 1) % members], [(2 * place, rng.choice((0, 3, 10))), (2 * place + 1, 2)])
            for place in range(members)
        ])  # fmt: skip
        took += [(rng.choice((1, 2, 7)), rng.choice((1, 2, 7))) for _ in of_ring]
    return course, took, members, steps


def followed(rng):
    """How a random course goes on that is followed in pieces, with others in between."""
    course, took, members, steps = random_course(rng)
    seen = []
    begins = [(member % members * rng.choice((0, 5)) + 1, member) for member in range(members * rng.choice((1, 2)))]
    for now, member in sorted(begins):
        course.follow((now,))
        course.took[member], course.left[member] = took[member], steps
        course.begin(member, now, 0)
    for until in sorted(rng.sample(range(2, 2000), 6)):
        course.follow((until,))
        if rng.random() < 0.5:
            slot = rng.randrange(2 * members)
            course.free[slot], course.others[slot] = max(course.free[slot], until) + 40, (until - 1, until - 1, 0)
        lists = course.left, course.free, course.last, course.inbox, course.asked
        seen.append((sorted(course.heads), *map(tuple, lists), course.coincides))
    course.follow((10**9,))
    return seen, course.ends, course.free, course.last, course.left


def test_repeats_are_what_would_follow(monkeypatch):
    found = [followed(Random(seed)) for seed in range(80)]
    taken, repeat = [], Course._repeat
    monkeypatch.setattr(Course, "_repeat", lambda *given: taken.append(repeat(*given)) or taken[-1])
    assert [followed(Random(seed)) for seed in range(80)] == found
    assert sum(taken) > 80
    monkeypatch.setattr(Course, "_repeat", lambda *_: False)
    assert [followed(Random(seed)) for seed in range(80)] == found


def test_repeats_save_nearly_all_steps(monkeypatch):
    counts, serve = Counter(), Course.serve
    monkeypatch.setattr(Course, "serve", lambda *given: (counts.update(["served"]), serve(*given)))
    course = Course.on(2)
    course.add([Route(0, [(0, 5), (1, 0)])])
    course.took[0], course.left[0] = (3, 4), 10**6
    course.begin(0, 0, 0)
    course.follow((10**12,))
    assert course.ends == [9 * 10**6]  # 5 to the second link, whose 4 are behind it
    assert counts["served"] < 20


def test_messages_that_take_no_time_end_at_once():
    course = Course.on(0)
    course.add([Route(1, [(NEVER_WAITS, 0)]), Route(0, [(NEVER_WAITS, 0)])])
    for member in (0, 1):
        course.took[member], course.left[member] = (0,), 10**6
        course.begin(member, 7, -1)
    course.follow((8,))
    assert course.ends == [7, 7]


@pytest.mark.parametrize(("moment", "other", "after"), [
    ((5, -1, -1), (4, -1, -1), True),
    ((5, 3, 1), (5, 2, 1), True),
    ((5, 2, 1), (5, 3, 1), False),
    ((5, 3, 2), (5, 3, 1), True),
    ((5, 3, 1), (5, 3, 2), False),
    ((5, 3, 1), (5, 3, 1), False),
    ((5, 3, -1), (5, 2, 1), True),
    ((5, 3, 1), (5, -1, -1), False),
    ((5, -1, -1), (5, 3, 1), False),
    ((5, 3, 2), (5, 3, -1), False),
    ((5, 3, -1), (5, 3, -1), False),
    ((5, -1, -1), (5, -1, -1), False),
])  # fmt: skip
def test_what_was_booked_later_happens_later(moment, other, after):
    assert is_after(moment, other) == after


@pytest.mark.parametrize(("booked", "before", "certain"), [
    (4, 0, True), (3, 2, True), (3, 1, False), (3, 0, False), (3, -1, False), (2, 2, False),
])  # fmt: skip
def test_others_that_were_booked_earlier_are_first(booked, before, certain):
    """A message of others has reached the link at 9, by an event booked at 3; one of a ring does by another one."""
    course = Course.on(1)
    course.add([Route(0, [(NEVER_WAITS, 9 - booked), (0, 1)])])
    course.took[0], course.left[0], course.others[0] = (0, 2), 5, (9, 3, 1)
    course.begin(0, booked, before)
    if certain:
        course.follow((10,))
    else:
        with pytest.raises(FoldRefusal):
            course.follow((10,))


def test_a_late_member_sends_all_that_has_come():
    course = Course.on(1)
    course.add([Route(0, [(0, 100)])])
    course.took[0], course.left[0], course.inbox[0] = (3,), 3, ((4, 1, 0), (5, 2, 1))
    course.begin(0, 9, 0)
    assert (course.left[0], course.free[0], course.heads) == (0, 18, [])
    course.inbox[0] = ((4, 1, 0),)
    course.left[0], course.waits[0] = 1, False
    course.begin(0, 20, 0)
    assert course.ends == [20]


def test_all_that_tells_how_messages_go_on_is_compared():
    course = Course.on(1)
    course.add([Route(0, [(0, 100)])])
    course.took[0], course.left[0] = (3,), 3
    course.begin(0, 9, 0)
    changes = {"heads": [(12, 9, 0, 0, 0, (3,), 0)], "free": [13], "inbox": [((14, 9, 0),)], "waits": [True]}
    forms = {course._form(10), *(replace(course, **{name: change})._form(10) for name, change in changes.items())}
    assert len(forms) == 1 + len(changes)


@pytest.mark.parametrize("until", range(100, 118))
def test_repeats_end_before_what_happens_then(until, monkeypatch):
    """A message reaches both links every 9 picoseconds; nothing of the ring does reach the third one."""
    found = []
    for repeats in (True, False):
        if not repeats:
            monkeypatch.setattr(Course, "_repeat", lambda *_: False)
        course = Course.on(3)
        course.add([Route(0, [(0, 5), (1, 0)])])
        course.took[0], course.left[0], course.free[2] = (3, 4), 10**6, 50
        course.begin(0, 0, 0)
        course.follow((until,))
        found.append((course.heads, course.left, course.free, course.last))
    assert found[0] == found[1]


def ring_on_a_star():
    """A ring of 8 GPUs whose members send every microsecond: their parts; and flows of others, of two GPUs."""
    fold, whole = Fold(Layout({"data": 8}, ["data"]), []), ProcessGroup("ring", 0, range(8), [0] * 8)
    fabric = build("links", node(8), links=star(8))
    transport = folded_transport(fabric, "fifo", Recorder(), fold, [whole])
    rings = RingsApart(transport, SimpleNamespace(processes=[(whole, SimpleNamespace(buckets=[]))]))
    part = rings.of(whole, whole, range(8), None)
    flows = [transport.flow(Channel(rank, 5, REDUCTION, "ring", 1, 0))[0] for rank in (0, 1)]
    buffer = Buffer(2000, codecs.find("fp32").build())
    return transport.env, flows, [part(Group(transport, whole, me), buffer) for me in range(8)], rings


def test_the_lineage_of_the_end_of_a_ring_is_unknown(begun):
    env, _, parts, _ = ring_on_a_star()
    seen = []

    def noted(part):
        yield from part
        seen.append(env.lineage)

    for part in parts:
        env.process(noted(part))
    env.run()
    assert len({lineage[0] for lineage in seen}) == 8
    assert not any(
        env.decided(lineage, other) for lineage in seen for other in (*seen, (1, 15, 0, 0)) if lineage != other
    )
    assert env.start_matters


def test_rings_with_links_of_one_member_each_are_followed(begun):
    """On a star, those of any ranks; but not two on one link, nor one whose members stand for others."""
    fold = Fold(Layout({"data": 8}, ["data"]), [FoldedAxis("data", 4)])
    fabric = build("links", node(8), links=star(8))

    def following(*rings):
        groups = [ProcessGroup("ring", stage, ranks, [0] * len(ranks)) for stage, ranks in enumerate(rings)]
        transport = folded_transport(fabric, "fifo", Recorder(), fold, groups)
        made = RingsApart(transport, SimpleNamespace(processes=[(one, SimpleNamespace(buckets=[])) for one in groups]))
        for one in groups:
            made.of(one, one, [place for place, rank in enumerate(one.ranks) if rank < 4], None)
        return len({id(use.course) for use in made._uses.values()})

    assert following(range(8), range(8)) == 1
    assert following(range(0, 8, 2), range(1, 8, 2)) == 2
    for rings in (
        [(0, 1, 4, 5), (0, 2, 4, 6)],  # 0 is in both, as sender of some links, while 1 and 2 are in one
        [range(8), range(0, 8, 2)],
        [(0, 1, 2, 4, 5, 6, 3)],  # 2 sends to 4, for which 0 stands, and 3 sends to 0
        [(0, 1, 6)],  # 2 stands for 6
    ):
        with pytest.raises(FoldRefusal):
            following(*rings)


@pytest.mark.parametrize(("change", "elements", "followed"), [
    ({}, 800, True),
    ({}, 801, False),
    ({"kind": "nccl"}, 800, True),
    ({"kind": "hierarchical"}, 800, False),
    ({"channels": [range(8), range(8)]}, 800, False),
    ({"ranks": range(10), "servers": 2}, 800, False),
])  # fmt: skip
def test_rings_of_equal_messages_are_followed(begun, change, elements, followed):
    whole = replace(ProcessGroup("ring", 0, range(8), [0] * 8), **change)
    assert rings_apart._is_followed(whole, SimpleNamespace(buckets=[SimpleNamespace(elements=elements)])) == followed


def test_rows_of_messages_and_shares_of_links_need_messages(begun):
    variant = next(
        variant for variant in map(apart_variant, map(Random, range(9))) if variant.parts.reductions.processes
    )
    whole, fold = variant.scenario, Fold(variant.scenario.parallel.layout, [])
    (processes, _), *_ = variant.parts.reductions.processes
    ring = replace(processes, kind="ring", channels=(), tuned=None)
    group = SimpleNamespace(buckets=[])
    parts = replace(variant.parts, reductions=SimpleNamespace(processes=[(ring, group)]))
    shared = whole.cluster.model_copy(update={"sharing": "fair"})
    found = [
        untied(lambda: "simulated", whole.model_copy(update=change), parts, fold)
        for change in ({}, {"record": "all"}, {"cluster": shared})
    ]
    assert found == ["simulated", None, None]

    tried = []

    def refuse():
        tried.append(1)
        raise FoldRefusal("messages meet")

    assert [untied(refuse, whole, parts, fold) for _ in range(2)] == [None, None]
    assert len(tried) == 1


def test_short_rings_are_not_followed():
    rings = [ProcessGroup("ring", 0, range(size), [0] * size) for size in (511, 512)]
    assert [rings_apart._is_followed(ring, SimpleNamespace(buckets=[])) for ring in rings] == [False, True]


def at(env, time, action, *booked):
    """Do something at a time, by an event that was booked then; by default it is not known when."""

    def act(_):
        env.lineage = env.born = (1, 15, *booked) if booked else (None, time, -1, -1)
        action()

    env.at(time, (act,))


@pytest.mark.parametrize(("others", "refused"), [
    ([(20_000_000,)], False),
    ([(20_000_000,), (20_000_000,)], True),
    ([(3_000_000,)], True),  # as a message of the ring
    ([(3_000_000, 1, 0)], False),
    ([(3_000_000, 3_000_000, 3_000_000), (3_000_000,)], True),  # which is followed for the first one
    ([(0,)], True),  # as the ring begins
])  # fmt: skip
def test_messages_of_one_moment_are_told_apart_or_refused(begun, others, refused):
    env, (flow, _), parts, _ = ring_on_a_star()
    for time, *booked in others:
        at(env, time, partial(flow.send, Message(8), 0), *booked)
    at(env, 0, lambda: [env.process(part) for part in parts])
    with pytest.raises(FoldRefusal) if refused else nullcontext():
        env.run()


def test_messages_of_unknown_order_are_refused_after_those_of_rings(begun):
    """The ring is followed to that moment by a message at another link."""
    env, (flow, other), parts, _ = ring_on_a_star()
    at(env, 0, lambda: [env.process(part) for part in parts])
    at(env, 3_000_000, partial(other.send, Message(8), 0), 3_000_000, 3_000_000)
    at(env, 3_000_000, partial(flow.send, Message(8), 0))
    with pytest.raises(FoldRefusal, match="a message reaches a link at the same time as one of a ring"):
        env.run()


def test_messages_of_unknown_order_are_refused_before_first_ones(begun):
    env, (flow, _), parts, _ = ring_on_a_star()
    at(env, 0, lambda: [env.process(part) for part in parts[1:]])
    at(env, 5_000_000, partial(flow.send, Message(8), 0))
    at(env, 5_000_000, lambda: env.process(parts[0]))
    with pytest.raises(FoldRefusal, match="ranks 0 and 0 reach link"):
        env.run()


def test_first_messages_are_booked_by_the_event_that_sends(begun):
    env, _, parts, rings = ring_on_a_star()
    at(env, 5, lambda: next(parts[0]), 4, 2)
    env.run(until=6)
    ((reached, booked, before, *_),) = next(iter(rings._uses.values())).course._course.heads
    assert (reached, booked, before) == (5, 5, 4)


def test_only_what_follows_from_an_unknown_event_is_in_order():
    fold = Fold(Layout({"data": 4}, ["data"]), [FoldedAxis("data", 1)])
    env = LineageEnvironment(fold)
    known, one, other = (5, root_of(0), 1, 1), env.unknown(0), env.unknown(0)
    image = one[0], fold.move_root(one[1], (2,)), *one[2:]
    assert env.decided(one, one)
    assert env.decided(one, (one[0] + 1, *one[1:]))  # booked at another time by what follows from it
    assert env.decided(one, (one[0] + 1, *image[1:]))
    for unlike in (known, other, image, (None, *one[1:])):
        assert not env.decided(one, unlike)
        assert env.either(one, unlike)[0] is None or unlike == image
    assert env.decided(known, (6, *known[1:]))
    assert env.start_matters  # as far as is known
