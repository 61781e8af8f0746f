"""Configurations in the output of a program: the JSON or YAML that it prints among its messages.

Of lines that several ranks wrote, with `[rank0]:`, `[default0]:` or `0:` in front, those of one are read together.
Megatron-Bridge prints what differs from defaults (ConfigContainer.log_non_default_values):

    [model] Non-default values (vs Mcore TransformerConfig):
      num_layers: 32  (Mcore default: 0)
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import yaml

from hybrid_des.files import LOADER
from hybrid_des.units import collected

FEWEST = 8  # values of a configuration
_RANK = re.compile(r"((?:\[(?:rank|default)\d+\]:)+|\d+: |)(.*)")
_OBJECT = re.compile(r"(?m)(?:^|(?<=: )|(?<= ))\{ *$")
LineOf = TypeVar("LineOf")
_LINE_OF_YAML = re.compile(r" *(?:- .*|-|[\w./\"'-]+:(?: .*)?)")
_SECTION = re.compile(r"\[(\w+)\](?: Non-default values.*)?:")
_ENTRY = re.compile(r"  (\w+): (.*?)(?:  \(Mcore default: .*\))?")
_MEMBER = re.compile(r"<\w+\.(\w+): .*>")


def printed_in(text: str) -> Mapping[str, Any] | None:
    """The largest configuration that a text has among other lines; None without one."""
    lines = ((_RANK.fullmatch(line), line) for line in text.splitlines())
    groups = collected((match[1], match[2]) if match else ("", line) for match, line in lines)
    printed = (one for lines in groups.values() for one in (*_objects(lines), *_blocks(lines), _summary(lines)))
    return max((one for one in printed if _size(one) >= FEWEST), key=_size, default=None)


def _objects(lines: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Objects of JSON that begin at the end of a line."""
    text = "\n".join(lines)
    for match in _OBJECT.finditer(text):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        yield value


def _blocks(lines: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Runs of lines that are YAML."""
    for block in runs_of_yaml(lines, str, FEWEST):
        try:
            value = yaml.load("\n".join(block), LOADER)
        except (yaml.YAMLError, ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def runs_of_yaml(lines: Iterable[LineOf], text: Callable[[LineOf], str], fewest: int) -> Iterator[list[LineOf]]:
    """Runs of at least so many lines whose texts may be a configuration in YAML."""
    runs = groupby(lines, lambda line: bool(_LINE_OF_YAML.fullmatch(text(line))))
    return (block for is_yaml, run in runs if is_yaml and len(block := [*run]) >= fewest)


def _summary(lines: Sequence[str]) -> Mapping[str, Any]:
    """Sections in brackets, with values as Python writes them."""
    sections: dict[str, dict[str, Any]] = {}
    section: dict[str, Any] | None = None
    for line in lines:
        if match := _SECTION.fullmatch(line):
            section = sections.setdefault(match[1], {})
        elif section is not None and (match := _ENTRY.fullmatch(line)):
            section[match[1]] = literal(match[2], _MEMBER)
        elif line.strip():
            section = None
    return sections


def literal(text: str, member: re.Pattern[str]) -> Any:
    """A value from how Python shows it, such as 'RMSNorm', or the name of a member, such as <AttnBackend.flash: 1>."""
    if match := member.fullmatch(text):
        return match[1]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _size(value: Any) -> int:
    """The number of values inside of nested mappings."""
    return sum(map(_size, value.values())) if isinstance(value, dict) else 1
