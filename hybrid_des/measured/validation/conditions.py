"""Conditions on rows, such as `split == "fit" and parallel.tensor in (1, 2)`, in Python syntax."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hybrid_des.errors import UsageError, unknown

Condition = Callable[[Mapping[str, Any]], bool]


_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, many: value in many,
    ast.NotIn: lambda value, many: value not in many,
}


_WORDS = {"true": True, "false": False, "none": None}


def condition(text: str, columns: Iterable[str]) -> Condition:
    """Read a condition; a cell that is missing is None.

    Raises:
        UsageError: it is not a comparison of columns and values, or there is no such column.
    """
    known = sorted(columns)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # such as about 1not
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _wrong(text) from None
    _check(tree, known, text)
    return lambda row: bool(_value_of(tree, row, text))


def _name(node: ast.AST) -> str:
    """A column, which may have dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _name(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _check(node: ast.AST, known: Sequence[str], text: str) -> None:
    name = _name(node)
    if name and name not in known and name not in _WORDS:
        raise UsageError(f"{text}: {unknown(name, known)}")
    for part in () if name else ast.iter_child_nodes(node):
        _check(part, known, text)


def _value_of(node: ast.AST, row: Mapping[str, Any], text: str) -> Any:
    if name := _name(node):
        return _WORDS[name] if name in _WORDS else row.get(name)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [_value_of(part, row, text) for part in node.elts]
    if isinstance(node, ast.BoolOp):
        check = all if isinstance(node.op, ast.And) else any
        return check(_value_of(part, row, text) for part in node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _value_of(node.operand, row, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value_of(node.operand, row, text)
        if not isinstance(value, int | float):
            raise _wrong(text)
        return -value
    if isinstance(node, ast.Compare) and all(type(one) in _COMPARE for one in node.ops):
        values = [_value_of(part, row, text) for part in (node.left, *node.comparators)]
        return all(_compared(op, a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False))
    raise _wrong(text)


def _compared(op: ast.cmpop, value: Any, other: Any) -> bool:
    try:
        return _COMPARE[type(op)](value, other)
    except TypeError:  # a text and a number, or a missing cell, have no order
        return False


def _wrong(text: str) -> UsageError:
    return UsageError(f"""{text}: expected a condition on columns, such as split == "fit" and parallel.tensor > 1""")
