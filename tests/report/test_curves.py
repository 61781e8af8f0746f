"""What-if curves and the table of changes on the page of explain."""

import html
import re

import pytest
from support.paths import GOLDEN

from hybrid_des.analysis.counterfactual.ladder import curves
from hybrid_des.analysis.explanation import explain
from hybrid_des.report.page.document import WIDTH
from hybrid_des.report.page.traced_pages import curves_svg, explanation_page
from hybrid_des.scenario.loading import load

ORACLES = GOLDEN / "explain"


@pytest.fixture(scope="module")
def found():
    return explain(load(ORACLES / "e2.yaml"), ["rank.1.time=0.5x", "schedule.microbatches=4"])


def test_a_curve_goes_through_the_steps_worked_by_hand(found):
    points = {
        curve.name: {share: end / 1e12 for share, end in curve.points} for curve in curves(found.run, found.gains)
    }
    assert points["nvlink links"] == {0: 10.5, 0.125: 10.375, 0.25: 10.25, 0.5: 10.0, 0.75: 9.75}
    assert points["rank 1"][0.25] == 9.0
    assert set(points) == {"rank 0", "rank 1", "B ops", "F ops", "nvlink links"}


def test_the_page_draws_every_curve_and_lists_every_change(found):
    page = explanation_page(found)
    assert len(re.findall(r"<polyline ", page)) == 5
    for change in ("rank.1.time=0.5x", "schedule.microbatches=4", "schedule.kind=zb-h1", "all bytes free"):
        assert f"<tr><td>{change}<td>" in page


def test_curves_and_text_fit_their_frames(found):
    """The frame once had as many pixels as a line of text has characters."""
    page = explanation_page(found)
    svg = page[page.index('<svg id="curves"') : page.index("</svg>")]
    width = int(re.search(r'viewBox="0 0 (\d+) ', svg)[1])
    assert max(float(x) for x in re.findall(r' (?:x|cx)="([\d.]+)"', svg)) < width
    texts = re.findall(r"<pre[^>]*>(.*?)</pre>", page, flags=re.DOTALL)
    assert texts
    assert max(len(line) for text in texts for line in html.unescape(text).splitlines()) <= WIDTH


def test_what_costs_nothing_is_drawn_too(found):
    flat = [(name, [(0.0, 0), (0.75, 0)]) for name in ("one", "other")]
    assert curves_svg([], 1.0) == ""
    assert "NaN" not in curves_svg([type(curves(found.run, found.gains)[0])(*one) for one in flat], 1.0)
