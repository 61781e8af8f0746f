"""The README, the documentation and CI agree; `test_wheel` runs every command and example of theirs."""

import os
import re
import subprocess
import sys

import pytest
import yaml
from support.paths import ROOT
from support.readme import EXAMPLES, FENCES, FILES, INSTALL, TEST, TEXTS, fences

SHOWN = [text for language, text in fences(TEXTS["README.md"]) if language == "sh"]
CI = (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_two_blocks_install_run_and_test():
    """CI runs both."""
    install, test = SHOWN[:2]
    main = ".venv/bin/python -m hybrid_des scenarios/a100_8x.yaml"
    assert install == f"python3 -m venv .venv && .venv/bin/pip install -q . && {main}\n" == f"{INSTALL}\n"
    assert test == ".venv/bin/pip install -q -e '.[dev]' && .venv/bin/python -m pytest\n" == f"{TEST}\n"
    assert (ROOT / "scenarios/a100_8x.yaml").exists()


def test_ci_runs_both_blocks_as_the_readme_shows_them():
    """Its function that takes blocks out of the README is run; what it gives is what CI hands to bash."""
    function = re.search(r"^readme_block\(\) \{.*?^\}$", CI, flags=re.MULTILINE | re.DOTALL)[0]
    for number, (name, block) in enumerate(zip(("install", "tests"), SHOWN, strict=False), start=1):
        command = ["bash", "-euc", f"{function}\nreadme_block {number}"]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == block
        assert f"\n{name}=$(readme_block {number})\n" in CI
        assert f'\nbash -euo pipefail -c "${name}"\n' in CI
    assert "-m pip" not in CI
    assert len(re.findall("-m pytest", CI)) == 2, "what is slow, and on other versions of Python"


def test_four_more_commands_lead_to_a_scenario_of_ones_own():
    path = [line for block in SHOWN[2:] for line in block.splitlines()]
    assert [command.split()[:3] for command in path] == [
        [".venv/bin/hybrid-des", "scenarios/first.yaml"],
        ["hybrid-des", "explain", "scenarios/first.yaml"],
        ["hybrid-des", "scenarios/first.yaml", "--set"],
        ["hybrid-des", "init", "mine"],
    ]  # fmt: skip


def test_the_readme_takes_two_screens():
    lines = TEXTS["README.md"].splitlines()
    assert len(lines) < 110
    assert len(FILES["first.yaml"].splitlines()) <= 10


def test_the_first_scenario_is_one_that_ships():
    from hybrid_des import load

    assert load(ROOT / "scenarios/first.yaml") == load(yaml.safe_load(FILES["first.yaml"]))


def test_first_screen_shows_what_the_command_prints(tmp_path):
    shown = next(text for language, text in FENCES if language == "text")
    command = [sys.executable, "-m", "hybrid_des", "scenarios/first.yaml"]
    env = {**os.environ, "COLUMNS": "100", "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", env=env, timeout=300)
    beginning = shown.removesuffix("…\n")
    assert done.stdout[: len(beginning)] == beginning


def test_own_schedule_is_short():
    own = next(text for text in EXAMPLES if text.startswith("# my_schedule.py"))
    assert len(own.splitlines()) < 30


@pytest.mark.parametrize("page", TEXTS)
def test_every_file_that_a_page_names_is_there(page):
    names = re.findall(r"\]\(([^)#:\s]+)\)", TEXTS[page])
    assert [name for name in names if not (ROOT / page).parent.joinpath(name).exists()] == []


def test_files_of_the_same_name_are_the_same():
    files = [(found[1], text) for _, text in FENCES if (found := re.match(r"# (\S+\.(?:py|yaml))", text))]
    assert [name for name, text in files if FILES[name] != text] == []


def test_contributing_names_what_ci_does():
    ((_, text),) = fences((ROOT / "CONTRIBUTING.md").read_text())
    first, *others = text.splitlines()
    assert first == f"python3 -m venv .venv && {TEST}"
    assert set(others) <= set(CI.splitlines())


REFERENCE = (ROOT / "scenarios/REFERENCE.md").read_text(encoding="utf-8")


def test_no_cell_of_the_reference_is_long():
    rows = [line for line in REFERENCE.splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert len(cells) > 1000
    assert [cell for cell in cells if len(cell) > 200] == [], "say the rest in a list below the table"


def test_the_contents_of_the_reference_are_its_headings():
    headings = re.findall(r"^##+ (.+)$", re.sub(r"^```.*?^```$", "", REFERENCE, flags=re.M | re.S), flags=re.M)
    contents = REFERENCE.partition("## Contents\n")[2].partition("\n## ")[0]
    named = re.findall(r"\[([^\]]+)\]\(#([^)]+)\)", contents)
    assert [name for name, _ in named] == [heading for heading in headings if heading != "Contents"]
    assert [anchor for _, anchor in named] == [
        re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name, _ in named
    ]


def test_the_first_scenario_of_the_reference_is_one():
    from hybrid_des import load

    language, text = fences(REFERENCE)[0]
    assert (language, load(yaml.safe_load(text)).batch) == ("yaml", 64)
    assert len(text.splitlines()) <= 6


def test_the_complete_file_of_the_reference_is_one(tmp_path):
    from hybrid_des import costs, load

    ((language, text),) = (fence for fence in fences(REFERENCE) if fence[1].startswith("name: complete\n"))
    (tmp_path / "complete.yaml").write_text(text)
    scenario = load(tmp_path / "complete.yaml")
    assert (language, scenario.model is None, len(costs(scenario))) == ("yaml", False, 20)
