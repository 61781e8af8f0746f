"""The commands of a shell script as data: what runs, in which branch, at which line; nothing is expanded here.

    text ─► tokens (comments end before lines are joined) ─► commands, branches, loops, functions

Grammar: pubs.opengroup.org/onlinepubs/9799919799 (Shell Command Language), with the arrays, `[[ … ]]`, `(( … ))` and
`<<<` of bash. What is no shell is read as far as it goes: the reader of its commands says what it lacks.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hybrid_des.errors import UsageError

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
DEEPEST = 64  # branches within branches
_OPERATORS = (
    ";;&",
    "<<<",
    "<<-",
    "&>>",
    ";;",
    ";&",
    "&&",
    "||",
    "|&",
    "<<",
    ">>",
    "&>",
    ">&",
    "<&",
    ">|",
    *"\n;|&<>()",
)
_REDIRECTIONS = ("<", ">", ">>", "&>", "&>>", ">&", "<&", ">|", "<<<")
_PAIRS = {"(": ")", "{": "}"}


class Token(NamedTuple):
    """A word with its quotes, an operator, or the words of an array."""

    kind: str
    text: str
    line: int
    items: tuple["Token", ...] = ()


class Command(NamedTuple):
    """Assignments and words of one command, and the text of its here-document."""

    line: int
    assigned: tuple[Token, ...]
    words: tuple[Token, ...]
    document: str | None = None


class Branches(NamedTuple):
    """`if` and `case`: conditions with their commands; the last condition is empty for `else`."""

    line: int
    cases: tuple[tuple["Condition", tuple["Node", ...]], ...]


class Condition(NamedTuple):
    """What decides on a branch: commands, or a word and its patterns; neither for `else`."""

    text: str
    commands: tuple["Node", ...] = ()
    word: str | None = None
    patterns: tuple[str, ...] = ()

    @property
    def otherwise(self) -> bool:
        """Whether it is that of `else`."""
        return self.word is None and not self.commands


class Loop(NamedTuple):
    """`for` over words, or commands that run while others succeed (no name)."""

    line: int
    name: str
    words: tuple[Token, ...]
    condition: tuple["Node", ...]
    body: tuple["Node", ...]


class Function(NamedTuple):
    """Commands with a name."""

    name: str
    body: tuple["Node", ...]


class Chain(NamedTuple):
    """A command, and one that runs where it succeeds (&&) or fails (||)."""

    line: int
    first: "Node"
    operator: str
    second: "Node"


class Test(NamedTuple):
    """The words of `[[ … ]]`, or the text of `(( … ))`."""

    line: int
    words: tuple[Token, ...]
    arithmetic: str | None = None


class Negated(NamedTuple):
    """A command after `!`."""

    node: "Node"


class Group(NamedTuple):
    """Commands in braces, or in a shell of their own, which keeps their variables: in parentheses, of a pipe."""

    body: tuple["Node", ...]
    own_shell: bool = False


Node = Command | Branches | Loop | Function | Chain | Test | Negated | Group


def parse(text: str, name: str, line: int = 1) -> tuple[Node, ...]:
    """The commands of a script.

    Args:
        text: the script, or a line of it.
        name: where it comes from, for errors.
        line: the number of its first line.

    Raises:
        UsageError: a quotation is not closed, or branches are nested too deeply.
    """
    tokens = _Tokens(text.replace("\r\n", "\n"), name, line).all()
    return _Parser(tokens, name).script()


class _Tokens:
    """A text and the place up to which it was read."""

    def __init__(self, text: str, name: str, line: int) -> None:
        self._text, self._name, self._line, self._at = text, name, line, 0
        self._documents: list[tuple[str, bool, int]] = []  # end of each here-document, and its token
        self._found: list[Token] = []

    def all(self) -> list[Token]:
        """The tokens of the whole text."""
        while self._at < len(self._text):
            self._next()
        return self._found

    def _next(self) -> None:
        text, at = self._text, self._at
        character = text[at]
        if character in " \t\r" or text.startswith("\\\n", at):
            self._skip(2 if character == "\\" else 1)
        elif character == "#":  # to the end of this line, whatever it ends in
            end = text.find("\n", at)
            self._at = len(text) if end < 0 else end
        elif text.startswith("((", at) and self._begins() and (end := text.find("))", at)) > 0:
            self._found.append(Token("arithmetic", text[at + 2 : end], self._line))
            self._skip(end + 2 - at)
        elif character == "(" and self._found and self._found[-1].text.startswith("--"):
            self._word()  # the value of a flag, unquoted
        elif operator := next((o for o in _OPERATORS if text.startswith(o, at)), None):
            self._operator(operator)
        else:
            self._word()

    def _begins(self) -> bool:
        """Whether a command begins here."""
        last = self._found[-1] if self._found else None
        return last is None or last.kind == "operator" or last.text in ("if", "elif", "while", "until", "!", "then")

    def _skip(self, count: int) -> str:
        passed = self._text[self._at : self._at + count]
        self._line += passed.count("\n")
        self._at += len(passed)
        return passed

    def _operator(self, operator: str) -> None:
        line = self._line
        self._skip(len(operator))
        if operator in ("<<", "<<-"):
            self._found.append(Token("document", "", line))
            if end := re.match(r"[ \t]*(['\"\\]?)([^\s'\"\\;|&<>()]+)\1", self._text[self._at :]):
                self._skip(end.end())
                self._documents.append((end[2], operator == "<<-", len(self._found) - 1))
            return
        self._found.append(Token("operator", operator, line))
        if operator == "\n" and self._documents:
            self._read_documents()

    def _read_documents(self) -> None:
        for end, tabs, token in self._documents:
            lines: list[str] = []
            while self._at < len(self._text):
                stop = self._text.find("\n", self._at)
                line = self._skip((stop + 1 if stop >= 0 else len(self._text)) - self._at).rstrip("\n")
                line = line.lstrip("\t") if tabs else line
                if line == end:
                    break
                lines.append(line)
            self._found[token] = self._found[token]._replace(text="\n".join(lines))
        self._documents.clear()

    def _word(self) -> None:
        line, start = self._line, self._at
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t\n\r;|&<>)" or (character == "(" and self._at > start and not self._glued(start)):
                break
            if character == "(" and (match := ASSIGNMENT.fullmatch(self._text[start : self._at])) and not match[4]:
                self._array(self._text[start : self._at], line)
                return
            self._piece()
        text = self._text[start : self._at]
        number = text.isdigit() and self._text[self._at : self._at + 1] in ("<", ">")
        if self._at == start:
            self._skip(1)
        elif not number:  # else of a stream that is redirected
            self._found.append(Token("word", text, line))

    def _glued(self, start: int) -> bool:
        """Whether a parenthesis is part of the word that begins at `start`: an array, a pattern or a list."""
        return not re.fullmatch(r"[\w-]+", self._text[start : self._at])

    def _array(self, head: str, line: int) -> None:
        outer, self._found = self._found, []
        self._skip(1)
        while self._at < len(self._text) and self._text[self._at] != ")":
            self._next()
        if self._at >= len(self._text):
            raise self._unclosed()
        self._skip(1)
        items = tuple(token for token in self._found if token.kind == "word")
        self._found = [*outer, Token("array", head, line, items)]

    def _piece(self) -> None:
        """Pass one character of a word, or what is quoted or in parentheses."""
        text, at = self._text, self._at
        if text[at] == "\\":
            self._skip(2)
        elif text[at] in "'\"`":
            self._skip(self._closing(at) + 1 - at)
        elif text[at] == "$" and text[at + 1 : at + 2] in _PAIRS:
            self._skip(self._balanced(at + 1) + 1 - at)
        elif text[at] == "(":
            self._skip(self._balanced(at) + 1 - at)
        else:
            self._skip(1)

    def _closing(self, at: int) -> int:
        """The place of the quote that closes the one at `at`."""
        text, quote = self._text, self._text[at]
        end = at + 1
        while end < len(text):
            if text[end] == quote:
                return end
            if text[end] == "\\" and quote != "'":
                end += 1
            elif quote == '"' and text[end] == "$" and text[end + 1 : end + 2] in _PAIRS:
                end = self._balanced(end + 1)
            end += 1
        raise self._unclosed()

    def _balanced(self, at: int) -> int:
        """The place of the parenthesis or brace that closes the one at `at`."""
        text, depth = self._text, 0
        opening, closing = text[at], _PAIRS[text[at]]
        end = at
        while end < len(text):
            character = text[end]
            if character == "\\":
                end += 1
            elif character in "'\"" and not (character == "'" and opening == "{"):
                end = self._closing(end)
            depth += (character == opening) - (character == closing)
            if not depth:
                return end
            end += 1
        raise self._unclosed()

    def _unclosed(self) -> UsageError:
        return UsageError(f"{self._name}: a quotation is not closed; expected a launch line or a shell script")


_ENDS = ("fi", "then", "else", "elif", "do", "done", "esac", "}")


class _Parser:
    """Tokens and the one that comes next."""

    def __init__(self, tokens: Sequence[Token], name: str) -> None:
        self._tokens, self._name, self._at, self._depth = tokens, name, 0, 0

    def script(self) -> tuple[Node, ...]:
        """All commands; what closes nothing is passed over."""
        nodes = [*self._list()]
        while self._at < len(self._tokens):
            self._at += 1
            nodes += self._list()
        return tuple(nodes)

    @property
    def _next(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else Token("end", "", 0)

    def _take(self, *texts: str) -> bool:
        """Pass the next token if it is one of these."""
        holds = self._next.text in texts and self._next.kind in ("operator", "word")
        self._at += holds
        return holds

    def _list(self) -> Iterator[Node]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UsageError(f"{self._name}: branches are nested too deeply; expected at most {DEEPEST}")
        while self._next.kind != "end":
            if self._take("\n", ";", "&"):
                continue
            if self._next.text in (";;", ";&", ";;&", ")") and self._next.kind == "operator":
                break
            if self._next.text in _ENDS and self._next.kind == "word":
                break
            yield self._chain()
        self._depth -= 1

    def _chain(self) -> Node:
        node = self._pipe()
        while self._next.text in ("&&", "||") and self._next.kind == "operator":
            line, operator = self._next.line, self._next.text
            self._at += 1
            while self._take("\n"):
                pass
            node = Chain(line, node, operator, self._pipe())
        return node

    def _pipe(self) -> Node:
        nodes = [self._one()]
        while self._take("|", "|&"):
            while self._take("\n"):
                pass
            nodes.append(self._one())
        return nodes[0] if len(nodes) == 1 else Group(tuple(nodes), own_shell=True)

    def _one(self) -> Node:
        token = self._next
        if token.kind == "arithmetic":
            self._at += 1
            return Test(token.line, (), token.text)
        if token.kind == "word":
            for word, read in (("if", self._if), ("case", self._case), ("for", self._for), ("[[", self._test)):
                if token.text == word:
                    self._at += 1
                    return read(token.line)
            if self._take("while", "until"):
                return self._while(token)
            if self._take("!"):
                return Negated(self._one())
            if self._take("{"):
                return self._group("}")
            if (function := self._function()) is not None:
                return function
        if token.kind == "operator" and self._take("("):
            return self._group(")")
        return self._command()

    def _group(self, end: str) -> Group:
        body = tuple(self._list())
        self._take(end)
        self._passed()
        return Group(body, own_shell=end == ")")

    def _passed(self) -> None:
        """Pass redirections after a closed group."""
        while self._next.kind == "operator" and self._next.text in _REDIRECTIONS:
            self._at += 2

    def _function(self) -> Function | None:
        named = self._take("function")
        ahead = [token.text for token in self._tokens[self._at : self._at + 3]]
        if ahead[1:] == ["(", ")"]:
            self._at += 3
        elif named:
            self._at += 1
        else:
            return None
        while self._take("\n"):
            pass
        return Function(ahead[0] if ahead else "", (self._one(),))

    def _if(self, line: int) -> Branches:
        cases = []
        while True:
            start = self._at
            condition = tuple(self._list())
            shown = Condition(self._shown(start), condition)
            self._take("then")
            cases.append((shown, tuple(self._list())))
            if not self._take("elif"):
                break
        if self._take("else"):
            cases.append((Condition(f"else of {cases[0][0].text}"), tuple(self._list())))
        self._take("fi")
        self._passed()
        return Branches(line, tuple(cases))

    def _shown(self, start: int) -> str:
        texts = [
            f"(({token.text}))" if token.kind == "arithmetic" else token.text
            for token in self._tokens[start : self._at]
        ]
        return " ".join(" ".join(texts).split()).rstrip("; ")

    def _case(self, line: int) -> Branches:
        word = self._next.text
        self._at += 1
        while self._take("in", "\n", ";"):
            pass
        cases = []
        while self._next.kind != "end" and not self._take("esac"):
            patterns = []
            while self._next.kind != "end" and not self._take(")"):
                if self._next.kind == "word":
                    patterns.append(self._next.text)
                self._at += 1
            shown = f"{word} is {' or '.join(patterns)}"
            cases.append((Condition(shown, (), word, tuple(patterns)), tuple(self._list())))
            if not self._take(";;", ";&", ";;&", "\n", ";") and self._next.text != "esac":
                self._at += 1
            while self._take("\n"):
                pass
        self._passed()
        return Branches(line, tuple(cases))

    def _for(self, line: int) -> Loop:
        name = self._next.text
        words: list[Token] = []
        counted = self._next.kind == "arithmetic"
        self._at += 1
        while self._take("\n"):
            pass
        if self._take("in"):
            while self._next.kind == "word":
                words.append(self._next)
                self._at += 1
        while self._take(";", "\n"):
            pass
        self._take("do")
        body = tuple(self._list())
        self._take("done")
        self._passed()
        return Loop(line, "_" if counted else name, tuple(words), (), body)

    def _while(self, token: Token) -> Loop:
        condition = tuple(self._list())
        self._take("do")
        body = tuple(self._list())
        self._take("done")
        self._passed()
        if token.text == "until":
            condition = tuple(Negated(node) for node in condition)
        return Loop(token.line, "", (), condition, body)

    def _test(self, line: int) -> Test:
        words: list[Token] = []
        while self._next.kind != "end" and not self._take("]]"):
            words.append(self._next)
            self._at += 1
        return Test(line, tuple(token for token in words if token.text != "\n"))

    def _command(self) -> Command:
        line, document = self._next.line, None
        assigned: list[Token] = []
        words: list[Token] = []
        while self._next.kind != "end":
            token = self._next
            if token.kind == "operator":
                if token.text not in _REDIRECTIONS:
                    break
                self._at += 2
                continue
            self._at += 1
            if token.kind == "document":
                document = token.text
            elif not words and (token.kind == "array" or ASSIGNMENT.fullmatch(token.text)):
                assigned.append(token)
            else:
                words.append(token)
        if not assigned and not words and document is None:
            self._at += 1  # a parenthesis that closes nothing
        return Command(line, tuple(assigned), tuple(words), document)
