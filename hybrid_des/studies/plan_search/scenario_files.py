"""The scenario file of a plan found by a search."""

from pathlib import Path

from hybrid_des.scenario.composition import anchor
from hybrid_des.scenario.export import yaml_text
from hybrid_des.studies.plan_search.branch import (
    Candidate,
)
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.sweep.runner import with_case


def scenario_file(result: SearchResult, candidate: Candidate) -> str:
    """The text of a scenario file: the content of the searched file with the values of a plan.

    The paths in it are made absolute, so that it can be placed anywhere.
    """
    document = with_case(result.settings.document, candidate.case, "search")
    anchor(document, Path.cwd())
    values = {key: value for key, value in document.value.items() if value not in ({}, None)}
    values["name"] = f"{values.get('name', 'scenario')}, plan {candidate.number}"
    lines = ["# Found by hybrid-des search.", f"# {result.sentence}", ""]
    return "\n".join(lines) + yaml_text(values)


def with_values(result: SearchResult, *statuses: str) -> list[Candidate]:
    """The candidates of these statuses whose memory is known."""
    return [one for one in result.candidates if one.status in statuses and one.ordered]
