"""What a shell script would start, read without running it: variables, branches, loops, functions, sourced files.

A condition is decided where its words are known, and what is not set in the script counts as unset there, which is
said. Of a condition that cannot be decided, such as `[ -f FILE ]`, neither branch is taken: its flags are open choices.
A loop is read once per word. Files that a script sources are read where they are there.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.files import read_text
from hybrid_des.interchange.frameworks.shell_syntax import (
    ASSIGNMENT,
    Branches,
    Chain,
    Command,
    Condition,
    Function,
    Group,
    Loop,
    Negated,
    Node,
    Test,
    Token,
    parse,
)
from hybrid_des.interchange.frameworks.shell_tests import as_written, decided, is_test
from hybrid_des.interchange.frameworks.shell_values import Value, Variables, added, flat, has_flags

DEEPEST = 8  # lines within lines, files within files
_MOST = 20_000  # commands, loops unrolled
_PRINT = frozenset(("echo", "printf", "cat", "tee", "logger", "grep", "sed", "awk", "mkdir", "rm", "cp", "mv", "ls"))
_DECLARE = ("export", "local", "declare", "readonly", "typeset")
_SHELLS = ("sbatch", "bash", "sh", "srun", "ssh", "zsh")
_SCRIPT = re.compile(r"\S+\.sh")
_STEP = re.compile(r"\s*([A-Za-z_]\w*)\s*(\+\+|--)\s*")
_ASSIGNS = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?=)([^=].*)", re.DOTALL)
_HERE = re.compile(r"^(?:\$\(pwd\)|\$\{?PWD\}?)/")
_UNSET = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?\}|([A-Za-z_]\w*|[0-9@*]))")


class Started(NamedTuple):
    """A command with flags.

    Attributes:
        line: where it stands.
        words: the command, with values in place of variables.
        environment: variables that it is given in front of the command.
        condition: what must hold for it and was not decided; empty if nothing.
    """

    line: int
    words: tuple[str, ...]
    environment: Mapping[str, str]
    condition: str
    variables: frozenset[str]


class Choice(NamedTuple):
    """What a script does under a condition that is not decided.

    Attributes:
        said: line and condition.
        words: what is added to a variable that holds flags.
        variable: this variable.
    """

    said: str
    words: tuple[str, ...]
    variable: str


class Script(NamedTuple):
    """What was found in a script.

    Attributes:
        started: its commands with flags, in order.
        loose: words of lines that begin with a flag, of no command; they count where nothing is started.
        assigned: flags of variables, in order of assignment; they count where nothing else does.
        choices: what depends on conditions that were not decided.
        notes: what was taken for given, or not followed; one line each.
        variables: the values of its variables at its end.
        elsewhere: variables that get a value under conditions that do not hold or are not decided, with these.
    """

    started: tuple[Started, ...]
    loose: tuple[tuple[int, tuple[str, ...]], ...]
    assigned: tuple[str, ...]
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    variables: Variables
    elsewhere: Mapping[str, str]


def read_script(text: str, name: str, variables: Mapping[str, str], *, is_file: bool = False) -> Script:
    """What a script starts.

    Args:
        text: a script, or a line of it.
        name: where it comes from, for errors; the path of a file, beside which sourced files are looked for.
        variables: what is set before it begins.
        is_file: whether `name` is a path.

    Raises:
        UsageError: a quotation is not closed, or it is nested too deeply.
    """
    reader = _Reader(name, variables, is_file=is_file)
    try:
        for node in parse(text, name):
            reader.run(node)
    except RecursionError:
        raise UsageError(f"{name}: nested too deeply to be read; expected a launch line or a shell script") from None
    return reader.found()


class _Reader:
    """A script that is being read."""

    def __init__(self, name: str, variables: Mapping[str, str], *, is_file: bool) -> None:
        self._name, self._is_file = name, is_file
        self._variables = Variables(name, {**variables})
        self._functions: dict[str, tuple[Node, ...]] = {}
        self._started: list[Started] = []
        self._loose: list[tuple[int, tuple[str, ...]]] = []
        self._choices: list[Choice] = []
        self._notes: dict[str, None] = {}
        self._from: dict[str, frozenset[str]] = {}  # variables in the value of a variable
        self._around: frozenset[str] = frozenset()  # those in the text that is read, or in arguments
        self._elsewhere: dict[str, list[str]] = {}  # conditions under which a variable gets a value
        self._open = ""  # the undecided condition around
        self._file = ""  # the sourced file that is read
        self._depth = self._count = 0

    def found(self) -> Script:
        """What was read."""
        assigned = [word for value in self._variables.values.values() for word in flat(value) if has_flags(flat(value))]
        choices = [choice for choice in self._choices if choice.words]
        return Script(
            tuple(self._started),
            tuple(self._loose),
            tuple(assigned),
            tuple(choices),
            tuple(self._notes),
            self._variables,
            {name: one_line(", ".join(lines), LONGEST_SHOWN * 4) for name, lines in self._elsewhere.items()},
        )

    def run(self, node: Node) -> bool | None:
        """Read a command; whether it succeeds, None if that is not known."""
        self._count += 1
        if self._count > _MOST:
            self._note(f"only the first {_MOST:,} commands are read, loops unrolled")
            return None
        if isinstance(node, Command):
            return self._command(node)
        if isinstance(node, Test):
            if node.arithmetic is not None:
                return self._arithmetic(node.arithmetic)
            return self._decided([token.text for token in node.words])
        if isinstance(node, Negated):
            held = self.run(node.node)
            return None if held is None else not held
        if isinstance(node, Group):
            before = {**self._variables.values}
            held = self._all(node.body)
            self._variables.values = before if node.own_shell else self._variables.values
            return held
        if isinstance(node, Chain):
            return self._chain(node)
        if isinstance(node, Function):
            self._functions[node.name] = node.body
            return True
        return self._loop(node) if isinstance(node, Loop) else self._branches(node)

    def _all(self, nodes: Sequence[Node]) -> bool | None:
        held: bool | None = True
        for node in nodes:
            held = self.run(node)
        return held

    def _at(self, line: int) -> str:
        return f"{self._file} line {line}" if self._file else f"line {line}"

    def _note(self, line: str) -> None:
        self._notes[line] = None

    # branches

    def _chain(self, node: Chain) -> bool | None:
        asked = isinstance(node.first, Test | Chain | Negated) or is_test(node.first)
        self._variables.unset.clear()
        first = self.run(node.first)
        if not asked and first is None:
            first = True  # a command is taken to succeed
        shown = Condition(as_written(node.first))
        wanted = node.operator == "&&"
        if first is None:
            self._undecided(node.line, [(shown, (node.second,)), (Condition("else"), ())])
            return None
        unset = {*self._variables.unset}
        if first is wanted:
            return self.run(node.second)
        if asked and unset:
            self._left_out(node.line, shown, (node.second,), unset)
        return first

    def _branches(self, node: Branches) -> bool | None:
        for number, (condition, body) in enumerate(node.cases):
            self._variables.unset.clear()
            held = self._holds(condition)
            unset = {*self._variables.unset}
            if held is None:
                rest = [*node.cases[number:]]
                if not rest[-1][0].otherwise:
                    rest.append((Condition("else"), ()))
                self._undecided(node.line, rest)
                return None
            if held:
                if unset:
                    for other, left in node.cases[number + 1 :]:
                        self._left_out(node.line, other, left, unset)
                return self._all(body)
            if unset:
                self._left_out(node.line, condition, body, unset)
        return True

    def _holds(self, condition: Condition) -> bool | None:
        if condition.word is not None:
            word = self._plain(condition.word)
            patterns = [self._plain(pattern) for pattern in condition.patterns]
            if "$" in word:
                return True if "*" in patterns else None
            return any(fnmatch.fnmatchcase(word, pattern) for pattern in patterns)
        if not condition.commands:
            return True
        held = True
        for node in condition.commands:
            asked = self.run(node)
            if asked is None or (isinstance(node, Command) and not is_test(node)):
                return None
            held = asked
        return held

    def _scratch(self, nodes: Sequence[Node]) -> tuple[dict[str, Value], list[Started]]:
        """The variables and commands after some commands, without keeping them."""
        before, notes = {**self._variables.values}, {**self._notes}
        started, loose, choices = len(self._started), len(self._loose), len(self._choices)
        self._all(nodes)
        after, commands = self._variables.values, self._started[started:]
        self._variables.values, self._notes = before, notes
        del self._started[started:], self._loose[loose:], self._choices[choices:]
        return after, commands

    def _left_out(self, line: int, condition: Condition, body: Sequence[Node], unset: set[str]) -> None:
        """Say what is not read because a variable has no value in the script."""
        after, started = self._scratch(body)
        said = [" ".join(command.words) for command in started if has_flags(command.words)]
        where = f"{self._at(line)}: {one_line(condition.text, LONGEST_SHOWN * 2)}"
        for name, value in after.items():
            before = self._variables.values.get(name)
            if value != before:
                self._elsewhere.setdefault(name, []).append(where)
                said.append(f"{name}={' '.join(added(flat(before), flat(value)))}")
        if not said:
            return
        names = ", ".join(sorted(f"${name}" for name in unset))
        shown = one_line("; ".join(said), LONGEST_SHOWN * 3)
        self._note(f"{where}: {names} not set in the script, taken as unset; left out: {shown}")

    def _undecided(self, line: int, cases: Sequence[tuple[Condition, Sequence[Node]]]) -> None:
        """Take no branch; keep what differs among them."""
        before, outer = {**self._variables.values}, self._open
        results = []
        for condition, body in cases:
            said = f"{self._at(line)}: {one_line(condition.text, LONGEST_SHOWN * 2)}"
            self._open = said
            self._variables.values = {**before}
            self._all(body)
            results.append((said, self._variables.values))
        self._variables.values, self._open = before, outer
        for name in dict.fromkeys(name for _, after in results for name in after):
            values = [after.get(name) for _, after in results]
            if all(value == values[0] for value in values):
                before[name] = values[0] or ""
            else:
                self._differs(name, [(said, after.get(name)) for said, after in results])

    def _differs(self, name: str, results: Sequence[tuple[str, Value | None]]) -> None:
        before = self._variables.values.get(name)
        if any(has_flags(flat(value)) for _, value in results):
            if before is None:
                self._variables.values[name] = ""
            for said, value in results:
                self._choices.append(Choice(said, tuple(added(flat(before), flat(value))), name))
            return
        self._variables.values[name] = f"${name}"
        self._elsewhere.setdefault(name, []).extend(
            f"{said}: {one_line(' '.join(flat(value)), LONGEST_SHOWN)}" for said, value in results if value is not None
        )

    # loops

    def _loop(self, node: Loop) -> bool | None:
        if not node.name:
            held = self._holds(Condition(as_written(node.condition[0]) if node.condition else "", node.condition))
            if held is None:
                self._undecided(node.line, [(Condition("a loop"), node.body), (Condition("else"), ())])
            elif held:
                self._all(node.body)
            return True
        self._variables.used.clear()
        words = [word for token in node.words for word in self._variables.words(token.text)]
        self._from[node.name] = self._parts()
        started = len(self._started)
        for word in words or [f"${node.name}"]:
            self._variables.values[node.name] = word
            self._all(node.body)
        if len(words) > 1 and len(self._started) > started:
            shown = one_line(" ".join(words), LONGEST_SHOWN)
            self._note(f"{self._at(node.line)}: for {node.name} in {shown}: read with the last of them")
        return True

    # commands

    def _parts(self) -> frozenset[str]:
        """The variables in what was last expanded, and in those."""
        used = self._variables.used
        return self._around.union(used, *(self._from.get(one, ()) for one in used))

    def _assign(self, token: Token) -> None:
        match = ASSIGNMENT.fullmatch(token.text)
        if match is None:
            return
        name, index, adds = match[1], match[2], bool(match[3])
        is_array = token.kind == "array"
        self._variables.used.clear()
        value = self._variables.items(token.items) if is_array else self._variables.text(match[4])
        parts = self._parts()
        before = self._variables.values.get(name)
        self._from[name] = parts | self._from.get(name, frozenset()) if adds else parts
        if index is not None and not is_array:
            key = self._variables.text(index[1:-1])
            kept = before if isinstance(before, dict) else {str(at): one for at, one in enumerate(flat(before))}
            value = {**kept, key: str(value)}
        elif adds and isinstance(value, list):
            value = [*flat(before), *value]
        elif adds:
            value = f"{' '.join(flat(before))}{value if isinstance(value, str) else ''}"
        self._variables.values.pop(name, None)  # so that the order is that of the last assignments
        self._variables.values[name] = value

    def _command(self, node: Command) -> bool | None:
        for token in node.assigned if not node.words else ():
            self._assign(token)
        if not node.words:
            return True
        first = node.words[0].text
        if first in _DECLARE:
            for token in node.words[1:]:
                self._assign(token)
            return True
        if first in ("[", "test"):
            return self._decided([token.text for token in node.words[1:] if token.text != "]"])
        if first == "let":
            return self._all([Test(node.line, (), token.text.strip("\"'")) for token in node.words[1:]])
        self._variables.used.clear()
        words = [word for token in node.words for word in self._variables.words(token.text)]
        parts = self._parts()
        if not words:
            return True
        environment = {}
        for token in node.assigned:
            name, _, value = token.text.partition("=")
            environment[name] = self._variables.text(value)
        return self._start(node, words, environment, parts)

    def _start(
        self, node: Command, words: list[str], environment: Mapping[str, str], parts: frozenset[str]
    ) -> bool | None:
        first = words[0]
        if first in (":", "true", "false"):
            return first != "false"
        if first in ("source", "."):
            return self._source(node.line, words[1:])
        if first in self._functions and self._depth < DEEPEST:
            return self._call(first, words[1:], parts)
        if first == "set":
            if "--" in words[:2]:
                self._variables.positional = words[words.index("--") + 1 :]
                self._around |= parts
            return True
        if first == "shift":
            count = int(words[1]) if len(words) > 1 and re.fullmatch(r"\d{1,4}", words[1]) else 1
            self._variables.positional = (self._variables.positional or [])[count:] or None
            return True
        if first == "unset":
            for name in words[1:]:
                self._variables.unset_one(name)
            return True
        if first == "read":
            for name in words[1:]:
                self._variables.values[name] = f"${name}"
            return None
        if node.document is not None:
            self._document(node, words)
        if first in _PRINT:
            return None
        if first == "eval":
            self._inner(" ".join(words[1:]), node.line, parts)
            return None
        if first.startswith("--"):
            self._loose.append((node.line, tuple(words)))
            return None
        self._begin(node.line, words, environment, parts)
        return None

    def _begin(self, line: int, words: list[str], environment: Mapping[str, str], parts: frozenset[str]) -> None:
        """Keep a command with flags, and those within its words."""
        outer: list[str] = []
        inner: list[Started] = []
        for at, word in enumerate(words):
            after_flag = at > 0 and words[at - 1].startswith("--") and "=" not in words[at - 1]
            whole = re.search(r"\s", word.strip()) and "--" in word and not re.match(r"--[\w-]+=", word)
            if whole and self._depth < DEEPEST and (word.lstrip().startswith("--") or not after_flag):
                before, loose = len(self._started), len(self._loose)
                self._inner(word, line, parts)
                inner += self._started[before:]
                outer += [command for _, more in self._loose[loose:] for command in more]
                del self._started[before:], self._loose[loose:]
            else:
                outer.append(word)
        script = next((word for word in words if _SCRIPT.fullmatch(word)), None)
        if script is not None and not inner and words[0] in _SHELLS:
            self._note(f"{self._at(line)}: starts {one_line(script, LONGEST_SHOWN)}, another script, which is not read")
        for command in inner:
            more = {**environment, **command.environment}
            self._started.append(Started(line, (*outer, *command.words), more, self._open, command.variables))
        if not inner and (has_flags(outer) or any("$" in word for word in outer)):
            self._started.append(Started(line, tuple(outer), environment, self._open, parts))

    def _inner(self, text: str, line: int, parts: frozenset[str]) -> None:
        self._within(parse(text, self._name, line) if self._depth < DEEPEST else (), parts)

    def _within(self, nodes: Sequence[Node], parts: frozenset[str]) -> bool | None:
        """Read commands whose text or arguments were made of some variables."""
        outer, self._around = self._around, self._around | parts
        self._depth += 1
        held = self._all(nodes)
        self._depth -= 1
        self._around = outer
        return held

    def _document(self, node: Command, words: Sequence[str]) -> None:
        if words[0] in _SHELLS:
            self._variables.used.clear()
            text = self._variables.text_of(node.document or "")
            self._inner(text, node.line, self._parts())
        elif "--" in (node.document or ""):
            self._note(f"{self._at(node.line)}: a text that is written with {words[0]} has flags, which are not read")

    def _call(self, name: str, arguments: list[str], parts: frozenset[str]) -> bool | None:
        outer = self._variables.positional
        self._variables.positional = arguments
        held = self._within(self._functions[name], parts)
        self._variables.positional = outer
        return held

    def _source(self, line: int, words: Sequence[str]) -> bool | None:
        """Read a file as if it stood here; say so if it is not there."""
        given = words[0] if words else ""
        given = _HERE.sub("./", given)  # a script is started from its folder, most often
        places = [Path(self._name).parent / given, Path(given)] if self._is_file else []
        path = next((one for one in places if "$" not in given and one.is_file()), None)
        shown = one_line(given, LONGEST_SHOWN)
        if path is None or self._depth >= DEEPEST:
            why = "not found beside the script" if self._is_file else "a line names no folder"
            why = "its name is not known" if "$" in given else why
            self._note(f"{self._at(line)}: source {shown}: not read, as {why}; flags and variables in it are missing")
            return None
        outer, self._file = self._file, one_line(path.name, LONGEST_SHOWN)
        self._depth += 1
        self._all(parse(read_text(path, "a shell script"), str(path)))
        self._depth -= 1
        self._file = outer
        return True

    # conditions

    def _decided(self, raw: Sequence[str]) -> bool | None:
        return decided([self._plain(word) if word not in ("<", ">", "(", ")", "&&", "||") else word for word in raw])

    def _plain(self, raw: str) -> str:
        """A word in a condition, in which what is not set is empty."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name in self._variables.values:
                return match[0]  # known to be unknown
            self._variables.unset.add(name)
            return ""

        return _UNSET.sub(value, self._variables.text(raw))

    def _arithmetic(self, text: str) -> bool | None:
        """Whether `(( … ))` is not 0; what it assigns is kept, or unknown where it cannot be calculated."""
        if match := _STEP.fullmatch(text) or _ASSIGNS.fullmatch(text):
            name, operator, right = match[1], match[2], match[3] if len(match.groups()) > 2 else "1"
            right = self._variables.text_of(right)
            whole = right if operator == "=" else f"{name} {operator[0]} ({right})"
            self._variables.values[name] = self._variables.calculated(whole, f"${name}")
            return None
        value = self._variables.calculated(self._variables.text_of(text), "")
        return bool(int(value)) if value else None
