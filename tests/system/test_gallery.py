"""The gallery of scenarios and the report are what their scripts write."""

from __future__ import annotations

import shutil
import subprocess
import sys


def test_the_committed_page_is_what_the_script_writes(scenarios, tmp_path):
    for file in scenarios.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    command = [sys.executable, str(scenarios / "draw_gallery.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "drew" in done.stdout
    assert (tmp_path / "README.md").read_text() == (scenarios / "README.md").read_text()
    drawn = {path.name for path in (tmp_path / "gallery").iterdir()}
    assert drawn == {path.name for path in (scenarios / "gallery").iterdir()}
    assert all(path.stat().st_size < 150_000 for path in (scenarios / "gallery").iterdir())


def test_the_committed_report_is_what_its_script_writes(scenarios, tmp_path):
    command = [sys.executable, str(scenarios / "report/write_page.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "README.md").read_text() == (scenarios / "report/README.md").read_text()
