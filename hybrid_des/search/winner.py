"""The scenario file of a plan found by a search."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from hybrid_des.scenario.composition import anchor
from hybrid_des.search.branch import Candidate
from hybrid_des.search.result import SearchResult
from hybrid_des.sweep.runner import with_case


def scenario_file(found: SearchResult, candidate: Candidate) -> str:
    """The text of a scenario file: the content of the searched file with the values of a plan.

    The paths in it are made absolute, so that it can be placed anywhere.
    """
    document = with_case(found.settings.document, candidate.case, "search")
    anchor(document, Path.cwd())
    values = {key: value for key, value in document.value.items() if value not in ({}, None)}
    values["name"] = f"{values.get('name', 'scenario')}, plan {candidate.number}"
    lines = ["# Found by hybrid-des search.", f"# {found.sentence}", ""]
    return "\n".join(lines) + yaml.safe_dump(_plain(values), sort_keys=False, allow_unicode=True, width=120)


def _plain(value: Any) -> Any:
    """Numbers as YAML writes them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return value
