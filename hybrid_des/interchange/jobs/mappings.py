"""A configuration of any program as one mapping from dotted keys to values: YAML, TOML, JSON, output, or a launch line.

Of a launch line, these are its flags (`--training.seq_len 8192`), values by path (`trainer.nnodes=2`) and choices
(`activation-checkpoint:full`). In keys, dashes are underscores; elements of a list that name their class have it in
theirs (`callbacks.Timing.period`). References of OmegaConf to another key (`${policy.precision}`) have its value, those
to the environment (`${oc.env:NAME,8}`, `${NAME:8}`) their default.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.files import LOADER
from hybrid_des.interchange.frameworks.launch_line import flags_of
from hybrid_des.interchange.frameworks.shell_script import read_script
from hybrid_des.interchange.frameworks.shell_values import BY_PATH
from hybrid_des.interchange.jobs.printed import printed_in

Flat = dict[str, Any]
PROGRAM = "program."  # in front of the Python module that a command starts
LISTS = ("lora_target_modules", "lora_target")  # flags that take several words
MOST_KEYS = 20_000  # aliases of YAML can make a short text huge
DEEPEST = 32
_CHOICE = re.compile(r"([a-z]+(?:[-_.][a-z]+)+):([a-z][a-z-]*)")  # of tyro: activation-checkpoint:full
_REFERENCE = re.compile(r"\$\{(?:oc\.env:)?([\w.]+)(?:[:,]\s*([^{}]*))?\}")


def flat_mapping(text: str, name: str) -> Flat:
    """The values of a text by dotted key.

    Args:
        text: YAML, TOML or JSON, output of a program that has one of them, or a launch line or script.
        name: the path that it comes from, beside which files that a script sources are looked for.

    Raises:
        UsageError: it is none of these, is nested too deeply or has too many keys.
    """
    values, why = _parsed(text)
    if values is None and not text.startswith("#!"):  # a script may write a configuration of another program
        values = printed_in(text)
    if values is None:
        flat = _started(text, name)
        if not flat:
            raise UsageError(f"{name}: expected YAML, TOML, JSON, or a launch line with flags{why}")
        return flat
    return flattened(values, name)


def flattened(values: Mapping[str, Any], name: str) -> Flat:
    """The values of nested mappings by dotted key.

    Raises:
        UsageError: they are nested too deeply or have too many keys.
    """
    flat: Flat = {}
    for key, value in _items(values, "", name):
        flat[key] = value
        if len(flat) > MOST_KEYS:
            raise UsageError(f"{name}: more than {MOST_KEYS:,} keys; expected the configuration of a job")
    return {key: _resolved(value, flat) for key, value in flat.items()}


def mapping_of_words(words: Sequence[str]) -> Flat:
    """The flags and the values by path among the words of a command, with what it starts.

    This is the Python module, or the `task` of NeMo's `nemo llm pretrain`.
    """
    flat: Flat = {f"{PROGRAM}{name}": True for name in itertools.islice(_modules(words), 1)}
    tasks = [task for name, _, task in zip(words, words[1:], words[2:], strict=False) if name == "nemo"]
    flat |= {"task": tasks[0]} if tasks else {}
    flags = {plain_key(flag[2:]): given for flag, given in flags_of(words).items()}
    flat |= {key: scalar(given[0]) if given else True for key, given in flags.items()}
    flat |= {key: [*given] for key, given in flags.items() if key in LISTS and len(given) > 1}
    matches = (BY_PATH.fullmatch(word) or _CHOICE.fullmatch(word) for word in words)
    return flat | {plain_key(match[1]): scalar(match[2]) for match in matches if match}


def _modules(words: Sequence[str]) -> Iterator[str]:
    named = (word for before, word in itertools.pairwise(words) if before == "-m")
    return (name for name in named if not name.startswith("torch.distributed"))


def plain_key(key: str) -> str:
    """A key with underscores in place of dashes, and none in front."""
    return key.lstrip("-").replace("-", "_")


def _parsed(text: str) -> tuple[Mapping[str, Any] | None, str]:
    """The mapping of a text, or None and why there is none."""
    why = ""
    for read in (json.loads, tomllib.loads, lambda given: yaml.load(given, LOADER)):
        try:
            values = read(text)
        except yaml.MarkedYAMLError as error:
            line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
            why = f"; as YAML: {line}{one_line(error.problem or '', LONGEST_SHOWN * 2)}"
        except (ValueError, RecursionError, yaml.YAMLError):
            continue
        else:
            if isinstance(values, dict) and values:
                return values, ""
    return None, why


def _items(values: Mapping[Any, Any], at: str, name: str) -> Iterator[tuple[str, Any]]:
    """The values of nested mappings by dotted key."""
    if at.count(".") > DEEPEST:
        raise UsageError(f"{name}: {one_line(at, LONGEST_SHOWN)}: nested too deeply")
    for key, value in values.items():
        path = f"{at}{plain_key(str(key))}"
        if isinstance(value, dict) and value:
            yield from _items(value, f"{path}.", name)
        elif isinstance(value, list) and value and all(isinstance(one, dict) and "_target_" in one for one in value):
            yield from _items({class_name(str(one["_target_"])): one for one in value}, f"{path}.", name)
        else:
            yield path, value


def class_name(target: str) -> str:
    """A class without its module, and with the class around it: `FullAC.Config`."""
    parts = target.split(".")
    return ".".join(parts[-2:] if parts[-1] == "Config" else parts[-1:])


def _resolved(value: Any, flat: Flat) -> Any:
    """A value with what it refers to; as it is if that is not there."""
    for _ in range(DEEPEST):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            break
        if match[2] is None and match[1] not in flat:
            break
        value = scalar(match[2]) if match[2] is not None else flat[match[1]]
    return value


def scalar(word: str) -> Any:
    """A word as YAML reads it."""
    try:
        return yaml.load(word, LOADER)
    except (yaml.YAMLError, ValueError):
        return word


def _started(text: str, name: str) -> Flat:
    """What the command with the most flags says, the last of several."""
    script = read_script(text, name, {}, is_file=True)
    commands = [mapping_of_words(command.words) for command in script.started]
    return max(reversed(commands), key=len, default={}) or mapping_of_words(script.assigned)
