"""The configuration that a function of a recipe, or a script, builds: a mapping, as recipes print themselves."""

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.errors import UsageError, one_line, unknown
from hybrid_des.interchange.recipes.evaluation import Evaluation
from hybrid_des.interchange.recipes.sources import Module, Sources, installed
from hybrid_des.interchange.recipes.values import OWNER, TARGET, Function, Made, Reference, Undecided

_MOST_LISTED = 8
_WHERE = "run this in its environment or checkout, or give the YAML or JSON that the recipe prints"
MOST_PARTS = 200_000  # values of a configuration


class Unfounded(UsageError):
    """A recipe adds to a configuration whose source was not found."""


class Built(NamedTuple):
    """What a recipe builds.

    Attributes:
        values: nested, with `_target_` where a class is named; texts of `Undecided` where a value cannot be told.
        name: the function, or the file of a script.
        not_followed: calls of functions whose source was not found, and that are given an object.
    """

    values: Mapping[str, Any]
    name: str
    not_followed: Sequence[str]


def built_by(file: Path, call: str, is_job: Callable[[Mapping[str, Any]], bool], places: Iterable[Path] = ()) -> Built:
    """The configuration of a job that a Python file builds.

    Args:
        file: a module.
        call: one of its functions, maybe with arguments: `llama3_8b` or `recipe(num_nodes=4)`; empty: what the file
            builds when it is run, else the only function that builds a job.
        is_job: whether a mapping is the configuration of a job.
        places: folders in which modules that it imports are looked for, beside those around it.

    Raises:
        UsageError: it is no Python, has no such function, or several that build a job.
    """
    sources = Sources([file.resolve().parent, *places, *installed()])
    module = sources.file(file)
    if module is None:
        raise UsageError(f"{file}: expected a recipe in Python")
    try:
        return _called(module, call, sources) if call else _only_one(file, module, sources, is_job)
    except RecursionError:
        raise UsageError(f"{file}: its expressions are nested too deeply") from None


def _only_one(file: Path, module: Module, sources: Sources, is_job: Callable[[Mapping[str, Any]], bool]) -> Built:
    """What the file builds when it is run; a file that builds nothing has one function that builds a job."""
    evaluation = Evaluation(sources)
    evaluation.script(module)
    objects = [*{id(one): one for one in evaluation.made}.values()]
    for made in reversed(objects):
        if is_job(values := _plain(made)):
            _refuse_unfounded(made, module)
            return Built(values, file.name, evaluation.not_followed)
    built = [*_jobs_of_functions(module, sources, is_job)]
    if len(built) > 1:
        names = [one.name for one in built]
        listed = ", ".join(names[:_MOST_LISTED]) + (", …" if len(names) > _MOST_LISTED else "")
        raise UsageError(f"{file}: has {len(names)} recipes: {listed}; say which: {file}:{names[0]}")
    if built:
        return built[0]
    for made in reversed(objects):
        if not made.is_of_class and isinstance(_plain(made), dict):
            _refuse_unfounded(made, module)
    raise UsageError(f"{file}: neither a function in it nor the file builds a job's configuration; {_WHERE}")


def function_in(names: Iterable[str], function: str, places: Iterable[Path]) -> Path | None:
    """The file with the function that the first module of some names has by a name; None without one."""
    sources = Sources([*places, *installed()])
    modules = (sources.module(name) for name in names)
    named = (Evaluation(sources).expression(function, module) for module in filter(None, modules))
    return next((one.module.path for one in named if isinstance(one, Function)), None)


def _called(module: Module, call: str, sources: Sources) -> Built:
    """What a function of a module returns."""
    functions = [name for name, one in module.names.items() if isinstance(one, ast.FunctionDef)]
    try:
        expression = ast.parse(call, mode="eval").body
    except (SyntaxError, ValueError):
        raise UsageError(f"{module.path}: {one_line(call)}: expected a function, as in recipe(num_nodes=4)") from None
    evaluation = Evaluation(sources)
    name = ast.unparse(expression.func if isinstance(expression, ast.Call) else expression)
    if not isinstance(evaluation.expression(name, module), Function):
        raise UsageError(f"{module.path}: {unknown(name, functions)}")
    result = evaluation.expression(call if isinstance(expression, ast.Call) else f"{call}()", module)
    values = _plain(result)
    if not isinstance(values, dict):
        raise UsageError(f"{module.path}: {name}: does not return a configuration that can be told from its source")
    _refuse_unfounded(result, module)
    return Built(values, call, evaluation.not_followed)


def _refuse_unfounded(result: Any, module: Module) -> None:
    """Refuse changes to a configuration whose own values are in a package that was not found."""
    if isinstance(result, Made) and not result.is_of_class:
        where = "whose source is not beside it, nor in the active environment"
        raise Unfounded(f"{module.path}: adds to {result[TARGET]}(), {where}; {_WHERE}")


def _jobs_of_functions(
    module: Module, sources: Sources, is_job: Callable[[Mapping[str, Any]], bool]
) -> Iterator[Built]:
    for name, statement in module.names.items():
        if isinstance(statement, ast.FunctionDef) and not name.startswith("_"):
            evaluation = Evaluation(sources)
            result = evaluation.expression(f"{name}()", module)
            values = _plain(result) if isinstance(result, Made) and result.is_of_class else None
            if isinstance(values, dict) and is_job(values):
                yield Built(values, name, evaluation.not_followed)


def _plain(value: Any) -> Any:
    """A value as YAML has it; what a function that is not known returns is undecided, but for what is set of it.

    Raises:
        UsageError: it has too many parts, as an object that holds itself.
    """
    left = itertools.count(MOST_PARTS, -1)

    def plain(value: Any) -> Any:
        if next(left) < 0:
            raise UsageError(f"a recipe builds more than {MOST_PARTS:,} values; expected the configuration of a job")
        if isinstance(value, Made):
            inner = {key: plain(one) for key, one in value.items()}
            own = {key for key in inner if key not in (TARGET, OWNER) and not key.isdigit()}
            return inner if value.is_of_class or own else Undecided(f"{value[TARGET]}()")
        if isinstance(value, Reference | Function):
            return {TARGET: value.name, "_call_": False}
        if isinstance(value, Module):
            return None
        if isinstance(value, dict):
            return {str(key): plain(one) for key, one in value.items()}
        return [*map(plain, value)] if isinstance(value, list | tuple | set | range) else value

    return plain(value)
