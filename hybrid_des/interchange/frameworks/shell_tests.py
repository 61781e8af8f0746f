"""Conditions of a shell script, decided from their words: `test`, `[ … ]` and `[[ … ]]`; None where that needs more.

Operators: pubs.opengroup.org/onlinepubs/9799919799 (test), with `==`, `&&`, `||` and patterns of bash. Files, and words
in which a dollar is left, are not known.
"""

import fnmatch
import re
from collections.abc import Callable, Sequence

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right, "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right, "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right, "-ge": lambda left, right: left >= right,
}  # fmt: skip


def decided(words: Sequence[str]) -> bool | None:
    """Whether a condition holds; None where its words do not say.

    Args:
        words: what stands between the brackets, with values in place of variables.
    """
    for operators, ends in ((("||", "-o"), True), (("&&", "-a"), False)):
        for at in range(len(words) - 1, 0, -1):
            if words[at] in operators:
                sides = decided(words[:at]), decided(words[at + 1 :])
                if ends in sides:
                    return ends
                return None if None in sides else not ends
    if words and words[0] == "!":
        held = decided(words[1:])
        return None if held is None else not held
    if len(words) > 1 and words[0] == "(" and words[-1] == ")":
        return decided(words[1:-1])
    return _single(words)


def _single(words: Sequence[str]) -> bool | None:
    if any("$" in word for word in words):
        return None
    if len(words) == 3:
        return _compared(*words)
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[0] == "-z") == (not words[1])
    if len(words) == 1:
        return bool(words[0])
    return None


def _compared(first: str, how: str, second: str) -> bool | None:
    if how in ("=", "=="):
        return fnmatch.fnmatchcase(first, second)
    if how == "!=":
        return not fnmatch.fnmatchcase(first, second)
    if how == "=~":
        try:
            return re.search(second, first) is not None
        except re.error:
            return None
    if how in ("<", ">"):
        return first < second if how == "<" else first > second
    if how in _NUMBERS and all(re.fullmatch(r"-?\d{1,15}", word) for word in (first, second)):
        return _NUMBERS[how](int(first), int(second))
    return None
