"""Settings that a run printed at its start, each with its line.

- a mapping as Python prints it, over many lines: {'actor_rollout_ref': {'rollout': {'n': 16, …; or a call, Config(a=1)
- YAML
- Megatron-LM's arguments: lines of `  global_batch_size ............ 512` below `---- arguments ----`
- attributes of transformers' arguments, a line each: `GRPOConfig(`, `num_generations=8,`, …
- a command, with values by path (`trainer.nnodes=8`) or flags (`--rollout-batch-size 32`)

Of several that say the same, the largest counts: the configuration, which has what the command says, too.
"""

import ast
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from hybrid_des.files import LOADER
from hybrid_des.interchange.jobs.mappings import MOST_KEYS, PROGRAM, flattened, mapping_of_words, plain_key, scalar
from hybrid_des.interchange.jobs.printed import literal, runs_of_yaml
from hybrid_des.interchange.loops.log_lines import Line
from hybrid_des.units import grouped_by

FEWEST = 4  # values of a configuration
_MOST_BLOCK = 2_000  # lines of a configuration
_DOTS = re.compile(r"\s*([a-z]\w*) \.{2,} (.*?)\s*")
_ATTRIBUTE = re.compile(r"\s*(\w+)=(.*?),?\s*")
_CLASS = re.compile(r".*?\b\w*Config\(\s*|.*?\b\w*Arguments\(\s*")
_COMMAND = re.compile(r"\b(?:python3?|torchrun|accelerate launch|ray job submit|uv run|deepspeed)\b|^\s*trl \w+")
_MEMBER = re.compile(r"<?[A-Z]\w*\.([a-z]\w*)(?:: .*>)?")
_OBJECT = re.compile(r"<[^<>\n]*>")


class Setting(NamedTuple):
    """A value, and the line where it is; 0 if it is not in a log."""

    value: Any
    line: int


Settings = dict[str, Setting]


def settings_in(lines: Sequence[Line]) -> Settings:
    """All settings of the start of a log, by dotted key."""
    by_writer = grouped_by(lines, lambda line: line.writer)
    settings: Settings = {}
    readers = (_commands, _arguments, _attributes, _blocks, _mappings)
    blocks = (block for own in by_writer.values() for read in readers for block in read(own))
    for block in sorted((block for block in blocks if len(block) >= FEWEST), key=len):
        settings.update(block)
    values = flattened({key: setting.value for key, setting in settings.items()}, "settings")  # ${a.b} has a value
    return {key: setting._replace(value=values.get(key, setting.value)) for key, setting in settings.items()}


def _commands(lines: Sequence[Line]) -> Iterator[Settings]:
    """What commands say, with lines that a backslash continues."""
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not _COMMAND.search(line.text):
            continue
        words = [line.text]
        while words[-1].rstrip().endswith("\\") and at < len(lines):
            words.append(lines[at].text)
            at += 1
        try:
            given = shlex.split(" ".join(word.rstrip().rstrip("\\") for word in words), comments=False)
        except ValueError:  # a quotation that is not closed
            continue
        flat = mapping_of_words(given)
        yield {key: Setting(value, line.number) for key, value in flat.items() if "$" not in str(value)}


def _arguments(lines: Sequence[Line]) -> Iterator[Settings]:
    """Megatron-LM's arguments (megatron/training/arguments.py, _print_args)."""
    block: Settings = {}
    for line in lines:
        if match := _DOTS.fullmatch(line.text):
            block[match[1]] = Setting(literal(match[2], _MEMBER), line.number)
    yield block


def _attributes(lines: Sequence[Line]) -> Iterator[Settings]:
    """Arguments as transformers prints them (TrainingArguments.__str__)."""
    inside, block = False, Settings()
    for line in lines:
        if not inside:
            inside, block = _CLASS.fullmatch(line.text) is not None, {}
        elif match := _ATTRIBUTE.fullmatch(line.text):
            block[plain_key(match[1])] = Setting(literal(match[2], _MEMBER), line.number)
        else:
            inside = False
            yield block


def _blocks(lines: Sequence[Line]) -> Iterator[Settings]:
    """Runs of lines that are YAML."""
    for block in runs_of_yaml(lines, lambda line: line.text, FEWEST):
        try:
            node = yaml.compose("\n".join(line.text for line in block), LOADER)
            yield dict(itertools.islice(_nodes(node, "", block), MOST_KEYS // 4))  # aliases can make a short text huge
        except (yaml.YAMLError, ValueError, RecursionError):
            continue


def _nodes(node: Any, at: str, block: Sequence[Line]) -> Iterator[tuple[str, Setting]]:
    """The values of a mapping of YAML by dotted key."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        path = f"{at}{plain_key(str(key.value))}"
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _nodes(value, f"{path}.", block)
        elif isinstance(value, yaml.ScalarNode):
            yield path, Setting(scalar(value.value), block[key.start_mark.line].number)


def _mappings(lines: Sequence[Line]) -> Iterator[Settings]:
    """Mappings and calls as Python prints them."""
    at = 0
    while at < len(lines):
        start = _start(lines[at].text)
        at += 1
        if start is None:
            continue
        texts = [start]
        depth = _depth(start)
        end = at
        while depth > 0 and end < len(lines) and len(texts) < _MOST_BLOCK:
            texts.append(lines[end].text)
            depth += _depth(lines[end].text)
            end += 1
        if depth == 0 and (block := _of_python(texts, lines[at - 1 : end])):
            yield block
            at = end


def _start(text: str) -> str | None:
    """Where a mapping or a call with values begins in a line."""
    match = re.search(r"(?:[A-Z]\w*\(\w+=)+(?:\{|'|\d)|\{\s*['\"][\w.-]+['\"]\s*:", text)
    return text[match.start() :] if match else None


def _depth(text: str) -> int:
    """How many brackets a line leaves open, those in quotations left out."""
    plain = re.sub(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", "", text)
    return sum(map(plain.count, "([{")) - sum(map(plain.count, ")]}"))


def _of_python(texts: Sequence[str], lines: Sequence[Line]) -> Settings:
    try:
        text = _OBJECT.sub("None", "\n".join(texts))
        tree = ast.parse(text[: max(map(text.rfind, "})")) + 1], mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return dict(_members(tree.body, "", lines))


def _members(node: ast.expr, at: str, lines: Sequence[Line]) -> Iterator[tuple[str, Setting]]:
    """The values of a mapping or a call by dotted key."""
    for key, value in _pairs(node):
        path = f"{at}{plain_key(key)}"
        if [*_pairs(value)]:
            yield from _members(value, f"{path}.", lines)
        else:
            yield path, Setting(_evaluated(value), lines[value.lineno - 1].number)


def _pairs(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value
    elif isinstance(node, ast.Call):
        yield from ((one.arg, one.value) for one in node.keywords if one.arg)


def _evaluated(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, RecursionError):
        return ast.unparse(node)


def without_program(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Plain values by dotted key, without the module that a command starts."""
    return {key: setting.value for key, setting in settings.items() if not key.startswith(PROGRAM)}
