"""Caches: none keeps what a simulation has made, nor grows with every scenario of a process."""

import ast

from support.paths import PACKAGE

OF_CLASSES = {"_properties", "own_keys"}  # their only argument is a class of the package, or of a user's file


def caches(tree):
    """Functions of modules, and methods, whose results are kept: name, decorator and whether it is a method."""
    for body in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))):
        for function in body.body:
            for decorator in getattr(function, "decorator_list", ()):
                if "cache" in (text := ast.unparse(decorator)) and "cached_property" not in text:
                    yield function, text, isinstance(body, ast.ClassDef)


def test_caches_are_bounded_and_not_on_methods():
    """One on a method kept the communicators of every run, with their mailboxes."""
    kept = [
        f"{file.relative_to(PACKAGE)}: {function.name}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for function, decorator, of_class in caches(ast.parse(file.read_bytes()))
        if function.name not in OF_CLASSES and function.args.args and (of_class or decorator == "cache")
    ]
    assert kept == []
