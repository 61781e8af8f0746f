"""Files of mistakes: what is wrong, and what is said about it."""

from pathlib import Path
from typing import Any

import pytest
import yaml


def cases(file: Path) -> list[Any]:
    """A group and one of its cases as parameters, case by case."""
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))  # libyaml refuses escaped surrogates
    return [
        pytest.param(group, case, id=f"{group['about']}, {case.get('command') or case.get('change')}"[:70])
        for group in groups
        for case in group["cases"]
    ]


def as_said(lines: list[str], said: str | list[str]) -> bool:
    """Whether just these lines are there; one that begins or ends with … is a part of its line."""
    wanted = [said] if isinstance(said, str) else said
    return len(lines) == len(wanted) and all(map(_fits, lines, wanted))


def _fits(line: str, said: str) -> bool:
    part = said.strip("…")
    begins, ends = said[0] == "…" or line.startswith(part), said[-1] == "…" or line.endswith(part)
    return part in line and begins and ends
