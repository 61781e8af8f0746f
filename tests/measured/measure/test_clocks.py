"""The clock of a GPU, with events that stand in for those of PyTorch."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from hybrid_des.measured.measure.clocks import Clock, clock_of

STEP_S = 0.75
STEPS = 4000


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose events occur at the seconds that `gpu.now` gives; its clock began an hour before that of the host."""
    gpu = SimpleNamespace(now=3600.0)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = gpu.now

        def elapsed_time(self, later):
            return float(np.float32(1000 * (later.at - self.at)))  # as CUDA: milliseconds in 32 bits

    cuda = SimpleNamespace(Event=Event, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr("hybrid_des.measured.measure.clocks.perf_counter", lambda: gpu.now - 3600)
    return gpu


def test_events_of_a_long_run_are_exact_to_a_microsecond(gpu):
    """An hour in 32 bits would be exact to a quarter of a second: every step has a base of its own."""
    clock = clock_of(SimpleNamespace(type="cuda"))
    marks = []
    for step in range(STEPS):
        gpu.now = 3600 + STEP_S * step
        clock.rebase()
        gpu.now += 1e-4
        marks.append(clock.mark())
    clock.synchronize()
    expected = [STEP_S * step + 1e-4 for step in range(STEPS)]
    assert [clock.seconds(mark) for mark in marks] == pytest.approx(expected, abs=1e-6)


def test_other_devices_have_the_clock_of_the_host():
    clock = clock_of(SimpleNamespace(type="cpu"))
    assert type(clock) is Clock
    assert clock.seconds(clock.mark()) <= clock.mark()
