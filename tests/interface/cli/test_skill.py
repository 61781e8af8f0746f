"""What agents are told: the commands of `SKILL.md` do what it says."""

import re
import shlex

import pytest
from support.paths import PACKAGE

from hybrid_des.interface.cli import command_files

TEXT = (PACKAGE / "SKILL.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
COMMANDS = list(dict.fromkeys(line for language, text in FENCES if language == "sh" for line in text.splitlines()))
(PLAN,) = (text for language, text in FENCES if language == "yaml")


def test_agents_are_told_in_few_lines(ran):
    assert TEXT.count("\n") <= 150
    out, _ = ran("docs", "skill")
    assert out.strip() == TEXT.strip()
    assert "skill" in ran("docs")[0]


def test_agents_are_told_of_commands_that_exist():
    named = set(re.findall(r"`hybrid-des ([a-z]+)", TEXT)) | {line.split()[1] for line in COMMANDS}
    assert len(named & set(command_files.names())) > 7
    assert named - set(command_files.names()) <= {"plan.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_for_agents_runs(command, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    code, out, err = run(*shlex.split(command)[1:])
    assert (code, bool(out)) == (0, True), err
