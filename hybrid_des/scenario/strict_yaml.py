"""Strict YAML: a file becomes plain values with their line numbers, or one clear line per problem.

Scalars follow YAML 1.2: `1e9` is a number, `no` and `12:30:45` are strings. Numbers are exact (`int` or `Fraction`).
Anchors, aliases, tags, duplicate keys, deep nesting, multiple documents and huge files are rejected; anchors and deep
nesting stop parsing immediately, before an alias is expanded or the stack overflows.
"""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import yaml

from hybrid_des.errors import LONGEST_SHOWN, ScenarioError, beside, one_line
from hybrid_des.files import open_file
from hybrid_des.options import describe

KeyPath = tuple[str | int, ...]

MAX_BYTES = 2**20
MAX_DEPTH = 32

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]{1,300}|0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_INFINITY = re.compile(r"([-+]?)(?:\.inf|\.Inf|\.INF)")
SURROGATE = re.compile("[\ud800-\udfff]")


class Parsed(NamedTuple):
    """A text as plain values, with their places."""

    value: object  # dict, list, str, int, Fraction, bool, None, or an infinite float
    places: dict[KeyPath, str]


@dataclass
class Document:
    """The content of a scenario file as plain values, with their places.

    Attributes:
        value: the values by key; below them dict, list, str, int, Fraction, bool, None, or an infinite float.
        source: name of the document in messages: the file as the user wrote it.
        places: the place of each path of keys and list positions, such as "a.yaml:14".
        notices: keys that changes of other keys have left out, each with a sentence that says so.
    """

    value: dict[str, object]
    source: str
    places: dict[KeyPath, str] = field(default_factory=dict)
    notices: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """The place of a path, or of the innermost known section around it."""
        around = (path[:length] for length in range(len(path), -1, -1))
        return next((self.places[one] for one in around if one in self.places), self.source)

    def forget(self, path: KeyPath) -> None:
        """Remove the places at and below a path."""
        self.places = {place: text for place, text in self.places.items() if place[: len(path)] != path}

    def problem(self, path: KeyPath, message: str) -> str:
        """One line: place, path, what is wrong."""
        return ": ".join(part for part in (self.place(path), dotted(path), message) if part)

    def error(self, path: KeyPath, message: str) -> ScenarioError:
        """An error with this as its only problem."""
        return ScenarioError([self.problem(path, message)])


def read(path: str | Path) -> Document:
    """Read a file.

    Raises:
        ScenarioError: it cannot be read, is not strict YAML, or holds no keys; one line per problem.
    """
    source = str(path)
    try:
        with open_file(path) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ScenarioError([f"{source}: no such file{beside(path)}"]) from None
    except IsADirectoryError:
        raise ScenarioError([f"{source}: a directory, not a scenario file"]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError([f"{source}: cannot be read: {reason}"]) from None
    if len(data) > MAX_BYTES:
        raise ScenarioError([f"{source}: larger than {MAX_BYTES // 2**20} MiB; not a scenario file"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScenarioError([f"{source}:{line}: not a text file in UTF-8 (byte 0x{data[error.start]:02x})"]) from None
    value, places = parse(text, source)
    if not isinstance(value, dict):
        what = "is empty" if value is None else f"contains {describe(value)}"
        raise ScenarioError([f"{source}: {what}; expected keys such as schedule: and workload:"])
    return Document(value, source, places)


def parse(text: str, source: str) -> Parsed:
    """Parse a text; `source` is its name in places.

    Raises:
        ScenarioError: it is not strict YAML; one line per problem.
    """
    try:
        loader = _Loader(text, source)
    except yaml.reader.ReaderError as error:
        where = f"{source}:{text.count(chr(10), 0, error.position) + 1}"
        what = f"control character 0x{ord(text[error.position]):02x}"
        raise ScenarioError([f"{where}: not valid YAML: {what}"]) from None
    value: object = None
    try:
        root = loader.get_node() if loader.check_node() else None
        if loader.check_node():
            loader.complain(loader.next_event().start_mark, "a second document starts; a file holds one scenario")
        if root is not None and not loader.problems:
            value = loader.value(root, ())
    except yaml.MarkedYAMLError as error:
        loader.complain(error.problem_mark or error.context_mark, f"not valid YAML: {error.problem or error.context}")
    if loader.problems:
        raise ScenarioError(loader.problems)
    return Parsed(value, loader.places)


def parse_value(text: str, where: str) -> object:
    """The plain value of a text that stands in one line, such as an override; `where` is its place in problems.

    Raises:
        ScenarioError: it is not strict YAML; one line per problem.
    """
    try:
        return parse(text, where).value
    except ScenarioError as error:
        raise ScenarioError([problem.replace(f"{where}:1: ", f"{where}: ", 1) for problem in error.problems]) from None


class _Mark(Protocol):
    """A place in a text, as PyYAML has it."""

    line: int


class _Loader(yaml.SafeLoader):
    """Converts YAML nodes to plain values, rejecting input that could overflow the stack or mislead."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.source = source
        self.problems: list[str] = []
        self.places: dict[KeyPath, str] = {(): f"{source}:1"}
        self._depth = 0

    def complain(self, mark: _Mark | None, message: str) -> None:
        """Record a problem at a PyYAML mark."""
        self.problems.append(f"{self._place(mark)}: {message}")

    def next_event(self) -> yaml.NodeEvent:
        """Peek at the next event."""
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        return event

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node and its children.

        Raises:
            ScenarioError: it is nested too deeply, an alias, or the target of one.
        """
        event = self.next_event()
        if event.anchor is not None:
            self._stop(event, "YAML anchors and aliases are not supported; repeat the value where it is used")
        if isinstance(event, yaml.CollectionStartEvent) and self._depth >= MAX_DEPTH:
            self._stop(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent) and event.tag is not None:
            self.complain(event.start_mark, f"the YAML tag {event.tag} is not supported; write the plain value")
        if isinstance(event, yaml.ScalarEvent) and SURROGATE.search(event.value):
            self.complain(event.start_mark, "an unpaired surrogate is not a valid character")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _stop(self, event: yaml.Event, message: str) -> NoReturn:
        self.complain(event.start_mark, message)
        raise ScenarioError(self.problems)

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        """The plain value of a node at `path`; records the places of its children."""
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style else _scalar(node.value)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        items = []
        for number, item in enumerate(node.value):
            self.places[*path, number] = self._place(item.start_mark)
            items.append(self.value(item, (*path, number)))
        return items

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.complain(key.start_mark, "a key must be a scalar, not a list or mapping")
                continue
            here = (*path, key.value)
            if key.value in values:
                first = self.places[here].rpartition(":")[2]
                self.complain(key.start_mark, f"{dotted(here)}: given twice; first at line {first}")
            self.places.setdefault(here, self._place(key.start_mark))
            values[key.value] = self.value(item, here)
        return values

    def _place(self, mark: _Mark | None) -> str:
        return f"{self.source}:{mark.line + 1 if mark else 1}"


def _scalar(text: str) -> object:
    """The value of a plain scalar in YAML 1.2's core schema; implausibly long numbers stay strings."""
    if _NULL.fullmatch(text):
        return None
    if match := _BOOL.fullmatch(text):
        return match.group(1) is not None
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text) and len(text) <= 300:
        return Fraction(text)
    if match := _INFINITY.fullmatch(text):
        return float(f"{match.group(1)}inf")
    return text


def dotted(path: KeyPath) -> str:
    """Format a path: `workload.forward[2]`, with long keys cut short."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{one_line(str(part), LONGEST_SHOWN)}" for part in path)
    return text.removeprefix(".")
