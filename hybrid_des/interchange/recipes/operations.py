"""Operators, built-in functions and methods of plain values, within limits of size."""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hybrid_des.interchange.recipes.values import Function, Made, Reference, Undecided, truth, undecided_among

LARGEST = 10_000  # elements of a list, characters of a text
LARGEST_NUMBER = 2**128
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitOr: operator.or_,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda item, all_of: item in all_of, ast.NotIn: lambda item, all_of: item not in all_of,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": int, "float": float, "bool": bool, "len": len, "list": list, "tuple": tuple, "dict": dict,
    "min": min, "max": max, "round": round, "abs": abs, "sum": sum, "sorted": sorted, "range": range, "set": set,
}  # fmt: skip
_CLASSES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict, "tuple": tuple}
_METHODS = {
    str: {"lower", "upper", "strip", "replace", "startswith", "endswith", "split", "removeprefix", "removesuffix"},
    list: {"append", "extend", "copy", "insert"},
    dict: {"get", "update", "copy", "keys", "values", "items", "setdefault"},
}
_UNKNOWN: Any = ...


def binary(kind: ast.operator, left: Any, right: Any, shown: str) -> Any:
    """Two values with an operator between them."""
    apply = _BINARY.get(type(kind))
    if apply is None or not _is_small(kind, left, right):
        return Undecided(shown)
    return calculated(apply, (left, right), shown)


def compared(kind: ast.cmpop, left: Any, right: Any, shown: str) -> Any:
    """Whether two values compare; objects are equal to themselves only, and never None."""
    if isinstance(kind, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and None in (left, right):
        other = right if left is None else left
        if isinstance(other, Function) or (isinstance(other, Made) and other.is_of_class):
            return isinstance(kind, ast.IsNot | ast.NotEq)
    return calculated(_COMPARED[type(kind)], (left, right), shown)


def calculated(apply: Callable[..., Any], values: Sequence[Any], shown: str) -> Any:
    """What a function gives for values; undecided where one of them is, or where it fails."""
    unknown = undecided_among(values)
    if unknown is not None:
        return unknown
    try:
        return apply(*values)
    except Exception:  # whatever a recipe would raise here, it has no value
        return Undecided(shown)


def built_in(name: str, args: Sequence[Any], named: Mapping[str, Any], shown: str) -> Any:
    """The result of a built-in function; `...` where this is none of those that are known."""
    if name == "dict" and not args:
        return dict(named)
    if name == "str" and len(args) == 1 and not isinstance(args[0], Undecided | Reference | Made | Function):
        return str(args[0])
    if name in _FUNCTIONS and all(not isinstance(one, range) or len(one) <= LARGEST for one in args):
        return calculated(_FUNCTIONS[name], args, shown)
    if name == "isinstance" and len(args) == 2:
        return _is_instance(args[0], args[1], shown)
    if name in ("getattr", "hasattr") and len(args) >= 2:
        return attribute(args[0], args[1], shown) if name == "getattr" else _has(args[0], args[1], shown)
    if name == "typing.cast":
        return args[-1]
    if name in ("copy.deepcopy", "copy.copy", "dataclasses.replace") and len(args) == 1:
        same = copied(args[0])
        return Made({**same, **named}) if isinstance(same, Made) else same
    return _UNKNOWN


def method(receiver: Any, name: str, args: Sequence[Any], shown: str) -> Any:
    """The result of a method of a text, list or mapping; `...` where it is none of those that are known."""
    known = next((names for kind, names in _METHODS.items() if type(receiver) is kind), set[str]())
    if name not in known:
        return _UNKNOWN
    if len(receiver) > LARGEST or any(isinstance(one, str | list | tuple) and len(one) > LARGEST for one in args):
        return Undecided(shown)
    if isinstance(receiver, list | dict):  # which may hold what is not known
        try:
            return getattr(receiver, name)(*args)
        except Exception:  # as above
            return Undecided(shown)
    return calculated(getattr(receiver, name), args, shown)


def put(receiver: Any, key: Any, value: Any) -> None:
    """Give an element of a list or mapping its value, where it has such a place."""
    is_place = isinstance(receiver, list) and isinstance(key, int) and -len(receiver) <= key < len(receiver)
    if is_place or (isinstance(receiver, dict) and isinstance(key, str | int)):
        receiver[key] = value


def attribute(value: Any, name: Any, shown: str) -> Any:
    """An attribute of an object, if it was stated."""
    if isinstance(value, Made) and name in value:
        return value[name]
    return Reference(f"{value.name}.{name}") if isinstance(value, Reference) else Undecided(shown)


def _has(value: Any, name: Any, shown: str) -> Any:
    return True if isinstance(value, Made) and name in value else Undecided(shown)


def _is_instance(value: Any, kinds: Any, shown: str) -> Any:
    if isinstance(value, Undecided | Reference | Made):
        return Undecided(shown)
    names = [one.name for one in (kinds if isinstance(kinds, tuple) else (kinds,)) if isinstance(one, Reference)]
    return any(isinstance(value, _CLASSES[name]) for name in names if name in _CLASSES)


def _is_small(kind: ast.operator, left: Any, right: Any) -> bool:
    """Whether a product or a power does not grow without limit."""
    if isinstance(kind, ast.Mod) and isinstance(left, str):  # which may ask for any width
        return False
    if isinstance(kind, ast.Pow):
        return all(isinstance(one, int | float) and abs(one) < 2**16 for one in (left, right)) and bool(right <= 64)
    sizes = [len(one) if isinstance(one, str | list | tuple) else one for one in (left, right)]
    if isinstance(kind, ast.Mult | ast.Add) and all(isinstance(one, int) for one in sizes):
        has_text = any(isinstance(one, str | list | tuple) for one in (left, right))
        size = sum(sizes) if isinstance(kind, ast.Add) and has_text else sizes[0] * sizes[1]
        return bool(abs(size) <= (LARGEST if has_text else LARGEST_NUMBER))
    return True


def all_or_any(kind: ast.boolop, values: Sequence[Any]) -> Any:
    """Values with `and` or `or` between them, as Python has it: the value that decides."""
    ends_at = isinstance(kind, ast.Or)
    unknown: Undecided | None = None
    for value in values:
        holds = truth(value)
        if isinstance(holds, Undecided):
            unknown = unknown or holds
        elif holds is ends_at and (unknown is None or not ends_at):
            return value if unknown is None else False
    return unknown if unknown is not None else values[-1]


def limited(value: Any, shown: str) -> Any:
    """A text or a list, unless it has grown too large."""
    return value if isinstance(value, Undecided) or len(value) <= LARGEST else Undecided(shown)


def copied(value: Any) -> Any:
    """A value of its own, down to what it holds."""
    if isinstance(value, Made):
        return Made({key: copied(one) for key, one in value.items()})
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value
