"""The tests themselves: their names, and what only some of them may use."""

import ast
from functools import cache

from support.paths import TESTS
from support.sources import parsed
from support.statements import statements

FILES = {file.relative_to(TESTS).as_posix(): file for file in sorted(TESTS.rglob("*.py"))}
PROCESSES = {"subprocess", "multiprocessing"}
CLOCKS = {"time", "timeit"}


@cache
def contents():
    """What each file imports at any depth, by top-level package, and its tests."""
    trees = parsed(FILES.values())
    return {name: _read(trees[file]) for name, file in FILES.items()}


def _read(tree):
    packages, tests = set(), set()
    for node in statements(tree.body):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if {alias.name for alias in node.names} != {"sleep"}:  # reads no clock
                packages.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            tests.add(node.name)
    return packages, tests


def importing(packages, *, but):
    """Files that import one of some packages, except those in folders that may."""
    return [name for name, (used, _) in contents().items() if used & packages and name.split("/")[0] not in but]


def test_the_name_of_a_test_is_at_most_ten_words():
    names = [(file, name) for file, (_, tests) in contents().items() for name in tests]
    assert len(names) > 1000
    assert [name for name in names if len(name[1].split("_")) > 11] == []


def test_files_of_tests_stay_short():
    lines = {name: file.read_bytes().count(b"\n") for name, file in FILES.items()}
    assert {name: count for name, count in lines.items() if count > 500} == {}


def test_only_benchmarks_read_a_clock():
    assert importing(CLOCKS, but=()) != []
    assert importing(CLOCKS, but=("benchmarks",)) == []


def test_only_system_tests_start_processes():
    assert importing(PROCESSES, but=()) != []
    assert importing(PROCESSES, but=("system", "support", "benchmarks")) == []
