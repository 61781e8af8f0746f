"""The scenario file of a plan found by a search."""

from hybrid_des.studies.plan_search.branch import Candidate
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.sweep.runner import file_text, with_case


def scenario_file(result: SearchResult, candidate: Candidate) -> str:
    """The text of a scenario file: the content of the searched file with the values of a plan.

    The paths in it are made absolute, so that it can be placed anywhere.
    """
    document = with_case(result.settings.document, candidate.case, "search")
    document.value["name"] = f"{document.value.get('name') or 'scenario'}, plan {candidate.number}"
    return f"# Found by hybrid-des search.\n# {result.sentence}\n{file_text(document)}"


def with_values(result: SearchResult, *statuses: str) -> list[Candidate]:
    """The candidates of these statuses whose memory is known."""
    return [one for one in result.candidates if one.status in statuses and one.ordered]
