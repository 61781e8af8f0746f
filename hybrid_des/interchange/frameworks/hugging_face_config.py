"""The settings of a `config.json`, of which those that were read are remembered.

A setting that makes other layers and that nothing reads is an error; others that nothing reads are named.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, UsageError, few, one_line
from hybrid_des.interchange.frameworks import hugging_face_tables as tables
from hybrid_des.options import describe

_NAMES = {name for table in (tables.SIZES, tables.EXPERTS, tables.LATENT) for names in table.values() for name in names}


class Config:
    """A configuration."""

    def __init__(self, values: Mapping[str, Any], outer: Mapping[str, Any], name: str) -> None:
        self.values, self.outer, self.name = values, outer, name
        self.defaults: Mapping[str, Any] = {}
        self._read: set[str] = {"model_type", "tie_word_embeddings"}
        self._wrong: list[str] = []

    def take_defaults(self, settings: Mapping[str, Any]) -> None:
        """Let settings count that a family has where they are missing."""
        self.defaults = {name: value for name, value in settings.items() if name not in self.values}
        self.values = {**self.defaults, **self.values}

    def size(self, names: Sequence[str]) -> int | None:
        """The first of these settings that is there.

        Raises:
            UsageError: it is no whole number.
        """
        self._read |= {*names}
        given = [(name, self.values[name]) for name in names if self.values.get(name) is not None]
        for name, value in given:
            same = len({*value}) == 1 if isinstance(value, list) and all(type(one) is int for one in value) else False
            number = value[0] if same else value
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise UsageError(f"{self.name}: {name}: expected a whole number, found {describe(value)}")
            if number != (first := given[0][1]) and type(first) is int:
                self._wrong.append(f"{given[0][0]}: {first}, but {name}: {number}")
            if name == given[0][0]:
                chosen = number
        return chosen if given else None

    def text(self, name: str) -> str:
        """A word."""
        self._read.add(name)
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def on(self, *names: str) -> bool:
        """Whether one of these switches is on."""
        self._read |= {*names}
        return any(self.values.get(name) is True for name in names)

    def off(self, *names: str) -> bool:
        """Whether one of these switches is off in so many words."""
        self._read |= {*names}
        return any(self.values.get(name) is False for name in names)

    def listed(self, name: str) -> list[Any] | None:
        """A list; None without one."""
        self._read.add(name)
        value = self.values.get(name)
        return value if isinstance(value, list) else None

    def pass_over(self, *names: str) -> None:
        """Say of settings that they are understood."""
        self._read |= {*names}

    def understand_not(self, line: str) -> None:
        """Keep a line about a setting that was not understood."""
        self._wrong.append(line)

    def tied(self, family: tables.Family | None) -> bool:
        """Whether both ends share a matrix; what stands beside the language model counts too."""
        for values in (self.values, self.outer):
            if isinstance(stated := values.get("tie_word_embeddings"), bool):
                return stated
        return family is not None and family.tied

    def check_family(self, family: str) -> None:
        """Refuse a family whose layers no setting describes.

        Raises:
            UsageError: it is one; the message has the settings that make its layers.
        """
        if family not in tables.REFUSED and not self.on("is_encoder_decoder"):
            return
        why = tables.REFUSED.get(family, "it is an encoder with a decoder")
        others = [line for line in self._others() if line.partition(":")[0] not in _NAMES]
        beside = f" ({few(others)})" if others else ""
        shown = one_line(family, LONGEST_SHOWN)
        raise UsageError(f"{self.name}: model_type: {shown}: {why}, which are not described here{beside}")

    def check(self) -> None:
        """Refuse settings that make other layers and that nothing has read.

        Raises:
            UsageError: there are such; the message names them.
        """
        if others := self._others():
            raise UsageError(f"{self.name}: {few(others)}: makes other layers than those known here")

    def _others(self) -> list[str]:
        return [
            f"{name}: {shown(value)}"
            for name, value in self.values.items()
            if name not in self._read and name not in tables.IDLE
            if tables.changes_layers(name) and not tables.is_off(name, value)
        ]

    def rest(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The settings that were not understood, and those without effect."""
        both = {**self.outer, **self.values}
        parts = [name for name, value in both.items() if isinstance(value, dict) and name.endswith("_config")]
        parts = [name for name in parts if name != "quantization_config" and name not in self._read]
        left = [name for name in self.values if name not in self._read and name not in parts]
        absent = [name for name in left if self.values[name] is None or self.values[name] in ([], {}, "")]
        neutral = [name for name in left if tables.changes_layers(name) and tables.is_off(name, self.values[name])]
        idle = tuple(name for name in left if name in tables.IDLE or name in absent or name in neutral)
        lines = [f"{name}: {shown(self.values[name])}" for name in left if name not in idle]
        lines += [f"{name}: another part of the model, left out" for name in parts]
        return (*lines, *self._wrong), idle


def shown(value: Any) -> str:
    """A value as a message has it."""
    if isinstance(value, list | dict):
        return one_line(json.dumps(value), LONGEST_SHOWN)
    return describe(value)
