"""The tests themselves: their names, and what only some of them may use."""

import ast

import pytest
from support.paths import TESTS

FILES = {file.relative_to(TESTS).as_posix(): file for file in sorted(TESTS.rglob("*.py"))}
TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in FILES.items()}
PROCESSES = {"subprocess", "multiprocessing"}
CLOCKS = {"time", "timeit"}


def imported(tree):
    """Top-level packages that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def test_the_name_of_a_test_is_at_most_ten_words():
    names = {
        (file, node.name)
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert names
    assert sorted(name for name in names if len(name[1].split("_")) > 11) == []


@pytest.mark.parametrize("file", [name for name in FILES if not name.startswith("benchmarks/")])
def test_only_benchmarks_read_a_clock(file):
    assert not CLOCKS & set(imported(TREES[file]))


@pytest.mark.parametrize(
    "file", [name for name in FILES if name.split("/")[0] not in ("system", "support", "benchmarks")]
)
def test_only_system_tests_start_processes(file):
    assert not PROCESSES & set(imported(TREES[file]))
