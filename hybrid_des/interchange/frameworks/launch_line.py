"""A launch line: environment, program, flags; written as shell, read from a line or a script, and rules for both.

A script is not run: every `--flag` in it counts, those of branches that are not taken too. Variables have the value of
their last assignment before the flag, or the default in `${NAME:-default}`; `$((a * b))` is calculated. What SLURM sets
has the values of the `#SBATCH` lines (slurm.schedmd.com/sbatch.html, output environment variables).

A rule is one setting as flags, in both directions: it writes the flags of a scenario's values, which are a mapping from
paths such as "parallel.tensor" to plain values, and reads values from the flags of a launch line. Flags that state the
framework's own default are not written; where they are missing, that default is read.
"""

import ast
import difflib
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line, unknown

TYPING_ERROR = 0.85  # least similarity of a flag and one that is meant: a letter or two of ten
WIDTH = 100  # columns of a written line
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^{}]*))?\}|\$(\w+)")
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_DIRECTIVE = re.compile(r"(?m)^\s*#SBATCH\s+--([\w-]+)(?:=|\s+)(\S+)")
_SLURM = {  # option of sbatch → variables that have its value
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
}  # fmt: skip
DEEPEST = 8  # quoted lines within quoted lines


class Launch(NamedTuple):
    """A command that starts a framework.

    Attributes:
        unsaid: the parts of a scenario that it does not express.
        refused: flags that the framework does not accept together, each with what it expects.
    """

    environment: Mapping[str, str]
    program: str
    flags: Sequence[str]
    unsaid: Sequence[str]
    refused: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The command as shell, with a continuation at the end of each line but the last."""
        lines = [" ".join([*(f"{name}={value}" for name, value in self.environment.items()), self.program])]
        for flag in self.flags:
            if len(lines) > 1 and len(lines[-1]) + len(flag) < WIDTH:
                lines[-1] += f" {flag}"
            else:
                lines.append(f"    {flag}")
        return " \\\n".join(lines)


def torchrun(ranks: int, per_node: int) -> str:
    """What starts a program on each of so many GPUs, on nodes that it fills."""
    used = min(per_node, ranks)
    return f"torchrun --nnodes {-(-ranks // used)} --nproc-per-node {used}"


def flags_in(text: str, name: str) -> dict[str, list[str]]:
    """The flags of a line or script, with dashes in their names, each with the words that follow it.

    Where a flag is repeated, the last one counts.

    Args:
        text: a line of flags, with or without the program, or a shell script.
        name: where it comes from, for errors.

    Raises:
        UsageError: a quotation is not closed.
    """
    flags: dict[str, list[str]] = {}
    words: list[str] = []
    for word in _words(text, name):
        match = _FLAG.fullmatch(word)
        if match is None:
            words.append(word)
            continue
        words = flags[f"--{match[1].replace('_', '-')}"] = []
        if match[2] is not None:
            words.append(match[2])
            words = []  # what follows is no value of it
    return flags


def _words(text: str, name: str) -> Iterator[str]:
    """The words of a script, with values in place of variables."""
    expressions: list[str] = []

    def keep(match: re.Match[str]) -> str:
        expressions.append(match[1])
        return f"${{__expression{len(expressions) - 1}}}"

    text = re.sub(r"(?m)^(\s*#SBATCH\s+)-N[\s=]*", r"\1--nodes=", text)
    text = re.sub(r"(?m)^\s*#(?!SBATCH).*$|\s#(?!SBATCH) .*$", "", text.replace("\\\r\n", " ").replace("\\\n", " "))
    variables = {one: value for option, value in _DIRECTIVE.findall(text) for one in _SLURM.get(option, ())}
    yield from _expanded(_ARITHMETIC.sub(keep, text), name, variables, expressions, 0)


def _expanded(text: str, name: str, variables: dict[str, str], expressions: list[str], depth: int) -> Iterator[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>&")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        raise UsageError(f"{name}: a quotation is not closed; expected a launch line or a shell script") from None
    for word in words:
        assigned = _ASSIGNMENT.fullmatch(word)
        whole = _with_values(assigned[2] if assigned else word, variables, expressions)
        if assigned:
            variables[assigned[1]] = whole
        if re.search(r"\s", whole.strip()) and "--" in whole and depth < DEEPEST:
            yield from _expanded(whole, name, variables, expressions, depth + 1)
        elif not assigned:
            yield whole


def _with_values(text: str, variables: Mapping[str, str], expressions: Sequence[str]) -> str:
    """A text with the values of its variables; those without one stay."""

    def value(match: re.Match[str]) -> str:
        key = match[1] or match[3]
        if key.startswith("__expression"):
            return _calculated(_with_values(expressions[int(key[12:])], variables, expressions), variables, match[0])
        return variables.get(key, match[2] if match[2] is not None else match[0])

    return _VARIABLE.sub(value, text)


def _calculated(text: str, variables: Mapping[str, str], otherwise: str) -> str:
    """The value of integer arithmetic, in which variables need no dollar."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id in variables:
            return int(variables[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            result: int = _OPERATORS[type(node.op)](value(node.left), value(node.right))
            return result
        raise ValueError

    try:
        return str(value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return otherwise


class Given:
    """The flags of a launch line, of which those that were read are remembered."""

    def __init__(self, flags: Mapping[str, Sequence[str]], name: str) -> None:
        self.name = name
        self.flags = flags
        self._read: set[str] = set()

    def __contains__(self, flag: str) -> bool:
        self._read.add(flag)
        return flag in self.flags

    def words(self, flag: str) -> Sequence[str]:
        """The words that follow a flag."""
        return self.flags[flag] if flag in self else ()

    def text(self, flag: str) -> str | None:
        """The word that follows a flag; None without the flag.

        Raises:
            UsageError: there is none, or it is a variable that the script does not set.
        """
        if flag not in self:
            return None
        word = next(iter(self.flags[flag]), "")
        if not word:
            raise self.error(flag, "has no value")
        if word.startswith("$"):
            shown = one_line(word, LONGEST_SHOWN)
            raise self.error(flag, f"{shown} has no value in the script; write it there, or give the line of flags")
        return word

    def number(self, *flags: str) -> int | None:
        """The whole number after the first of these flags that is given; None without any.

        Raises:
            UsageError: it is no number from 1.
        """
        given = [flag for flag in flags if flag in self]  # reads the others too, which say the same
        for flag in given[:1]:
            word = self.text(flag)
            if word is not None:
                if not re.fullmatch(r"[0-9]{1,15}", word) or not int(word):
                    raise self.error(flag, f'expected a whole number, found "{one_line(word, LONGEST_SHOWN)}"')
                return int(word)
        return None

    def error(self, flag: str, message: str) -> UsageError:
        """An error at a flag."""
        return UsageError(f"{self.name}: {flag}: {message}")

    @property
    def unread(self) -> list[str]:
        """The flags that nothing has read, with their first words."""
        rest = {flag: words for flag, words in self.flags.items() if flag not in self._read}
        return [one_line(" ".join([flag, *words[:1]]), LONGEST_SHOWN) for flag, words in rest.items()]

    def meant(self, flag: str) -> str:
        """A hint at the flag that may be meant by one that nothing has read; empty if none is similar."""
        near = difflib.get_close_matches(flag, self._read - self.flags.keys(), n=1, cutoff=TYPING_ERROR)
        return f"; did you mean {near[0]}?" if near else ""


Values = Mapping[str, Any]


class Rule(NamedTuple):
    """How a setting is written as flags, and how it is read from them."""

    write: Callable[[Values], Iterable[str]]
    read: Callable[[Given], Values]

    def when(self, holds: Callable[[Values], bool]) -> "Rule":
        """The same, written only where something holds."""
        return Rule(lambda values: self.write(values) if holds(values) else (), self.read)


def number(flag: str, path: str, default: int | None = None) -> Rule:
    """A whole number after a flag."""

    def write(values: Values) -> Iterable[str]:
        value = values.get(path)
        return () if value is None or value == default else (f"{flag} {value}",)

    def read(given: Given) -> Values:
        value = given.number(flag)
        return {path: default if value is None else value}

    return Rule(write, read)


def word(flag: str, path: str, words: Mapping[str, Any], default: Any) -> Rule:
    """A word after a flag; of several with one meaning, the first is written."""

    def write(values: Values) -> Iterable[str]:
        value = values.get(path)
        written = next((text for text, meaning in words.items() if meaning == value), None)
        return () if written is None or value == default else (f"{flag} {written}",)

    def read(given: Given) -> Values:
        text = given.text(flag)
        if text is not None and text not in words:
            raise given.error(flag, unknown(text, words))
        return {path: default if text is None else words[text]}

    return Rule(write, read)


def switch(flag: str, path: str, on: Any, off: Any) -> Rule:
    """A flag without a value."""

    def write(values: Values) -> Iterable[str]:
        return (flag,) if values.get(path) == on else ()

    def read(given: Given) -> Values:
        return {path: on if flag in given else off}

    return Rule(write, read)
