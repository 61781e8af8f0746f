"""Caches: none keeps what a simulation has made, nor grows with every scenario of a process."""

import ast

from support.paths import PACKAGE
from support.sources import SOURCES, nodes_of, tree_of

OF_CLASSES = {"_properties", "own_keys", "_paths"}  # their only argument is a class of the package, or of a user's file


def caches(file):
    """Functions of modules, and methods, whose results are kept: name, decorator and whether it is a method."""
    for body in (tree_of(file), *(node for node in nodes_of(file) if isinstance(node, ast.ClassDef))):
        for function in body.body:
            for decorator in getattr(function, "decorator_list", ()):
                if "cache" in (text := ast.unparse(decorator)) and "cached_property" not in text:
                    yield function, text, isinstance(body, ast.ClassDef)


def test_caches_are_bounded_and_not_on_methods():
    """One on a method kept the communicators of every run, with their mailboxes."""
    kept = [
        f"{file.relative_to(PACKAGE)}: {function.name}"
        for file in SOURCES
        for function, decorator, of_class in caches(file)
        if function.name not in OF_CLASSES and function.args.args and (of_class or decorator == "cache")
    ]
    assert kept == []
