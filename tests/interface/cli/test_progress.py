"""What a terminal shows while one waits, and that nothing else does."""

import re
import sys
from threading import Thread

import pytest
from support.scenarios import MINIMAL

from hybrid_des.interface.cli import output

SWEEP = MINIMAL + "sweep: [{schedule.microbatches: [1, 2, 3]}]\n"
SEARCH = MINIMAL + "cluster: {gpus_per_node: 1}\nsearch: {axes: [{schedule.kind: [1f1b, gpipe]}]}\n"


class Impatient(Thread):
    """A timer that calls as soon as it starts."""

    def __init__(self, seconds, call):
        super().__init__()
        self.start = call

    def cancel(self):
        pass


@pytest.fixture
def shown(run, write, monkeypatch):
    """What stderr shows of a command with a scenario, without the codes that control a terminal."""

    def shown(text, *words, terminal=True):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
        code, _, err = run(*words, write(text))
        assert code == 0, err
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", " ".join(err))

    return shown


def test_a_sweep_shows_its_share(shown):
    seen = shown(SWEEP, "--jobs", 1)
    assert "cases" in seen
    assert "100%" in seen


def test_a_search_shows_the_best_and_the_bound(shown):
    seen = shown(SEARCH, "search", "--jobs", 1)
    assert re.search(r"\d+ simulated, \d+ excluded, 0 open; best [\d.]+ s, bound [\d.]+ s", seen)


def test_a_simulation_that_takes_long_says_so(shown, monkeypatch):
    monkeypatch.setattr(output.threading, "Timer", Impatient)
    assert "simulating" in shown(MINIMAL)


@pytest.mark.parametrize("words", [(), ("search",)], ids=["a sweep", "a search"])
def test_nothing_but_a_terminal_shows_progress(shown, words):
    seen = shown(SEARCH if words else SWEEP, *words, "--jobs", 1, terminal=False)
    assert "%" not in seen
    assert "simulated," not in seen
