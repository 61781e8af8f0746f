"""When the process of a page is given up: the budget is that of the newest request."""

import json
from types import SimpleNamespace

import pytest
from support.paths import SCENARIOS

from hybrid_des.interface.live.frames import Request, ServerState
from hybrid_des.interface.live.worker import EARLY, Worker, work


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


def test_a_part_of_an_answer_begins_the_budget_again(worker, timers):
    worker.ask(Request(number=1, file="a.yaml"))
    arrived(worker, EARLY)
    assert [timer.runs for timer in timers] == [False, True]
    arrived(worker, 1)
    assert [timer.runs for timer in timers] == [False, False]


def test_advice_waits_for_everything_else(monkeypatch):
    """Also if it was asked for first."""
    requests = [Request(number=number, want=want, file="a100_8x.yaml") for number, want in ((1, "why"), (2, "yaml"))]
    sent = []

    def received():
        if not requests:
            raise EOFError
        return requests.pop(0)

    monkeypatch.setattr("hybrid_des.interface.live.worker.signal.signal", lambda *given: None)
    monkeypatch.setattr("hybrid_des.interface.live.frames.has_timer", lambda: False)
    connection = SimpleNamespace(poll=lambda: bool(requests), recv=received, send=sent.append)
    work(ServerState(SCENARIOS / "a100_8x.yaml"), connection)
    assert [number for number, _ in sent] == [2, EARLY, EARLY, 1]
    assert "yaml" in json.loads(sent[0][1])
    assert [line["change"] for line in json.loads(sent[-1][1])["advice"]["lines"]]
