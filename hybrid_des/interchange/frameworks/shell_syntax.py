"""The syntax of a shell script, as tree-sitter's grammar of bash has it; nothing is expanded here.

Grammar: github.com/tree-sitter/tree-sitter-bash. Its trees hold damaged text too, so that what is no shell is read as
far as it goes: the reader of its commands says what it lacks.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Query, QueryCursor

from hybrid_des.errors import UsageError

BASH = Language(tree_sitter_bash.language())
MISREAD = Query(BASH, '(command (variable_assignment) @assignment) (concatenation "$" @dollar)')
DAMAGED = "ERROR"
REDIRECTIONS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
WORDS = frozenset((
    "-", "ansi_c_string", "arithmetic_expansion", "brace_expression", "command_name", "command_substitution",
    "concatenation", "expansion", "extglob_pattern", "number", "process_substitution", "raw_string", "regex",
    "simple_expansion", "string", "test_operator", "translated_string", "variable_name", "word",
))  # fmt: skip
_UNQUOTED = re.compile(  # lists as values of flags, such as ([0]*3+[1]*58), and what is to be filled in, such as <path>
    r"(?<=[\s=])(?:\([\[\]0-9*+,()]+\)|<[A-Za-z](?:[^<>\n|;&]*[^<>\s|;&])?>(?![\w./$]))"
)


class Condition(NamedTuple):
    """What decides on a branch: commands, or a word and its patterns; neither for `else`."""

    text: str
    commands: Sequence[Node] = ()
    word: str | None = None
    patterns: Sequence[str] = ()

    @property
    def otherwise(self) -> bool:
        """Whether it is that of `else`."""
        return self.word is None and not self.commands


def parse(text: str, name: str, line: int = 1) -> Node:
    """The tree of a script.

    Args:
        text: the script, or a line of it.
        name: where it comes from, for errors.
        line: the number of its first line.

    Raises:
        UsageError: a quotation is not closed.
    """
    lines = "\n" * (line - 1) + text.replace("\r\n", "\n")
    root = _tree(lines)
    if root.has_error:
        root = _tree(_UNQUOTED.sub(lambda match: shlex.quote(match[0]), lines))
    if root.has_error and _is_unclosed(root):
        raise UsageError(f"{name}: a quotation is not closed; expected a launch line or a shell script")
    return root


def _tree(text: str) -> Node:
    """The tree of a text that is repaired where the grammar is wrong, until nothing is left to repair."""
    repaired = text.encode(errors="replace")
    while True:
        source = repaired
        root = Parser(BASH).parse(source).root_node
        misread = chain(*QueryCursor(MISREAD).captures(root).values())
        for node in sorted(misread, key=lambda node: -node.start_byte):
            before, rest = source[: node.start_byte], repaired[node.start_byte :]
            repaired = before + (_ended(node, rest) if node.type == "variable_assignment" else _braced(rest))
        if repaired == source:
            return root


def _ended(node: Node, rest: bytes) -> bytes:
    """Several assignments in one line, which the grammar takes for the environment of the command in the next one."""
    size, after = node.end_byte - node.start_byte, node.next_sibling
    between = rest[size : after.start_byte - node.start_byte] if after is not None else b""
    return rest[:size] + b";" + rest[size:] if b"\n" in between.replace(b"\\\n", b"") else rest


def _braced(rest: bytes) -> bytes:
    """A variable within a word, such as the second of $A/$B/c, which the grammar does not know without braces."""
    return re.sub(rb"^\$(\w+)", rb"${\1}", rest)


def _is_unclosed(node: Node) -> bool:
    """Whether a quotation or the output of a command has no end."""
    if node.type == DAMAGED and text_of(node).lstrip().startswith(('"', "'", "`")):
        return True
    if node.is_missing and node.type in ('"', "'", "`", ")"):
        return node.parent is not None and node.parent.type in ("string", "command_substitution")
    return any(child.has_error and _is_unclosed(child) for child in node.children)


def damaged_in(node: Node) -> Iterator[Node]:
    """The outermost parts that are no shell as the grammar has it."""
    if node.type == DAMAGED or node.is_missing:
        yield node
    elif node.has_error:
        yield from chain.from_iterable(map(damaged_in, node.children))


def text_of(node: Node) -> str:
    """A part of a script as it is written."""
    return (node.text or b"").decode()


def shown(nodes: Sequence[Node]) -> str:
    """A condition as it is written, in one line."""
    return " ".join(" ".join(map(text_of, nodes)).replace("\\\n", " ").split())


def line_of(node: Node) -> int:
    """The number of its first line."""
    return node.start_point.row + 1


def field(node: Node, name: str) -> Node:
    """The child in a role that the grammar requires, such as the body of a loop."""
    child = node.child_by_field_name(name)
    assert child is not None
    return child


def unredirected(node: Node) -> Node:
    """A command without its redirections."""
    body = node.child_by_field_name("body") if node.type == "redirected_statement" else None
    return node if body is None else body


def is_arithmetic(node: Node) -> bool:
    """Whether it is `(( … ))`."""
    return node.type == "compound_statement" and node.children[0].type == "(("


def is_test(node: Node) -> bool:
    """Whether a command only says whether something holds."""
    node = unredirected(node)
    if node.type == "command":
        return words_of(node)[:1] in (["test"], ["true"], ["false"], [":"])
    return node.type == "test_command" or is_arithmetic(node)


def words_of(node: Node) -> list[str]:
    """The words of a command, with their quotes; the grammar counts those after a redirection as parts of it."""
    return [word for child in node.children for word in _words_in(child)]


def _words_in(child: Node) -> list[str]:
    if child.type in WORDS:
        return [text_of(child)]
    if child.type == DAMAGED:
        return text_of(child).split()
    if child.type == "file_redirect":
        return words_of(child)[1:]
    return words_of(child) if child.type == "heredoc_redirect" else []


def document_of(node: Node) -> str | None:
    """The text of a command's here-document."""
    redirects = [child for child in node.children if child.type == "heredoc_redirect"]
    bodies = [text_of(part) for one in redirects for part in one.children if part.type == "heredoc_body"]
    return bodies[0] if bodies else None


