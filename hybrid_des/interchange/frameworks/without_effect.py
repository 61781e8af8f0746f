"""Settings of other programs that change nothing about a step: `without_effect.yaml`."""

from pathlib import Path

from hybrid_des.files import read_catalogue


def without_effect(program: str) -> frozenset[str]:
    """The names of a program's settings that have no effect on the time or the memory of a step."""
    return frozenset(map(str, read_catalogue(Path(__file__).with_name("without_effect.yaml"))[program]))
