"""Pages of runs whose causes were traced: with the critical path, what released everything, and idle time by reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybrid_des.analysis.counterfactual.ladder import curves
from hybrid_des.analysis.critical_path.gaps import idle_pieces
from hybrid_des.analysis.critical_path.graph import Graph, graph_of
from hybrid_des.analysis.critical_path.paths import critical_path
from hybrid_des.analysis.critical_path.tables import released_by
from hybrid_des.analysis.idle import REASONS
from hybrid_des.analysis.metrics import Findings
from hybrid_des.analysis.reasons import Reasons, reasons_of
from hybrid_des.report.compared import render_comparison
from hybrid_des.report.explained import render_explanation
from hybrid_des.report.page.document import WIDTH, Shown, page_of
from hybrid_des.report.page.whatif_curves import curves_svg, what_if_table
from hybrid_des.timeline import NONE, Column

if TYPE_CHECKING:
    from hybrid_des.analysis.comparison.compare import Comparison
    from hybrid_des.analysis.explanation import Explanation


def explanation_page(found: Explanation) -> str:
    """The page of `explain`: its text, curves and changes above the run."""
    lines = render_explanation(found, WIDTH).splitlines()
    drawn = curves_svg(curves(found.run, found.gains), found.seconds(1))
    more = f"<div>{drawn}{what_if_table(found)}</div>"
    return page_of([Shown(Findings(found.run), traced_reasons(found.graph, lines), more=more)])


def comparison_page(found: Comparison) -> str | None:
    """The page of `compare`, both runs on one time axis; None if one was read from a folder."""
    if found.a.run is None or found.b.run is None:
        return None
    text = render_comparison(found).splitlines()
    names = ("A: " + found.a.name, "B: " + found.b.name)
    reasons = (traced_reasons(graph_of(run), said) for run, said in ((found.a.run, text), (found.b.run, [])))
    runs = (Findings(found.a.run), Findings(found.b.run))
    return page_of([Shown(*shown) for shown in zip(runs, reasons, names, strict=True)])


def traced_reasons(graph: Graph, verdict: Sequence[str] = ()) -> Reasons:
    """The reasons that a graph of causes gives for the rows of its timeline."""
    rows_of = graph.messages.rows
    known = reasons_of(graph.timeline)
    ops = len(graph.timeline.ops["rank"])
    released = released_by(graph)
    first = np.concatenate([np.arange(ops), ops + rows_of[:, 0], [NONE]])  # the row that shows each activity
    by = np.full(len(known.released_by), NONE, dtype=np.int64)
    by[:ops] = first[released[:ops]]
    for hop in range(rows_of.shape[1]):
        there = np.flatnonzero(rows_of[:, hop] >= 0)
        before = first[released[ops:][there]] if hop == 0 else ops + rows_of[there, hop - 1]
        by[ops + rows_of[there, hop]] = before
    queued = known.released_by[ops:] != NONE  # behind another message on the link
    by[ops:][queued] = known.released_by[ops:][queued]
    idle = idle_pieces(graph)
    places = {reason: place for place, reason in enumerate(REASONS)}
    rows = [(one.rank, one.start, one.end, places[one.reason]) for one in idle]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    columns = dict(zip(("rank", "start", "end", "cause"), table.T, strict=True))
    return Reasons(by, columns, REASONS, _path(graph, ops), verdict)


def _path(graph: Graph, ops: int) -> Column:
    """The rows on the critical path: ops, and messages on all of their links."""
    rows: list[int] = []
    for piece in critical_path(graph):
        if 0 <= piece.activity < ops:
            rows.append(piece.activity)
        elif piece.activity >= ops:
            hops = graph.messages.rows[piece.activity - ops]
            rows += (ops + hops[hops >= 0]).tolist()
    return np.array(rows, dtype=np.int64)