def written_to(node: Node) -> str | None:
    """The file that a command's output is written to, as it is written."""
    here = [part for child in node.children if child.type == "heredoc_redirect" for part in child.children]
    redirects = [one for one in (*node.children, *here) if one.type == "file_redirect" and len(one.children) > 1]
    return next((text_of(one.children[-1]) for one in redirects if text_of(one.children[0]) in (">", ">>", ">|")), None)


def statements_in(node: Node) -> Iterator[Node]:
    """The commands in a group, a loop or a file; of a here-document, those that its text is sent to."""
    passed = (*WORDS, *REDIRECTIONS, "comment", "heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor")
    return (child for child in node.named_children if child.type not in passed)


def parts_of_test(node: Node) -> list[str]:
    """The words between the brackets of a test."""
    parts: list[str] = []
    for child in node.children:
        whole = not child.type.endswith("_expression") or child.children[0].type == "-"  # of a number
        parts += [text_of(child)] if whole else parts_of_test(child)
    return parts


def cases_of(node: Node) -> list[tuple[Condition, Sequence[Node]]]:
    """The conditions of `if` and `case`, each with its commands."""
    if node.type == "case_statement":
        word = text_of(field(node, "value"))
        return [_case(word, item) for item in node.children if item.type == "case_item"]
    cases: list[tuple[Condition, Sequence[Node]]] = []
    for clause in (node, *(child for child in node.children if child.type in ("elif_clause", "else_clause"))):
        commands = [child for child in statements_in(clause) if child.type not in ("elif_clause", "else_clause")]
        if clause.type == "else_clause":
            cases.append((Condition(f"else of {cases[0][0].text}"), commands))
            continue
        then = next((child.start_byte for child in clause.children if child.type == "then"), clause.end_byte)
        decides = [child for child in commands if child.start_byte < then]
        cases.append((Condition(shown(decides), decides), commands[len(decides) :]))
    return cases


def _case(word: str, item: Node) -> tuple[Condition, Sequence[Node]]:
    patterns = [text_of(value) for value in item.children_by_field_name("value")]
    return Condition(f"{word} is {' or '.join(patterns)}", (), word, patterns), [*statements_in(item)]
