"""What variables and parameters of the package are not called."""

import ast

from support.paths import ROOT
from support.sources import SOURCES, nodes_of

VAGUE = {"one", "found", "place"}  # of a comprehension's item they are short; elsewhere a name says what the thing is


def vague(nodes):
    """Each vague name that is bound outside comprehensions, with its line; fields of classes are not variables."""
    items = {id(name) for node in nodes if isinstance(node, ast.comprehension) for name in ast.walk(node.target)}
    fields = {id(node.target) for kind in nodes if isinstance(kind, ast.ClassDef) for node in kind.body
              if isinstance(node, ast.AnnAssign)}  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in items | fields:
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name in VAGUE:
            yield node.lineno, name


def test_variables_outside_comprehensions_say_what_they_are():
    assert len(SOURCES) > 100
    named = {file.relative_to(ROOT).as_posix(): [*vague(nodes_of(file))] for file in SOURCES}
    assert {file: names for file, names in named.items() if names} == {}


def test_vague_names_are_seen_where_they_are_bound():
    tree = ast.parse("def f(place, *found):\n one = [one for one in found]\n for place in one:\n  g = lambda one: one")
    assert sorted(vague(list(ast.walk(tree)))) == [(1, "found"), (1, "place"), (2, "one"), (3, "place"), (4, "one")]
    assert [*vague(list(ast.walk(ast.parse("class C:\n place: int\nx = {place for place in y}"))))] == []
