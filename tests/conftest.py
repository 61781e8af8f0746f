"""Fixtures that tests share, and the marker of tests that start processes."""

import gc
import os
import signal
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import registries
from support.campaigns import TIMES
from support.interrupts import heed_interrupts
from support.paths import SCENARIOS, TESTS

from hybrid_des.interface.cli import main as cli

# before NumPy is imported, here and in every process that tests start: for arrays this small, threads more than double
# the processor time of real training
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# GNU Readline, which pytest imports, gives workers the width of a terminal; tests state the width that they need
os.environ.pop("COLUMNS", None)

# no clock decides about a test: the first example pays for imports, and the machine may be busy
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50 * TIMES
)
settings.load_profile("any machine")
LONGEST = ("test_notebooks", "test_gallery")
LONG = 60  # characters of the id of a parameter


def pytest_make_parametrize_id(val):
    """Name what pytest would only number by what it holds."""
    if isinstance(val, Mapping):
        return short(", ".join(f"{key}: {value}" for key, value in val.items()))
    if isinstance(val, list | tuple):
        return short(", ".join(map(str, val)))
    if isinstance(val, Exception | Fraction) or (isinstance(val, str | bytes) and len(val) > LONG):
        return short(str(val))
    return None


def short(text):
    return f"{text[:LONG]}…" if len(text) > LONG else text or "none"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Spare the garbage collector what lives as long as the session, and let it look as seldom as for the command."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(cli.GARBAGE, *gc.get_threshold()[1:])
        gc.enable()


def pytest_collection_modifyitems(items):
    """Mark every test of tests/system, and run them first: at the end, no worker waits for the long test of another."""
    for item in items:
        if item.path.is_relative_to(TESTS / "system"):
            item.add_marker(pytest.mark.system)
    items.sort(key=lambda item: (item.get_closest_marker("system") is None, item.path.stem not in LONGEST))


@pytest.fixture(scope="session", autouse=True)
def _in_the_foreground():
    """Interrupts reach the tests and their child processes, even under `nohup … &`."""
    before = heed_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def scenarios():
    """The folder of the shipped scenarios."""
    return SCENARIOS


@pytest.fixture
def scratch():
    """Restore every registry after the test."""
    with registries.scratch():
        yield


@pytest.fixture
def unpainted(monkeypatch):
    """Pictures are composed, but their files are empty: for tests that look at other files, or at names only."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **options: Path(file).touch())


@pytest.fixture
def write(tmp_path):
    """Write a text or bytes to a file and give its path."""

    def write(content, name="a.yaml"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit code, stdout, lines of stderr."""

    def run(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return code, output.out, output.err.splitlines()

    return run


@pytest.fixture
def ran(run):
    """Run a command that succeeds: stdout, lines of stderr."""

    def ran(*arguments):
        code, out, err = run(*arguments)
        assert code == 0, err
        return out, err

    return ran


@pytest.fixture
def refused(run):
    """Run a command that is refused in one line, which it gives."""

    def refused(*arguments):
        code, out, err = run(*arguments)
        assert (code, out, len(err)) == (2, "", 1), err
        return err[0]

    return refused
