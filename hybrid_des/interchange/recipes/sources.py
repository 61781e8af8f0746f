"""Modules of Python as syntax trees, looked for in folders by the names under which they are imported."""

import ast
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

LARGEST = 4 * 2**20  # bytes of a module
_LIBRARIES = ("torch", "numpy", "transformers", "lightning", "datasets")  # they build no job
_ABOVE = 8  # folders above a file in which packages are looked for


class Module:
    """A module that was found.

    Attributes:
        path: its file.
        tree: its statements.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))

    @cached_property
    def names(self) -> Mapping[str, ast.stmt]:
        """What its statements bind, each with the last statement that does."""
        return {name: statement for statement in _flat(self.tree.body) for name in _bound(statement)}

    @cached_property
    def stars(self) -> Sequence[ast.ImportFrom]:
        """Its imports of all names of another module."""
        imports = [one for one in _flat(self.tree.body) if isinstance(one, ast.ImportFrom)]
        return [one for one in imports if one.names[0].name == "*"]

    @property
    def folder(self) -> Path:
        """The folder of the package in which it is."""
        return self.path.parent


class Sources:
    """Modules by name, in the folders of a file and those above, and in some more."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._places = [*dict.fromkeys(place for given in places for place in (given, *[*given.parents][:_ABOVE]))]
        self._modules: dict[Path, Module | None] = {}

    def file(self, path: Path) -> Module | None:
        """The module of a file; None if it is no Python."""
        path = path.resolve()
        if path not in self._modules:
            try:
                readable = path.stat().st_size <= LARGEST
                self._modules[path] = Module(path) if readable else None
            except (OSError, SyntaxError, ValueError, RecursionError):
                self._modules[path] = None
        return self._modules[path]

    def module(self, name: str) -> Module | None:
        """The module of a full name; None if no folder has it, or if it is of a library that is not looked into."""
        if name.partition(".")[0] in _LIBRARIES:
            return None
        folders = (place / inner for place in self._places for inner in ("", "src"))
        return next(filter(None, (self._within(folder, name) for folder in folders)), None)

    def relative(self, module: Module, level: int, name: str) -> Module | None:
        """What a module imports from `level` dots and a name."""
        above = [module.folder, *module.folder.parents]
        return self._within(above[level - 1], name) if level <= len(above) else None

    def _within(self, folder: Path, name: str) -> Module | None:
        path = folder.joinpath(*name.split(".")) if name else folder
        files = (path / "__init__.py", path.with_name(f"{path.name}.py")) if name else (path / "__init__.py",)
        return next((self.file(file) for file in files if file.is_file()), None)


def installed() -> list[Path]:
    """The folders of packages of the active environment, and of the running Python."""
    roots = [Path(root) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if (root := os.environ.get(name))]
    of_roots = [folder for root in roots for folder in root.glob("lib/python3*/site-packages")]
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [Path(place) for place in sys.path if place.endswith("-packages")]  # not the standard library
    return [*(Path(place).resolve() for place in listed if place), *of_roots, *own]


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those inside of `try` too; of conditional ones, those that bind something by its name."""
    for statement in statements:
        if isinstance(statement, ast.Try):
            handled = [one for handler in statement.handlers for one in handler.body]  # below what is tried
            yield from _flat([*handled, *statement.orelse, *statement.body])
        elif isinstance(statement, ast.If):
            inner = _flat([*statement.orelse, *statement.body])
            yield from (one for one in inner if not isinstance(one, ast.Assign | ast.AnnAssign))
        else:
            yield statement


def _bound(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
