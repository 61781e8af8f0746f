"""Variables of a shell script, and words with their values in place.

Nothing is run: `$(…)` stays as it is written, in short, except for the script's own folder. A value in which a dollar
is left is unknown.
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

Value = str | list[str] | dict[str, str]
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"(!?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_CHANGED_TO = re.compile(r"cd\s+(?:-P\s+|--\s+)*(.+?)(?:\s*&?>\s*/dev/null)?(?:\s*2>&1)?\s*(?:&&|;)\s*pwd(?:\s+-P)?")
_PATH = re.compile(r"(dirname|realpath|readlink)\s+(?:-\w+\s+|--\s+)*(\S.*)")
_PART = re.compile(r":\s*(\d{1,4})(?::\s*(\d{1,4}))?")
BY_PATH = re.compile(r"\+{0,2}([a-z]\w*|[A-Za-z_]\w*(?:\.[\w@-]+)+)=(.*)", re.DOTALL)
_LARGEST = 2**63
DEEPEST = 16  # expansions within expansions


def shown(text: str) -> str:
    """A text that is not expanded, without white space: `$(nvidia-smi…)`."""
    words = text.split()
    return text if len(words) < 2 else f"{words[0]}…{text[-1]}"


class Piece(NamedTuple):
    """A part of a word: its text, and whether white space in it divides words."""

    text: str
    divides: bool = False
    ends: bool = False  # whether the next element of an array begins a word of its own


class Variables:
    """The values that a script has given to its variables so far, and what it has asked for."""

    def __init__(
        self, name: str, values: dict[str, Value] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.values: dict[str, Value] = values if values is not None else {}
        self._environment = environment or {}
        self.borrowed: dict[str, str] = {}  # of the environment, what was asked for
        self.positional: list[str] | None = None
        self.used: set[str] = set()  # variables asked for
        self.unset: set[str] = set()  # of these, those without a value

    def find(self, name: str) -> Value | None:
        """The value of a variable; None without one."""
        self.used.add(name)
        value: Value | None = self.values.get(name)
        if self.positional is not None and name in ("@", "*"):
            value = list(self.positional)
        elif name == "#":
            value = str(len(self.positional or ()))
        elif name.isdigit():
            at = int(name) - 1
            value = self.name if at < 0 else None
            if at >= 0 and self.positional is not None and at < len(self.positional):
                value = self.positional[at]
        elif name == "BASH_SOURCE":
            value = [self.name]
        elif value is None and name in self._environment:
            value = self.borrowed[name] = self._environment[name]
        if value is None:
            self.unset.add(name)
        return value

    def unset_one(self, word: str) -> None:
        """Take the value from a variable, or one element out of an array."""
        name, bracket, index = word.rstrip("]").partition("[")
        value = self.values.get(name)
        if bracket and isinstance(value, list):
            self.values[name] = [one for at, one in enumerate(value) if str(at) != index]
        elif bracket and isinstance(value, dict):
            self.values[name] = {key: one for key, one in value.items() if key != index}
        else:
            self.values.pop(name, None)

    def words(self, raw: str, *, split: bool = True) -> list[str]:
        """The words that a word becomes."""
        words: list[str] = []
        current: str | None = None
        for piece in self._pieces(raw, 0):
            if piece.divides and split:
                before, *inner = _split(piece.text)
                current = (current or "") + before if before or current is not None else None
                for word in inner:
                    if current is not None:
                        words.append(current)
                    current = word if word else None
            elif piece.text or not piece.divides:
                current = (current or "") + piece.text
            if piece.ends and current is not None:
                words.append(current)
                current = None
        return words if current is None else [*words, current]

    def text(self, raw: str) -> str:
        """A word as one text, as in an assignment."""
        return " ".join(self.words(raw, split=False))

    def items(self, words: Sequence[str]) -> Value:
        """The elements of an array; by key where they are written `[key]=value`."""
        keyed = [re.fullmatch(r"\[([^\]]*)\]=(.*)", word, re.DOTALL) for word in words]
        if words and all(keyed):
            return {self.text(match[1]): self.text(match[2]) for match in keyed if match}
        return [word for one in words for word in self.words(one)]

    def _pieces(self, raw: str, depth: int, *, quoted: bool = False) -> Iterator[Piece]:
        at = 0
        while at < len(raw):
            character = raw[at]
            if character == "\\" and at + 1 < len(raw):
                kept = quoted and raw[at + 1] not in '$`"\\\n'
                yield Piece(f"\\{raw[at + 1]}" if kept else raw[at + 1].strip("\n"))
                at += 2
            elif character == "'" and not quoted:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                yield Piece(raw[at + 1 : end])
                at = end + 1
            elif character == '"' and not quoted:
                end = _closing(raw, at)
                yield Piece("")
                yield from self._pieces(raw[at + 1 : end], depth, quoted=True)
                at = end + 1
            elif character in "$`":
                end, pieces = self._dollar(raw, at, depth, quoted=quoted)
                yield from pieces
                at = end
            else:
                yield Piece(character)
                at += 1

    def _dollar(self, raw: str, at: int, depth: int, *, quoted: bool) -> tuple[int, list[Piece]]:
        """The end of what begins with a dollar or backquote, and its value."""
        rest = raw[at:]
        if depth > DEEPEST:
            return len(raw), [Piece(shown(rest))]
        if rest[0] == "`":
            end = raw.find("`", at + 1)
            end = len(raw) if end < 0 else end + 1
            return end, [Piece(self._command(raw[at + 1 : end - 1], f"$({raw[at + 1 : end - 1]})"))]
        if rest.startswith("$((") and (end := _balanced(raw, at + 1)) and raw[end - 1 : end + 1] == "))":
            inner = self.text_of(raw[at + 3 : end - 1], depth + 1)
            return end + 1, [Piece(self.calculated(inner, f"$(({inner}))".replace(" ", "")))]
        if rest.startswith("$'") and not quoted and (end := raw.find("'", at + 2)) > 0:
            return end + 1, [Piece(raw[at + 2 : end])]
        if rest.startswith("$[") and (end := raw.find("]", at)) > 0:
            inner = self.text_of(raw[at + 2 : end], depth + 1)
            return end + 1, [Piece(self.calculated(inner, f"$[{inner}]".replace(" ", "")))]
        if rest.startswith("$("):
            end = _balanced(raw, at + 1) or len(raw) - 1
            return end + 1, [Piece(self._command(raw[at + 2 : end], raw[at : end + 1]))]
        if rest.startswith("${"):
            end = _balanced(raw, at + 1) or len(raw) - 1
            return end + 1, self._parameter(raw[at + 2 : end], depth + 1, quoted=quoted)
        if match := re.match(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])", rest):
            return at + match.end(), self._parameter(match[1], depth + 1, quoted=quoted)
        return at + 1, [Piece("$")]

    def text_of(self, raw: str, depth: int = 0) -> str:
        """A text with values, quotes kept as they are."""
        return "".join(piece.text for piece in self._pieces(raw, depth, quoted=True))

    def _command(self, text: str, whole: str) -> str:
        """What a command would print, where that is a folder, a path or a number."""
        stripped = text.strip()
        value = "$"
        if match := _CHANGED_TO.fullmatch(stripped):
            value = self.text(match[1])
        elif (match := _PATH.fullmatch(stripped)) and "|" not in stripped:
            value = self.text(match[2])
            value = _folder(value) if match[1] == "dirname" else value
        elif match := re.fullmatch(r"expr\s+(.*)", stripped, re.DOTALL):
            value = self.calculated(self.text(match[1]), "$")
        return shown(whole) if "$" in value or not value else value

    def _parameter(self, body: str, depth: int, *, quoted: bool) -> list[Piece]:
        """The value of `${…}`; the text itself where it has none."""
        whole = re.fullmatch(r"[A-Za-z_]\w*|\d|[@*#?$!-]", body)  # $13 is $1 and a 3
        asis = [Piece(shown(f"${body}" if whole else f"${{{body}}}"))]
        if body.startswith("#") and (match := re.fullmatch(r"#(\w+)(\[[@*]\])?", body)):
            value = self.find(match[1])
            return asis if value is None else [Piece(str(len(value)))]
        match = _PARAMETER.fullmatch(body)
        if match is None:
            return asis
        indirect, name, index, rest = match.groups()
        if indirect and isinstance(named := self.find(name), str) and _NAME.fullmatch(named):
            name = named
        value = self._indexed(name, index)
        if rest and (chosen := self._otherwise(name, value, rest, depth, quoted=quoted)) is not None:
            return chosen
        if value is None:
            return asis
        if isinstance(value, str):
            return [Piece(_changed(value, self.text_of(rest, depth)) if rest else value, divides=not quoted)]
        value = self._each(name, value, rest, depth)
        if not value:
            return [Piece("", divides=True)]
        *most, last = value
        return [*(Piece(one, ends=True) for one in most), Piece(last)]

    def _each(self, name: str, value: list[str], rest: str, depth: int) -> list[str]:
        """The elements after `${X[@]:1:2}`, which chooses some of them, or after what changes each."""
        if not rest:
            return value
        changes = self.text_of(rest, depth)
        match = _PART.fullmatch(changes)
        if match is None:
            return [_changed(one, changes) for one in value]
        start = int(match[1]) - (name in ("@", "*"))  # arguments are counted from 1
        return value[max(0, start) :][: int(match[2]) if match[2] else None]

    def _indexed(self, name: str, index: str | None) -> str | list[str] | None:
        value = self.find(name)
        if isinstance(value, dict):
            return [*value.values()] if index in ("@", "*") else value.get(self.text(index or "0"))
        if isinstance(value, list):
            if index in ("@", "*") or name in ("@", "*"):
                return value
            at = self.calculated(self.text(index or "0"), "")
            return value[int(at)] if re.fullmatch(r"-?\d{1,6}", at) and -len(value) <= int(at) < len(value) else None
        return value

    def _otherwise(
        self, name: str, value: str | list[str] | None, rest: str, depth: int, *, quoted: bool
    ) -> list[Piece] | None:
        """What `:-`, `:=` (which sets the variable too), `:+` and `:?` give; None where they leave the value."""
        match = re.match(r":?([-=+?])", rest)
        if match is None:
            return None
        lacks = value is None or (rest[0] == ":" and not value)
        if match[1] == "+":
            return [Piece("", divides=True)] if lacks else [*self._pieces(rest[match.end() :], depth, quoted=quoted)]
        if not lacks:
            return [Piece(value, divides=not quoted)] if isinstance(value, str) else None
        if match[1] == "?":
            return None
        pieces = [*self._pieces(rest[match.end() :], depth, quoted=quoted)]
        if match[1] == "=":
            self.values[name] = "".join(piece.text for piece in pieces)
        return pieces or [Piece("", divides=True)]

    def calculated(self, text: str, otherwise: str) -> str:
        """The value of integer arithmetic, in which variables need no dollar."""

        def value(node: ast.expr) -> int:
            if isinstance(node, ast.Constant) and isinstance(node.value, int):
                return node.value
            if isinstance(node, ast.Name) and isinstance(known := self.find(node.id), str):
                return int(known)
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
                return -value(node.operand)
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
                return int(_COMPARISONS[type(node.ops[0])](value(node.left), value(node.comparators[0])))
            if isinstance(node, ast.BoolOp):
                found_all = [bool(value(one)) for one in node.values]
                return int(all(found_all) if isinstance(node.op, ast.And) else any(found_all))
            if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
                result = _OPERATORS[type(node.op)](value(node.left), value(node.right))
                if abs(result) < _LARGEST:
                    return result
            raise ValueError

        python = text.replace("&&", " and ").replace("||", " or ").strip()
        try:
            return str(value(ast.parse(python, mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return otherwise


def _split(text: str) -> list[str]:
    """Text before the first white space, the words between, text after the last; quotes in them are taken off."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    words = [word for word in words if not word.isspace()]
    begins, ends = text[:1].isspace(), text[-1:].isspace()
    return [*([""] if begins or not words else []), *words, *([""] if ends and words else [])]


