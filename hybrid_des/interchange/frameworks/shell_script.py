"""What a shell script would start, read without running it: variables, branches, loops, functions, sourced files.

A condition is decided where its words are known, and what is not set in the script counts as unset there, which is
said. Of a condition that cannot be decided, such as `[ -f FILE ]`, neither branch is taken: its flags are open choices.
A loop is read once per word. Files that a script sources are read where they are there.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tree_sitter import Node

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.files import read_text
from hybrid_des.interchange.frameworks import shell_syntax as syntax
from hybrid_des.interchange.frameworks.shell_tests import decided
from hybrid_des.interchange.frameworks.shell_values import Value, Variables, added, flat, has_flags

DEEPEST = 8  # lines within lines, files within files
_MOST = 20_000  # commands, loops unrolled
_PRINT = frozenset(("echo", "printf", "cat", "tee", "logger", "grep", "sed", "awk", "mkdir", "rm", "cp", "mv", "ls"))
_ACTS = ("command", "declaration_command", "unset_command", "variable_assignment", "variable_assignments")
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


def read_script(
    text: str,
    name: str,
    variables: Mapping[str, str],
    *,
    is_file: bool = False,
    environment: Mapping[str, str] | None = None,
) -> "Script":
    """What a script starts.

    Args:
        text: a script, or a line of it.
        name: where it comes from, for errors; the path of a file, beside which sourced files are looked for.
        variables: what is set before it begins.
        is_file: whether `name` is a path.
        environment: variables that count where the script does not set them.

    Raises:
        UsageError: a quotation is not closed, or it is nested too deeply.
    """
    script = Script(name, variables, is_file=is_file, environment=environment)
    try:
        script.read(text, name)
    except RecursionError:
        raise UsageError(f"{name}: nested too deeply to be read; expected a launch line or a shell script") from None
    return script


class Script:
    """What is found in a script that is read.

    Attributes:
        started: its commands with flags, in order.
        loose: words of lines that begin with a flag, of no command; they count where nothing is started.
        variables: the values of its variables at its end.
        documents: the here-documents that it writes to files, by their paths.
    """

    def __init__(
        self, name: str, variables: Mapping[str, str], *, is_file: bool, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name, self._is_file = name, is_file
        self.variables = Variables(name, {**variables}, environment)
        self._functions: dict[str, Node] = {}
        self.started: list[Started] = []
        self.documents: dict[str, str] = {}
        self.loose: list[tuple[int, tuple[str, ...]]] = []
        self._choices: list[Choice] = []
        self._notes: dict[str, None] = {}
        self._from: dict[str, frozenset[str]] = {}  # variables in the value of a variable
        self._around: frozenset[str] = frozenset()  # those in the text that is read, or in arguments
        self._elsewhere: dict[str, list[str]] = {}  # conditions under which a variable gets a value
        self._open = ""  # the undecided condition around
        self._file = ""  # the sourced file that is read
        self._depth = self._count = 0
        self._readers: Mapping[str, Callable[[Node], bool | None]] = {
            "command": self._command,
            "redirected_statement": self._redirected,
            "variable_assignment": self._assign,
            "unset_command": self._unset,
            "test_command": self._test,
            "negated_command": self._negated,
            "list": self._chain,
            "pipeline": self._own_shell,
            "subshell": self._own_shell,
            "if_statement": self._branches,
            "case_statement": self._branches,
            "for_statement": self._loop,
            "c_style_for_statement": self._loop,
            "while_statement": self._while,
            "function_definition": self._function,
            syntax.DAMAGED: self._damaged,
        }

    @property
    def assigned(self) -> tuple[str, ...]:
        """Flags of variables, in order of assignment; they count where nothing else does."""
        values = map(flat, self.variables.values.values())
        return tuple(word for words in values for word in words if has_flags(words))

    @property
    def choices(self) -> list[Choice]:
        """What depends on conditions that were not decided."""
        return [choice for choice in self._choices if choice.words]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken for given, or not followed; one line each."""
        return tuple(self._notes)

    @property
    def elsewhere(self) -> Mapping[str, str]:
        """Variables that get a value under conditions that do not hold or are not decided, with these."""
        return {name: one_line(", ".join(lines), LONGEST_SHOWN * 4) for name, lines in self._elsewhere.items()}

    def read(self, text: str, name: str) -> None:
        """Read a whole script; what is no shell is read as it is written, and said."""
        root = syntax.parse(text, name)
        for node in syntax.damaged_in(root):
            damaged = one_line(" ".join(syntax.text_of(node).split()), LONGEST_SHOWN)
            wrong = (
                f"not understood as shell near `{damaged}`" if damaged else "the end of a block or a list is missing"
            )
            self._note(f"{self._at(syntax.line_of(node))}: {wrong}; check what is read there")
        self.run(root)

    def run(self, node: Node) -> bool | None:
        """Read a command, or all in a group; whether it succeeds, None if that is not known."""
        self._count += 1
        if self._count > _MOST:
            self._note(f"only the first {_MOST:,} commands are read, loops unrolled")
            return None
        read = self._readers.get(node.type)
        if read is not None:
            return read(node)
        if syntax.is_arithmetic(node):
            return self._arithmetic(syntax.text_of(node)[2:-2])
        return self._all(syntax.statements_in(node))

    def _all(self, nodes: Iterable[Node]) -> bool | None:
        held: bool | None = True
        for node in nodes:
            held = self.run(node)
        return held

    def _at(self, line: int) -> str:
        return f"{self._file} line {line}" if self._file else f"line {line}"

    def _note(self, line: str) -> None:
        self._notes[line] = None

    # branches

    def _negated(self, node: Node) -> bool | None:
        held = self._all(syntax.statements_in(node))
        return None if held is None else not held

    def _own_shell(self, node: Node) -> bool | None:
        """Read commands in parentheses or of a pipe, which keep their variables."""
        before = {**self.variables.values}
        held = self._all(syntax.statements_in(node))
        self.variables.values = before
        return held

    def _chain(self, node: Node) -> bool | None:
        before, after, *_ = syntax.statements_in(node)
        asked = syntax.is_test(before) or syntax.unredirected(before).type in ("list", "negated_command")
        self.variables.unset.clear()
        first = self.run(before)
        if not asked and first is None:
            first = True  # a command is taken to succeed
        condition = syntax.Condition(syntax.shown([syntax.unredirected(before)]))
        wanted = any(child.type == "&&" for child in node.children)
        if first is None:
            self._undecided(syntax.line_of(node), [(condition, [after]), (syntax.Condition("else"), ())])
            return None
        unset = {*self.variables.unset}
        if first is wanted:
            return self.run(after)
        if asked and unset:
            self._left_out(syntax.line_of(node), condition, [after], unset)
        return first

    def _branches(self, node: Node) -> bool | None:
        line, cases = syntax.line_of(node), syntax.cases_of(node)
        for number, (condition, body) in enumerate(cases):
            self.variables.unset.clear()
            held = self._holds(condition)
            unset = {*self.variables.unset}
            if held is None:
                rest = cases[number:]
                if not rest[-1][0].otherwise:
                    rest.append((syntax.Condition("else"), ()))
                self._undecided(line, rest)
                return None
            if held:
                if unset:
                    for other, left in cases[number + 1 :]:
                        self._left_out(line, other, left, unset)
                return self._all(body)
            if unset:
                self._left_out(line, condition, body, unset)
        return True

    def _holds(self, condition: syntax.Condition) -> bool | None:
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
            if asked is None or (syntax.unredirected(node).type in _ACTS and not syntax.is_test(node)):
                return None
            held = asked
        return held

    def _scratch(self, nodes: Sequence[Node]) -> tuple[dict[str, Value], list[Started]]:
        """The variables and commands after some commands, without keeping them."""
        before, notes = {**self.variables.values}, {**self._notes}
        started, loose, choices = len(self.started), len(self.loose), len(self._choices)
        self._all(nodes)
        after, commands = self.variables.values, self.started[started:]
        self.variables.values, self._notes = before, notes
        del self.started[started:], self.loose[loose:], self._choices[choices:]
        return after, commands

    def _left_out(self, line: int, condition: syntax.Condition, body: Sequence[Node], unset: set[str]) -> None:
        """Say what is not read because a variable has no value in the script."""
        after, started = self._scratch(body)
        said = [" ".join(command.words) for command in started if has_flags(command.words)]
        where = f"{self._at(line)}: {one_line(condition.text, LONGEST_SHOWN * 2)}"
        for name, value in after.items():
            before = self.variables.values.get(name)
            if value != before:
                self._elsewhere.setdefault(name, []).append(where)
                said.append(f"{name}={' '.join(added(flat(before), flat(value)))}")
        if not said:
            return
        names = ", ".join(sorted(f"${name}" for name in unset))
        left_out = one_line("; ".join(said), LONGEST_SHOWN * 3)
        self._note(f"{where}: {names} not set in the script, taken as unset; left out: {left_out}")

    def _undecided(self, line: int, cases: Sequence[tuple[syntax.Condition, Sequence[Node]]]) -> None:
        """Take no branch; keep what differs among them."""
        before, outer = {**self.variables.values}, self._open
        results = []
        for condition, body in cases:
            said = f"{self._at(line)}: {one_line(condition.text, LONGEST_SHOWN * 2)}"
            self._open = said
            self.variables.values = {**before}
            self._all(body)
            results.append((said, self.variables.values))
        self.variables.values, self._open = before, outer
        for name in dict.fromkeys(name for _, after in results for name in after):
            values = [after.get(name) for _, after in results]
            if all(value == values[0] for value in values):
                before[name] = values[0] or ""
            else:
                self._differs(name, [(said, after.get(name)) for said, after in results])

    def _differs(self, name: str, results: Sequence[tuple[str, Value | None]]) -> None:
        before = self.variables.values.get(name)
        if any(has_flags(flat(value)) for _, value in results):
            if before is None:
                self.variables.values[name] = ""
            for said, value in results:
                self._choices.append(Choice(said, tuple(added(flat(before), flat(value))), name))
            return
        self.variables.values[name] = f"${name}"
        self._elsewhere.setdefault(name, []).extend(
            f"{said}: {one_line(' '.join(flat(value)), LONGEST_SHOWN)}" for said, value in results if value is not None
        )

    # loops

    def _while(self, node: Node) -> bool | None:
        conditions = [one for one in node.children_by_field_name("condition") if one.is_named]
        held = self._holds(syntax.Condition("", conditions))
        body = syntax.field(node, "body")
        if held is None:
            cases = (syntax.Condition("a loop"), [body]), (syntax.Condition("else"), ())
            self._undecided(syntax.line_of(node), cases)
        elif held != (node.children[0].type == "until"):
            self.run(body)
        return True

    def _loop(self, node: Node) -> bool | None:
        name = syntax.text_of(syntax.field(node, "variable")) if node.type == "for_statement" else "_"
        self.variables.used.clear()
        values = node.children_by_field_name("value")
        words = [word for value in values for word in self.variables.words(syntax.text_of(value))]
        self._from[name] = self._parts()
        started = len(self.started)
        for word in words or [f"${name}"]:
            self.variables.values[name] = word
            self.run(syntax.field(node, "body"))
        if len(words) > 1 and len(self.started) > started:
            listed = one_line(" ".join(words), LONGEST_SHOWN)
            self._note(f"{self._at(syntax.line_of(node))}: for {name} in {listed}: read with the last of them")
        return True

    # commands

    def _parts(self) -> frozenset[str]:
        """The variables in what was last expanded, and in those."""
        used = self.variables.used
        return self._around.union(used, *(self._from.get(one, ()) for one in used))

    def _assign(self, node: Node) -> bool | None:
        name, bracket, index = syntax.text_of(syntax.field(node, "name")).rstrip("]").partition("[")
        given = node.child_by_field_name("value")
        is_array = given is not None and given.type == "array"
        adds = any(child.type == "+=" for child in node.children)
        self.variables.used.clear()
        if given is None:
            value: Value = ""
        elif is_array:
            items = [syntax.text_of(item) for item in given.named_children if item.type != "comment"]
            value = self.variables.items(items)
        else:
            value = self.variables.text(syntax.text_of(given))
        parts = self._parts()
        before = self.variables.values.get(name)
        self._from[name] = parts | self._from.get(name, frozenset()) if adds else parts
        if bracket and not is_array:
            key = self.variables.text(index)
            kept = before if isinstance(before, dict) else {str(at): one for at, one in enumerate(flat(before))}
            value = {**kept, key: str(value)}
        elif adds and isinstance(value, list):
            value = [*flat(before), *value]
        elif adds:
            value = f"{' '.join(flat(before))}{value if isinstance(value, str) else ''}"
        self.variables.values.pop(name, None)  # so that the order is that of the last assignments
        self.variables.values[name] = value
        return True

    def _unset(self, node: Node) -> bool | None:
        for word in re.sub("[\"']", "", syntax.text_of(node)).split()[1:]:
            self.variables.unset_one(word)
        return True

    def _redirected(self, node: Node) -> bool | None:
        body = syntax.unredirected(node)
        held: bool | None = True
        if body.type == "command":
            held = self._command(body, node)
        elif body is not node:
            held = self.run(body)
        for redirect in node.children_by_field_name("redirect"):
            self._all(syntax.statements_in(redirect))
        return held

    def _damaged(self, node: Node) -> bool | None:
        self._all(syntax.statements_in(node))
        return self._do(node, syntax.words_of(node), {}, None)

    def _command(self, node: Node, redirected: Node | None = None) -> bool | None:
        more = [] if redirected is None else syntax.words_of(redirected)
        environment = {}
        for given in node.children:
            if given.type == "variable_assignment":
                name, _, value = syntax.text_of(given).partition("=")
                environment[name] = self.variables.text(value)
        document = redirected and syntax.document_of(redirected)
        if redirected is not None and document is not None and (target := syntax.written_to(redirected)):
            self.documents[self.variables.text(target)] = self.variables.text_of(document)
        return self._do(node, [*syntax.words_of(node), *more], environment, document)

    def _do(
        self, node: Node, written: Sequence[str], environment: Mapping[str, str], document: str | None
    ) -> bool | None:
        if written[:1] == ["test"]:
            return self._decided(written[1:])
        if written[:1] == ["let"]:
            return [self._arithmetic(word.strip("\"'")) for word in written][-1]
        self.variables.used.clear()
        words = [word for one in written for word in self.variables.words(one)]
        parts = self._parts()
        if not words:
            return True
        if document is not None:
            self._document(syntax.line_of(node), document, words)
        return self._start(syntax.line_of(node), words, environment, parts)

    def _start(self, line: int, words: list[str], environment: Mapping[str, str], parts: frozenset[str]) -> bool | None:
        first = words[0]
        if first in (":", "true", "false"):
            return first != "false"
        if first in ("source", "."):
            return self._source(line, words[1:])
        if first in self._functions and self._depth < DEEPEST:
            return self._call(first, words[1:], parts)
        if first == "set":
            if "--" in words[:2]:
                self.variables.positional = words[words.index("--") + 1 :]
                self._around |= parts
            return True
        if first == "shift":
            count = int(words[1]) if len(words) > 1 and re.fullmatch(r"\d{1,4}", words[1]) else 1
            self.variables.positional = (self.variables.positional or [])[count:] or None
            return True
        if first == "read":
            for name in words[1:]:
                self.variables.values[name] = f"${name}"
        elif first == "eval":
            self._inner(" ".join(words[1:]), line, parts)
        elif first.startswith("--"):
            self.loose.append((line, tuple(words)))
        elif first not in _PRINT:
            self._begin(line, words, environment, parts)
        return None

    def _begin(self, line: int, words: list[str], environment: Mapping[str, str], parts: frozenset[str]) -> None:
        """Keep a command with flags, and those within its words."""
        outer: list[str] = []
        inner: list[Started] = []
        for at, word in enumerate(words):
            after_flag = at > 0 and words[at - 1].startswith("--") and "=" not in words[at - 1]
            whole = re.search(r"\s", word.strip()) and "--" in word and not re.match(r"--[\w-]+=", word)
            if whole and self._depth < DEEPEST and (word.lstrip().startswith("--") or not after_flag):
                before, loose = len(self.started), len(self.loose)
                self._inner(word, line, parts)
                inner += self.started[before:]
                outer += [command for _, more in self.loose[loose:] for command in more]
                del self.started[before:], self.loose[loose:]
            else:
                outer.append(word)
        script = next((word for word in words if _SCRIPT.fullmatch(word)), None)
        if script is not None and not inner and words[0] in _SHELLS:
            self._note(f"{self._at(line)}: starts {one_line(script, LONGEST_SHOWN)}, another script, which is not read")
        for command in inner:
            more = {**environment, **command.environment}
            self.started.append(Started(line, (*outer, *command.words), more, self._open, command.variables))
        if not inner and (has_flags(outer) or any("$" in word for word in outer)):
            self.started.append(Started(line, tuple(outer), environment, self._open, parts))

    def _inner(self, text: str, line: int, parts: frozenset[str]) -> None:
        if self._depth < DEEPEST:
            self._within(syntax.parse(text, self._name, line), parts)

    def _within(self, node: Node, parts: frozenset[str]) -> bool | None:
        """Read commands whose text or arguments were made of some variables."""
        outer, self._around = self._around, self._around | parts
        self._depth += 1
        held = self.run(node)
        self._depth -= 1
        self._around = outer
        return held

    def _document(self, line: int, text: str, words: Sequence[str]) -> None:
        if words[0] in _SHELLS:
            self.variables.used.clear()
            self._inner(self.variables.text_of(text), line, self._parts())
        elif "--" in text:
            self._note(f"{self._at(line)}: a text that is written with {words[0]} has flags, which are not read")

    def _function(self, node: Node) -> bool | None:
        self._functions[syntax.text_of(syntax.field(node, "name"))] = syntax.field(node, "body")
        return True

    def _call(self, name: str, arguments: list[str], parts: frozenset[str]) -> bool | None:
        outer = self.variables.positional
        self.variables.positional = arguments
        held = self._within(self._functions[name], parts)
        self.variables.positional = outer
        return held

    def _source(self, line: int, words: Sequence[str]) -> bool | None:
        """Read a file as if it stood here; say so if it is not there."""
        given = words[0] if words else ""
        given = _HERE.sub("./", given)  # a script is started from its folder, most often
        places = [Path(self._name).parent / given, Path(given)] if self._is_file else []
        path = next((one for one in places if "$" not in given and one.is_file()), None)
        short = one_line(given, LONGEST_SHOWN)
        if path is None or self._depth >= DEEPEST:
            why = "not found beside the script" if self._is_file else "a line names no folder"
            why = "its name is not known" if "$" in given else why
            self._note(f"{self._at(line)}: source {short}: not read, as {why}; flags and variables in it are missing")
            return None
        outer, self._file = self._file, one_line(path.name, LONGEST_SHOWN)
        self._depth += 1
        self.read(read_text(path, "a shell script"), str(path))
        self._depth -= 1
        self._file = outer
        return True

    # conditions

    def _test(self, node: Node) -> bool | None:
        return self._decided(syntax.parts_of_test(node)[1:-1])

    def _decided(self, raw: Sequence[str]) -> bool | None:
        return decided([self._plain(word) if word not in ("<", ">", "(", ")", "&&", "||") else word for word in raw])

    def _plain(self, raw: str) -> str:
        """A word in a condition, in which what is not set is empty."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name in self.variables.values:
                return match[0]  # known to be unknown
            self.variables.unset.add(name)
            return ""

        return _UNSET.sub(value, self.variables.text(raw))

    def _arithmetic(self, text: str) -> bool | None:
        """Whether `(( … ))` is not 0; what it assigns is kept, or unknown where it cannot be calculated."""
        if match := _STEP.fullmatch(text) or _ASSIGNS.fullmatch(text):
            name, operator, right = match[1], match[2], match[3] if len(match.groups()) > 2 else "1"
            right = self.variables.text_of(right)
            whole = right if operator == "=" else f"{name} {operator[0]} ({right})"
            self.variables.values[name] = self.variables.calculated(whole, f"${name}")
            return None
        value = self.variables.calculated(self.variables.text_of(text), "")
        return bool(int(value)) if value else None
