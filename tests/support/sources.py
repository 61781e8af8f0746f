"""The package's files, each read and parsed once for all tests of the house."""

import ast
import gc
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from support.paths import PACKAGE

SOURCES = sorted(PACKAGE.rglob("*.py"))


@cache
def text_of(file: Path) -> str:
    """What a file says."""
    return file.read_text(encoding="utf-8")


def tree_of(file: Path) -> ast.Module:
    """Its syntax tree."""
    return _trees()[file]


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    """All nodes of its syntax tree."""
    return list(ast.walk(tree_of(file)))


def parsed(files: Iterable[Path]) -> dict[Path, ast.Module]:
    """Syntax trees of many files: to look for garbage meanwhile takes longer than to parse."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return {file: ast.parse(text_of(file)) for file in files}
    finally:
        if enabled:
            gc.enable()


@cache
def _trees() -> dict[Path, ast.Module]:
    return parsed(SOURCES)