def _changed(value: str, rest: str) -> str:
    """A value after `${X%…}`, `${X#…}`, `${X/a/b}`, `${X,,}` or `${X^^}`; with a dollar where that is not known."""
    if rest in (",,", "^^"):
        return value.lower() if rest == ",," else value.upper()
    if match := re.fullmatch(r"//?([^/#%][^/]*)(?:/(.*))?", rest, re.DOTALL):
        replaced = match[2] or ""
        return re.sub(_glob(match[1]), lambda _: replaced, value, count=0 if rest.startswith("//") else 1)
    if match := re.fullmatch(r"(%%?|##?)(.*)", rest, re.DOTALL):
        return _stripped(value, match[1], match[2])
    if match := _PART.fullmatch(rest):
        start = int(match[1])
        return value[start : start + int(match[2])] if match[2] else value[start:]
    return f"${{{shown(rest)}}}"


def _stripped(value: str, how: str, pattern: str) -> str:
    glob = re.compile(_glob(pattern))
    places = range(len(value) + 1)
    if how[0] == "#":
        ends = [at for at in places if glob.fullmatch(value[:at])]
        return value[(max if how == "##" else min)(ends) :] if ends else value
    starts = [at for at in places if glob.fullmatch(value[at:])]
    return value[: (min if how == "%%" else max)(starts)] if starts else value


