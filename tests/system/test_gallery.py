"""The gallery of scenarios is what its command draws."""

from __future__ import annotations

import shutil

import pytest

from hybrid_des.cli.main import main


def test_the_committed_page_is_what_the_command_writes(scenarios, tmp_path, monkeypatch, capsys):
    for file in scenarios.glob("*.yaml"):
        (tmp_path / "scenarios").mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / "scenarios")
    monkeypatch.chdir(tmp_path)
    assert main(["gallery"]) == 0
    assert "drew" in capsys.readouterr().out
    assert (tmp_path / "scenarios" / "README.md").read_text() == (scenarios / "README.md").read_text()
    drawn = {path.name for path in (tmp_path / "scenarios" / "gallery").iterdir()}
    assert drawn == {path.name for path in (scenarios / "gallery").iterdir()}
    assert all(path.stat().st_size < 150_000 for path in (scenarios / "gallery").iterdir())


@pytest.mark.parametrize("place", ["missing", "."])
def test_a_folder_without_scenarios_is_a_users_mistake(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["gallery", place]) == 2
    assert capsys.readouterr().err.count("\n") == 1
