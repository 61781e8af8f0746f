"""The installed package, outside the clone: every command and example of the README and of the documentation."""

import os
import shlex
import subprocess
import sys
import zipfile

import pytest
from support.paths import ROOT
from support.readme import COMMANDS, EXAMPLES, FILES, arguments_of, leading_to

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """An interpreter that knows the wheel and what it depends on, but not the clone."""
    place = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", place, ROOT]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = place.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True, timeout=300)
    (packages,) = place.glob("venv/lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(packages)
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return place / "venv/bin/python"


@pytest.fixture
def elsewhere(tmp_path, installed):
    """Run Python in a folder that holds only the files a reader would write."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def run(*words):
        env = {**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": "", "MPLBACKEND": "agg"}
        return subprocess.run([installed, *words], cwd=tmp_path, capture_output=True, text=True, env=env, timeout=600)

    return run


def test_the_wheel_is_what_is_imported(elsewhere, installed):
    done = elsewhere("-c", "import hybrid_des; print(hybrid_des.__file__)")
    assert done.stdout.startswith(str(installed.parents[1])), done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, elsewhere):
    for line in (*leading_to(command), command):
        words = arguments_of(shlex.split(line, comments=True))
        done = elsewhere("-m", "hybrid_des", *words)
        assert done.returncode == 0, done.stderr
    assert done.stdout or "--quiet" in words or done.stderr.splitlines()[-1].startswith("wrote ")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_python_example(example, elsewhere):
    done = elsewhere("-c", example)
    assert done.returncode == 0, done.stderr