def _glob(pattern: str) -> str:
    return "".join({"*": "(?s:.*)", "?": "(?s:.)"}.get(one, re.escape(one)) for one in pattern)


def _closing(raw: str, at: int) -> int:
    """The place of the double quote that closes the one at `at`."""
    end = at + 1
    while end < len(raw) and raw[end] != '"':
        if raw[end] == "\\":
            end += 1
        elif raw[end] == "$" and raw[end + 1 : end + 2] in ("(", "{"):
            end = _balanced(raw, end + 1) or end
        end += 1
    return end


def _balanced(raw: str, at: int) -> int:
    """The place of the parenthesis or brace that closes the one at `at`; 0 without one."""
    opening, closing, depth = raw[at], {"(": ")", "{": "}"}[raw[at]], 0
    end = at
    while end < len(raw):
        character = raw[end]
        if character == "\\":
            end += 1
        elif character == '"':
            end = _closing(raw, end)
        elif character == "'" and opening == "(":
            quote = raw.find("'", end + 1)
            end = quote if quote > 0 else end
        depth += (character == opening) - (character == closing)
        if not depth:
            return end
        end += 1
    return 0


def _folder(name: str) -> str:
    return name.rpartition("/")[0] or "."


def flat(value: Value | None) -> list[str]:
    """The words or elements of a value."""
    if value is None:
        return []
    if isinstance(value, str):
        return value.split()
    return [*value] if isinstance(value, list) else [*value.values()]


def has_flags(words: Sequence[str]) -> bool:
    """Whether one of the words is a flag, or a value by path as Hydra's programs take it: trainer.nnodes=2."""
    return any((word.startswith("--") and len(word) > 2) or BY_PATH.fullmatch(word) for word in words)


def added(before: Sequence[str], after: Sequence[str]) -> Sequence[str]:
    """What a longer list has after (or before) a shorter one; all of it where it is another."""
    size = len(before)
    if [*after[:size]] == [*before]:
        return after[size:]
    return after[: len(after) - size] if size and [*after[-size:]] == [*before] else after
