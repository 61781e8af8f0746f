"""What events descend from where two of them may be in either order, and when the order of ranks' starting matters."""

import pytest

from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.folding.symmetry import SURE, Fold, FoldedAxis, root_of
from hybrid_des.layout import Layout

LAYOUT = Layout({"tensor": 2, "data": 2}, ["tensor", "data"])
FOLDED = Fold(LAYOUT, [FoldedAxis("tensor", 1), FoldedAxis("data", 1)])  # every rank is an image of each other
WHOLE = Fold(LAYOUT, [])


def known(lineage):
    """The number of digits of a root, slowest first, that are certain."""
    return lineage[1] & SURE


def started(env, rank, steps):
    env.begin(root_of(rank))
    return env.process(steps)


def after(env, *delays):
    for delay in delays:
        yield env.timeout(delay)


def asking(env, processes, seen, *delays):
    """Wait for the first of some processes after some time, and note what the rest descends from."""
    yield from after(env, *delays)
    yield env.awaited(processes[0])
    seen.append((env.lineage, env.born))


def test_what_follows_several_events_descends_from_the_last():
    """Any of three may be it; of two of them the replica is certain, of all three nothing is."""
    env = LineageEnvironment(FOLDED)
    done = env.all_of([started(env, rank, after(env, 1)) for rank in (2, 0, 3)])
    env.run()
    assert known(done.lineage) == 0
    env = LineageEnvironment(FOLDED)
    done = env.all_of([started(env, rank, after(env, 1)) for rank in (2, 3)])
    env.run()
    assert known(done.lineage) == 1


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_process_that_ends_when_another_asks_may_be_last(asks_first):
    """Both are events of one time, whose ancestors were booked at the same times; other images swap them."""
    env, processes, seen = LineageEnvironment(FOLDED), [], []
    if asks_first:
        started(env, 2, asking(env, processes, seen, 1, 0))
    processes.append(started(env, 0, after(env, 1)))
    if not asks_first:
        started(env, 2, asking(env, processes, seen, 1, 0))
    env.run()
    [(lineage, born)] = seen
    assert known(lineage) == known(born) == 0
    assert lineage[0] is not None


def test_a_process_that_ends_at_another_time_is_not_undecided():
    env, processes, seen = LineageEnvironment(FOLDED), [], []
    processes.append(started(env, 0, after(env, 1)))
    started(env, 2, asking(env, processes, seen, 2))
    started(env, 3, asking(env, processes, seen, 0))
    env.run()
    (woken, _), (asked, _) = seen
    assert woken == processes[0].lineage
    assert asked[1] == root_of(2)
    assert not env.start_matters


@pytest.mark.parametrize(("ranks", "times", "matters"), [
    ((0, 2), (1, 1), True),  # which of two ranks acts first depends on which starts first
    ((0, 0), (1, 1), False),  # two processes of one rank: on its program
    ((0, 2), (1, 2), False),  # on times
])  # fmt: skip
def test_only_equal_times_of_several_ranks_depend_on_starting(ranks, times, matters):
    env = LineageEnvironment(WHOLE)
    env.all_of([started(env, rank, after(env, time, 3 - time, 0)) for rank, time in zip(ranks, times, strict=True)])
    env.run()
    assert env.start_matters == matters
