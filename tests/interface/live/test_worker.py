"""When the process of a page is given up: the budget is that of the newest request."""

from types import SimpleNamespace

import pytest

from hybrid_des.interface.live.frames import Request, ServerState
from hybrid_des.interface.live.worker import Worker


class Timer:
    """A timer of an event loop that only knows whether it still runs."""

    runs = True

    def cancel(self):
        self.runs = False


@pytest.fixture
def timers():
    return []


@pytest.fixture
def worker(monkeypatch, timers, tmp_path):
    """A worker without a process."""

    def started(worker):
        worker._connection = SimpleNamespace(send=lambda request: None, closed=False)

    def call_later(seconds, late):
        timers.append(Timer())
        return timers[-1]

    monkeypatch.setattr(
        "hybrid_des.interface.live.worker.asyncio.get_running_loop", lambda: SimpleNamespace(call_later=call_later)
    )
    monkeypatch.setattr(Worker, "_start", started)
    return Worker(ServerState(tmp_path / "a.yaml", budget_s=10.0))


def arrived(worker, number):
    worker._arrived(worker._connection, number, "{}")


def test_the_budget_runs_again_after_an_older_answer(worker, timers):
    for number in (1, 2):
        worker.ask(Request(number=number, file="a.yaml"))
    arrived(worker, 1)
    assert [timer.runs for timer in timers] == [False, True]
    arrived(worker, 2)
    assert [timer.runs for timer in timers] == [False, False]
