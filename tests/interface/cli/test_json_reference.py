"""What the reference of JSON output says of every command's keys, against what the commands print."""

import json
import re
import shlex

import pytest
from support.paths import ROOT

from hybrid_des.interface.cli import command_files

PAGE = (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")
SECTIONS = {text.partition("\n")[0]: text for text in PAGE.split("\n## ")[1:]}
WHOLE = {  # sections whose tables have all keys of their command; others name some of them
    "Several jobs", "A loop of reinforcement learning", "compare", "explain", "explain --memory", "search", "spread",
    "goodput", "costs", "collective", "gpus", "models", "topology", "schedules", "init", "export",
    "validate and measure",
}  # fmt: skip
SLOW = {
    "Several jobs",
    "A loop of reinforcement learning",
    "explain",
    "search",
    "spread",
    "goodput",
    "validate and measure",
}  # seconds each
COMMANDS = {
    title: shlex.split(command[1])
    for title, text in SECTIONS.items()
    if (command := re.search(r"^```sh\nhybrid-des (.*)", text, flags=re.MULTILINE))
}


def rows(section):
    """The keys that a section describes, as patterns, each with whether it is always there."""
    for line in re.findall(r"^\| (`[^|]*`) \|[^|]*\| (.*) \|$", section, flags=re.MULTILINE):
        for key in re.findall(r"`([^`]+)`", line[0]):
            pattern = re.escape(key).replace("NAME", r"[^\[\]]+").replace(r"\[\]", r"\[\]")
            yield re.compile(pattern), not line[1].startswith("if ")


def keys(value, at=""):
    """The paths of a value, in the page's notation; what is null or empty ends there."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from keys(inner, f"{at}.{name}" if at else name)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from keys(inner, f"{at}[]")
    else:
        yield at + ("[]" if isinstance(value, list) else "")


def printed(run, title, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, err = run(*COMMANDS[title])
    assert code == 0, err
    return set(keys(json.loads(out)))


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=[pytest.mark.slow] if title in SLOW else []) for title in COMMANDS]
)
def test_the_reference_names_the_keys_that_are_printed(run, title, monkeypatch):
    """Every key of a command is in its table, and every key of the table is printed, unless it says when."""
    found, described = printed(run, title, monkeypatch), dict(rows(SECTIONS[title]))
    nothing = {key for key in found if key.endswith("[]")}  # an empty list says nothing of what would be in it
    begun = tuple(key.removesuffix("[]") + "[" for key in nothing)
    missing = [
        pattern.pattern
        for pattern, always in described.items()
        if always and not any(pattern.fullmatch(key) for key in found)
        and not pattern.pattern.replace("\\", "").startswith(begun or ("\0",))
    ]  # fmt: skip
    assert missing == []
    if title in WHOLE:
        unknown = [key for key in found if not any(pattern.fullmatch(key) for pattern in described)]
        assert [key for key in unknown if not _holds(described, key)] == []


def _holds(described, key):
    """Whether an empty list or object stands for keys that are described."""
    begin = re.escape(key.removesuffix("[]"))
    return any(pattern.pattern.startswith(begin) for pattern in described)


def test_the_reference_has_every_command():
    heads = " ".join(SECTIONS)
    named = set(re.findall(r"[a-z]+", heads)) | {"scenario"}
    assert set(command_files.names()) <= named


def test_an_error_has_the_parts_that_the_reference_names(run, tmp_path, scenarios):
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: {scenarios}/a100_8x.yaml\n\nsteps: -1\n")
    code, out, err = run(file, "--json")
    error = json.loads(out)["error"]
    assert (code, err) == (2, error["message"].splitlines())
    (problem,) = error["problems"]
    assert problem == {"message": error["message"], "file": str(file), "line": 3, "path": "steps",
                       "expected": "at least 1", "found": "-1"}  # fmt: skip
    described = [pattern for pattern, _ in rows(SECTIONS["Errors"])]
    assert all(any(pattern.fullmatch(key) for pattern in described) for key in keys({"error": error}))


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["scenarios/a100_8x.yaml", "--set", "steps=x"],
         {"set": "steps=x", "path": "steps", "expected": "a whole number", "found": '"x"'}),
        (["scenarios/a100_8x.yaml", "--set", "schedule.knd=1"], {"set": "schedule.knd=1", "path": "schedule.knd"}),
        (["none.yaml"], {"file": "none.yaml"}),
        (["explain", "none.yaml"], {"file": "none.yaml"}),
        (["compare", "scenarios/a100_8x.yaml"], {}),
        (["gpus", "h1oo"], {}),
    ],
)  # fmt: skip
def test_a_problem_is_told_in_parts(run, words, parts, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, err = run(*words, "--json")
    error = json.loads(out)["error"]
    (problem,) = error["problems"]
    assert code == error["exit_code"] == 2 and [error["message"]] == err
    assert {name: value for name, value in problem.items() if name != "message"} == parts
