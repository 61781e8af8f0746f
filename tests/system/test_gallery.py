"""The gallery of scenarios and the report are what their scripts write."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image


@pytest.mark.slow
def test_the_committed_page_is_what_the_script_writes(scenarios, tmp_path):
    for file in scenarios.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    for part in ("jobs", "rl"):
        shutil.copytree(scenarios / part, tmp_path / part)
    command = [sys.executable, str(scenarios / "draw_gallery.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "drew" in done.stdout
    assert (tmp_path / "README.md").read_text() == (scenarios / "README.md").read_text()
    drawn = {path.name for path in (tmp_path / "gallery").iterdir()}
    assert drawn == {path.name for path in (scenarios / "gallery").iterdir()}
    assert all(path.stat().st_size < 150_000 for path in (scenarios / "gallery").iterdir())
    ours, theirs = scenarios / "gallery", tmp_path / "gallery"
    stale = [name for name in sorted(drawn) if not same_picture(ours / name, theirs / name)]
    assert stale == [], "draw them again: python scenarios/draw_gallery.py"


def same_picture(committed, drawn):
    """Whether hardly any pixel differs: less than a title's digit, more than another release's rounding."""
    one, two = (np.asarray(Image.open(path).convert("RGB")).astype(int) for path in (committed, drawn))
    return one.shape == two.shape and (abs(one - two).max(axis=2) > 64).mean() < 0.0002


@pytest.mark.slow
def test_the_committed_report_is_what_its_script_writes(scenarios, tmp_path):
    command = [sys.executable, str(scenarios / "report/write_page.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "README.md").read_text() == (scenarios / "report/README.md").read_text()
