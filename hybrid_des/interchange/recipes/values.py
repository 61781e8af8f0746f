"""What an expression of a recipe is worth.

Numbers, texts, lists and the like are themselves. An object is the call that makes it, with its arguments by name:
`Trainer.Config(steps=10)` is `Made({"_target_": "Trainer.Config", "steps": 10})`, as recipes print themselves.
"""

import ast
from typing import Any, NamedTuple

TARGET = "_target_"  # key of what is called
OWNER = "_self_"  # key of the object whose method is called


class Undecided(str):
    """A value that cannot be told from the source; its text is the expression that it depends on, and where that is."""

    __slots__ = ()


class Made(dict[str, Any]):
    """An object, as the call that makes it; what is assigned to it afterwards counts as an argument."""

    @property
    def is_of_class(self) -> bool:
        """Whether a class was called, by the capitals in its name, and not a function that may return anything."""
        return "_partial_" in self or any(part[:1].isupper() for part in self[TARGET].split("."))


class Reference(NamedTuple):
    """Something by its name, in a module that was not found or that is not looked into."""

    name: str


class Function(NamedTuple):
    """A function, or a class, of a module that was found."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    module: Any

    @property
    def name(self) -> str:
        """As it is defined."""
        return getattr(self.node, "name", "lambda")


def truth(value: Any) -> bool | Undecided:
    """Whether a condition holds."""
    if isinstance(value, Undecided):
        return value
    if isinstance(value, Reference):
        return Undecided(value.name)
    if isinstance(value, Made):
        return True if value.is_of_class else Undecided(f"{value[TARGET]}()")
    return bool(value)


def undecided_among(values: Any) -> Undecided | None:
    """The first of some values that cannot be told; None without one."""
    decided = (value if isinstance(value, Undecided) else _result_of_call(value) for value in values)
    return next((value for value in decided if value is not None), None)


def _result_of_call(value: Any) -> Undecided | None:
    """The result of a function that is not known, or a name of a module that is not: neither can be calculated with."""
    if isinstance(value, Reference):
        return Undecided(value.name)
    return Undecided(f"{value[TARGET]}()") if isinstance(value, Made) and not value.is_of_class else None
