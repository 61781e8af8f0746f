"""The pool: every item has one result, whatever happens to workers."""

from concurrent.futures import Future

import pytest

from hybrid_des.simulation.watch import BudgetSpentError
from hybrid_des.studies import pool
from hybrid_des.studies.pool import MOST_ITEMS, Pool, Task, WorkersLostError, open_pool


class Here:
    """An executor that runs tasks at once, in this process; some of them lose their worker."""

    def __init__(self, lost=lambda items, again: False):
        self.sizes = []
        self._lost = lost
        self._seen = []

    def submit(self, function, items):
        self.sizes.append(len(items))
        future = Future()
        again = [item in self._seen for item in items]
        self._seen += items
        if self._lost(items, all(again)):
            future.set_exception(OSError("killed\nby a signal"))
        else:
            future.set_result(function(items))
        return future


def squares(workers, count, **how):
    """Results by place, of a function that is told apart from a lost worker."""
    return dict(Pool(workers, **how).map(lambda item: item**2, range(count), lambda item, error: (item, str(error))))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_every_item_has_its_result_once(workers, count):
    done = []
    found = squares([Here() for _ in range(workers)], count, progress=lambda *one: done.append(one))
    assert found == {place: place**2 for place in range(count)}
    assert done == [(place, count) for place in range(1, count + 1)]


def test_tasks_are_small_and_share_the_work():
    here = Here()
    squares([here], 1000)
    assert max(here.sizes) <= MOST_ITEMS
    other = Here()
    squares([other], 10)
    assert sorted(other.sizes) == [1] * 6 + [2] * 2


def test_items_of_a_lost_task_run_again_alone():
    here = Here(lambda items, again: len(items) > 1)
    assert squares([here], 20) == {place: place**2 for place in range(20)}
    assert here.sizes.count(1) == 20


def test_an_item_that_loses_two_workers_is_answered():
    found = squares([Here(lambda items, again: 3 in items)], 20)
    assert found.pop(3) == (3, "killed\nby a signal")
    assert found == {place: place**2 for place in range(20) if place != 3}


def test_a_long_task_comes_in_parts(monkeypatch):
    monkeypatch.setattr(pool, "LONGEST_S", 0)
    here = Here()
    assert squares([here], 10) == {place: place**2 for place in range(10)}
    assert sorted(here.sizes) == [1] * 8 + [2] * 2


def test_results_before_an_executor_stops_are_kept():
    class Stops(Here):
        def submit(self, function, items):
            if len(self.sizes) == 2:
                raise RuntimeError("closed")
            return super().submit(function, items)

    found = []
    with pytest.raises(WorkersLostError, match="the workers are lost: RuntimeError: closed"):
        found.extend(Pool([Stops()] * 4).map(abs, [-1, -2, -3, -4], lambda item, error: None))
    assert sorted(found) == [(0, 1), (1, 2)]


def test_the_next_task_may_follow_from_the_last():
    numbers = [1]

    def following():
        return Task(lambda item: item + 1, [numbers[-1]], ["key"]) if numbers and numbers[-1] < 5 else None

    for task, (result,) in Pool().run(following, lambda item, error: None):
        assert task.keys == ["key"]
        numbers.append(result)
    assert numbers == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_task_begins_after_the_time_limit(workers):
    with pytest.raises(BudgetSpentError):
        squares([Here()] * workers, 3, until=0.0)


def test_one_job_without_a_limit_is_this_process():
    with open_pool(1) as alone, open_pool(3, Here(), slots=2) as given:
        assert (alone.workers, len(given.workers)) == ((), 2)
