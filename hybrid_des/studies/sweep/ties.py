"""Which cases of a sweep are as good as the best, as far as differences of measured runs were predicted."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_des.analysis.difference import LEAST, difference
from hybrid_des.scenario.loading import scenario_of
from hybrid_des.studies.sweep.axes import Sweep
from hybrid_des.studies.sweep.ranking import STEP, Ranking
from hybrid_des.studies.sweep.rows import Row
from hybrid_des.studies.sweep.runner import with_case


def ties_text(ranked: Sequence[Row], ranking: Ranking, sweep: Sweep) -> str:
    """A sentence on the cases that differ from the best by less than 2 %, and not for certain; empty if there are none.

    Args:
        ranked: the rows of the cases, the best first.
        ranking: how they are compared.
        sweep: the scenario of the cases.
    """
    step = ranking.share(ranked[0], STEP)
    fitting = [row for row in ranked if "error" not in row and not row.get("out_of_memory")]
    close = [row for row in fitting[1:] if ranking.share(row, STEP) < step * (1 + LEAST)]
    if not close or not step:
        return ""
    cases = [{path: row.get(path) for path in sweep.paths} for row in (ranked[0], *close)]
    best, *others = [scenario_of(with_case(sweep.document, case)) for case in cases]
    changes = [ranking.share(row, STEP) / step - 1 for row in close]
    known = [(change, difference(best, other)) for change, other in zip(changes, others, strict=True)]
    tied = [change for change, sure in known if sure is not None and sure.is_tie(change)]
    if not tied:
        return ""
    count = "1 other case" if len(tied) == 1 else f"{len(tied)} other cases"
    return f"a tie with {count}, up to {max(tied):.1%} apart: less than 9 of 10 such differences were off"
