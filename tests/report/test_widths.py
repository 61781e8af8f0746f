"""Reports and explanations fit the terminal."""

import pytest

from hybrid_des import explain, render_explanation, simulate
from hybrid_des.scenario.loading import load

FILES = ("h100_2x8.yaml", "contention_slower.yaml", "llama3.1-8b_8.yaml", "first.yaml")


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("file", FILES)
def test_no_line_of_a_report_is_wider_than_the_terminal(scenarios, file, width):
    changes = ["description=A description that is so long that no terminal of eighty columns holds it in one line"]
    report = simulate(load(scenarios / file, changes)).report(width=width)
    assert max(map(len, report.splitlines())) <= width


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES[1:3])
def test_no_line_of_an_explanation_is_wider_than_the_terminal(scenarios, file):
    found = explain(load(scenarios / file, ["name=a_name_that_leaves_no_room_for_the_time_of_its_step"]))
    for width in (80, 100):
        assert max(map(len, render_explanation(found, width).splitlines())) <= width
