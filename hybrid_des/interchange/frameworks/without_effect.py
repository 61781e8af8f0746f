"""Settings of other programs that change nothing about a step: `without_effect.yaml`."""

from importlib.resources import files

import yaml


def without_effect(program: str) -> frozenset[str]:
    """The names of a program's settings that have no effect on the time or the memory of a step."""
    text = (files(__package__) / "without_effect.yaml").read_text(encoding="utf-8")
    return frozenset(map(str, yaml.safe_load(text)[program]))
