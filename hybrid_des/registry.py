"""Registries of plug-ins: each file of a package registers its builder under a name; there is no central list.

schedule = Registry("schedule", "hybrid_des.pipeline.schedules")

@schedule("1f1b", summary="…")
def one_forward_one_backward(request): ...

schedule["1f1b"].build
"""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from hybrid_des.errors import HybridDesError, SimulationError, UsageError, unknown

T = TypeVar("T")
Builder = TypeVar("Builder", covariant=True)  # an entry is only read


@dataclass(frozen=True)
class Entry(Generic[Builder]):
    """A registered plug-in: its name, builder, facts about itself, and options class."""

    name: str
    build: Builder
    facts: Mapping[str, Any] = field(default_factory=dict)
    options: type[Any] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of its options."""
        return tuple(self.options.model_fields) if self.options else ()

    def arguments(self, given: BaseModel | Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """The trailing argument of the plug-in's functions: its validated options, or nothing if it declares none.

        Args:
            given: its options, or values by name; names it does not declare are ignored.

        Raises:
            UsageError: a value is invalid or missing.
        """
        kind = self.options
        if kind is None:
            return ()
        if isinstance(given, kind):
            return (given,)
        values = {key: one for key, one in dict(given or {}).items() if key in kind.model_fields and one is not None}
        try:
            return (kind.model_validate(values),)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(map(str, first["loc"]))
            said = "is required" if first["type"] == "missing" else first.get("ctx", {}).get("error", first["msg"])
            raise UsageError(f"{self.name}: {path}: {said}") from None


def completed(noun: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that a plug-in gives about itself, and the defaults of others.

    Raises:
        TypeError: one of them is not known.
    """
    if unknown_ones := given.keys() - defaults.keys():
        raise TypeError(f"{noun}() got an unexpected keyword argument {min(unknown_ones)!r}")
    return {**defaults, **given}


class Registry(Generic[T]):
    """Plug-ins by name; the modules of the package are imported at the first lookup.

    Args:
        noun: what a plug-in is called in messages.
        package: where the built-in ones are.
        returns: the class that their functions must return, if they are checked.
    """

    def __init__(self, noun: str, package: str, returns: type | None = None) -> None:
        self.noun = noun
        self._returns = returns
        self._package = package
        self._entries: dict[str, Entry[T]] = {}
        self._complete = False

    def __call__(self, name: str, options: type[Any] | None = None, **facts: Any) -> Callable[[T], T]:
        """Register the decorated function or class under `name`."""

        def register(build: T) -> T:
            known = self._entries.get(name)
            if known is not None and _home(known.build) != _home(build):
                raise UsageError(f'{self.noun} "{name}" is registered twice: {_home(known.build)} and {_home(build)}')
            self._entries[name] = Entry(name, self._checked(name, build), facts, options)
            return build

        return register

    def _checked(self, name: str, build: Any) -> Any:
        """The function, with a check of what it returns."""
        returns = self._returns
        if returns is None or isinstance(build, type):
            return build

        @wraps(build)
        def checked(*arguments: Any) -> Any:
            built = called(f'{self.noun} "{name}"', build, arguments)
            if not isinstance(built, returns):
                what = "nothing" if built is None else f"an object of type {type(built).__name__}"
                raise UsageError(f'{self.noun} "{name}" returned {what}; expected a {returns.__name__}')
            return built

        return checked

    def __getitem__(self, name: str) -> Entry[T]:
        """Look up a name; the error for an unknown one suggests similar names."""
        if not self._import_namesake(name):
            self._import_siblings()
        if name not in self._entries:
            raise UsageError(unknown(name, self._entries))
        return self._entries[name]

    def names(self) -> list[str]:
        """All names, sorted."""
        self._import_siblings()
        return sorted(self._entries)

    def _import_namesake(self, name: str) -> bool:
        """Import no more than the file that is called as a plug-in; false if there is none that registers it."""
        if self._complete or not name.isidentifier() or name.startswith("_"):
            return False
        if not hasattr(importlib.import_module(self._package), "__path__"):  # all are in one file, which registers them
            return False
        if importlib.util.find_spec(f"{self._package}.{name}") is None:
            return False
        importlib.import_module(f"{self._package}.{name}")
        return name in self._entries

    def _import_siblings(self) -> None:
        if self._complete:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            importlib.import_module(f"{self._package}.{module.name}")
        self._complete = True


class _UserFile(SourceFileLoader):
    """Loads a user's file without writing bytecode next to it."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0) -> None:
        """Write nothing."""


USER_FILE = "hybrid_des_user_"  # begins the names of modules of users' files


def user_line(error: BaseException) -> str:
    """The error with the file and line of the user's code that it passed last; empty if it passed none."""
    modules = [module for name, module in sys.modules.items() if name.startswith(USER_FILE)]
    files = {Path(module.__file__).resolve() for module in modules if module.__file__}
    passed = list[traceback.FrameSummary]()
    cause: BaseException | None = error
    while not passed and cause is not None:  # an error in a simulated process is the cause of a copy
        passed = [one for one in traceback.extract_tb(cause.__traceback__) if Path(one.filename).resolve() in files]
        cause = cause.__cause__
    if not passed:
        return ""
    text = str(error)
    return f"{passed[-1].filename}:{passed[-1].lineno}: {type(error).__name__}{f': {text}' if text else ''}"


def import_file(path: str | Path) -> None:
    """Import a user's Python file so that it can register plug-ins; importing it again has no effect.

    Raises:
        UsageError: the file is missing or raises.
    """
    source = Path(path)
    if not source.is_file():
        raise UsageError(f"{source}: no such file to import")
    name = f"{USER_FILE}{source.resolve().as_posix().replace('/', '_').replace('.', '_')}"
    if name in sys.modules:
        return
    loader = _UserFile(name, str(source)) if source.suffix == ".py" else None
    spec = importlib.util.spec_from_file_location(name, source, loader=loader)
    if spec is None or spec.loader is None:
        raise UsageError(f"{source}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # beside the error to which it leads
            spec.loader.exec_module(module)
    except BaseException as error:  # such as SystemExit
        said = user_line(error)
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt | SimulationError):  # the latter: a budget is spent
            raise
        if isinstance(error, HybridDesError) and said:
            said = f"{said.partition(f': {type(error).__name__}')[0]}: {error}"
        raise UsageError(said or f"{source}: {type(error).__name__}: {error}") from error


OPTIONS_LAST = ", the last of them its options if it is registered with options="


def called(what: str, build: Any, arguments: tuple[Any, ...], hint: str = OPTIONS_LAST) -> Any:
    """What a user's function returns.

    Args:
        what: the function, in the message.
        build: the function.
        arguments: what it is called with.
        hint: what these are.

    Raises:
        UsageError: it takes others.
    """
    try:
        return build(*arguments)
    except TypeError:
        try:
            inspect.signature(build).bind(*arguments)
        except TypeError as error:
            raise UsageError(f"{what}: {error}; it is called with {len(arguments)}{hint}") from None
        raise


def _home(build: Any) -> str:
    return f"{getattr(build, '__module__', '?')}.{getattr(build, '__qualname__', '?')}"
