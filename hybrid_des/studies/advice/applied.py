"""The file of a line of advice, from which the next question starts."""

from __future__ import annotations

from hybrid_des.analysis.advice import AdviceLine
from hybrid_des.scenario.loading import Source, document_of
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.studies.sweep.runner import file_text, with_case


def applied(source: Source, line: AdviceLine, overrides: Overrides = ()) -> str:
    """The text of a scenario file: the content of a file with what a line sets.

    Paths in it are made absolute, so that it can be placed anywhere.

    Args:
        source: the scenario that advice was asked on, the path of its file, or a mapping.
        line: of the advice.
        overrides: those with which advice was asked.

    Raises:
        ScenarioError: the source or an override is wrong.

    Example:
        >>> from hybrid_des import advise, applied
        >>> advice = advise("scenarios/h100_2x8.yaml")
        >>> print(applied("scenarios/h100_2x8.yaml", advice.lines[0]).splitlines()[0])
        # h100_2x8 with ZB-V schedule
    """
    document = with_case(document_of(source, overrides), line.settings, "advice")
    return f"# {line.scenario.name} with {line.change}\n\n{file_text(document)}"
