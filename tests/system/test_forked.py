"""Tasks in copies of this process: as if they ran here, whatever happens to a copy."""

import gc
import multiprocessing
import os
import signal
import sys
from functools import partial
from time import sleep

import pytest
from support.paths import SCENARIOS

from hybrid_des.analysis import explanation
from hybrid_des.analysis.tasks import LocalTask
from hybrid_des.errors import UsageError
from hybrid_des.interface.live.frames import NewerRequest, ended_by
from hybrid_des.report.explained import render_explanation
from hybrid_des.studies.forked import forked

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux only"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded"),
]
HERE = os.getpid()


def children():
    """Whether this process has children that it has not waited for."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def test_results_come_in_the_order_of_tasks():
    def squared(number):
        sleep(0.05 / (1 + number))
        return number**2, os.getpid()

    results = forked(3)([partial(squared, number) for number in range(20)])
    assert [square for square, _ in results] == [number**2 for number in range(20)]
    assert HERE not in {pid for _, pid in results}
    assert not children()


def test_one_process_is_this_one():
    assert forked(1)([os.getpid, os.getpid]) == [HERE, HERE]
    assert forked(4)([os.getpid]) == [HERE]
    assert forked(4)([]) == []


def test_somebody_is_told_how_many_tasks_are_done():
    for jobs in (1, 3):
        told = []
        forked(jobs, lambda *of, told=told: told.append(of))([partial(sleep, 0.01)] * 5)
        assert told == sorted(set(told))
        assert told[-1] == (5, 5)
        assert told == [(done, 5) for done in range(1, 6)] or jobs == 3  # results of copies may arrive together


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_to_be_left_here_runs_here_meanwhile(jobs):
    left, told = [], []
    tasks = [os.getpid, LocalTask(lambda: left.append(os.getpid())), os.getpid]
    first, nothing, second = forked(jobs, lambda *of: told.append(of))(tasks)
    assert (left, nothing, told[-1]) == ([HERE], None, (2, 2))
    assert (first == HERE) == (second == HERE) == (jobs == 1)


def test_an_error_of_what_runs_here_ends_copies():
    def refuse():
        raise UsageError("not here")

    with pytest.raises(UsageError, match="not here"):
        forked(2)([partial(sleep, 60), LocalTask(refuse), partial(sleep, 60)])
    assert not children()


def test_what_runs_here_is_interrupted_at_once():
    def interrupt(number, frame):
        raise KeyboardInterrupt

    def wait():
        for _ in range(100):
            sleep(0.1)
        raise AssertionError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            forked(2)([partial(sleep, 60), LocalTask(wait), partial(sleep, 60)])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not children()


def test_an_error_is_raised_here():
    def refuse(number):
        raise UsageError(f"task {number}")

    with pytest.raises(UsageError, match="task 1"):
        forked(2)([int, partial(refuse, 1), partial(refuse, 2)])
    assert not children()


def test_what_a_killed_copy_had_runs_here():
    def killed(number):
        if os.getpid() != HERE and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert forked(2)([partial(killed, number) for number in range(6)]) == [*range(6)]


def test_a_result_that_cannot_be_sent_is_found_here():
    large = [(lambda number=number: number) for number in range(3)]
    assert [made() for made in forked(2)([(lambda one=one: one) for one in large])] == [0, 1, 2]


def test_large_results_arrive():
    assert forked(2)([partial(bytes, 300_000), partial(bytes, 5)]) == [bytes(300_000), bytes(5)]


def test_copies_end_with_what_interrupts_them():
    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            forked(2)([partial(sleep, 60)] * 2)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not children()


def test_interrupts_that_repeat_leave_no_copies(monkeypatch):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    unfreeze = gc.unfreeze
    monkeypatch.setattr(gc, "unfreeze", lambda: (sleep(0.1), unfreeze()))  # further ones come before copies are ended

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.2, 0.02)
                forked(3)([partial(sleep, 60)] * 3)
            finally:
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not children()


def test_copies_end_with_a_newer_request():
    with pytest.raises(NewerRequest), ended_by(lambda: True):
        forked(2)([partial(sleep, 60)] * 2)
    assert not children()
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@pytest.mark.slow
def test_a_handler_that_raises_nothing_ends_nothing():
    asked = []
    with ended_by(lambda: bool(asked.append(1))):
        assert forked(2)([partial(sleep, 0.6)] * 2) == [None, None]
    assert asked


def test_tasks_run_here_if_no_process_is_to_be_had(monkeypatch):
    def refused():
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refused)
    assert forked(2)([os.getpid, os.getpid]) == [HERE, HERE]


def of_daemon(pipe):
    pipe.send((os.getpid(), forked(2)([os.getpid, os.getpid])))


def test_daemons_have_no_copies():
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=of_daemon, args=(there,), daemon=True)
    process.start()
    pid, pids = here.recv()
    process.join()
    assert pids == [pid, pid]


@pytest.mark.slow
def test_an_explanation_in_copies_is_the_same(monkeypatch):
    monkeypatch.setattr(explanation, "SHORT", 0)
    file = SCENARIOS / "contention_slower.yaml"
    here, there = (explanation.explain(file, ["rank.1.time=2x"], **how) for how in ({}, {"at_once": forked(2)}))
    assert here.to_mapping() == there.to_mapping()
    assert render_explanation(here, 100) == render_explanation(there, 100)
