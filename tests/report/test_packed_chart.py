"""The picture of packed micro-batches on a page."""

import re

import pytest

from hybrid_des.analysis.documents import amounts_of
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.report.page.document import PageRun, page_of
from hybrid_des.report.page.packed_chart import COLUMNS, MOST, packed_chart
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run

RECT = re.compile(
    r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)".*?<title>micro-batch (\d+): ([\d,]+) ([a-z ]+)</title>',
    re.DOTALL,
)
MODEL = {"base": "llama3.1-8b", "layers": 2, "sequence": 4096}


def documents(lengths, **parallel):
    return scenario_from({
        "cluster": {"gpu": "h100", "nodes": 5, "gpus_per_node": 8}, "model": MODEL,
        "schedule": {"kind": "1f1b"}, "parallel": parallel, "batch": 6 * parallel["data"],
        "data": {"lengths": lengths, "packing": "greedy"},
    })  # fmt: skip


@pytest.fixture
def drawn():
    return documents({"kind": "lognormal", "mean": 900, "sigma": 1}, data=4)


def test_pieces_are_as_long_as_their_micro_batches(drawn):
    rects, amounts = RECT.findall(packed_chart(drawn)), amounts_of(packed_steps(drawn))
    for label, values in (("tokens", amounts.tokens[0]), ("squared lengths", amounts.squares[0])):
        mine = [rect for rect in rects if rect[5] == label]
        assert len(mine) == (values > 0).sum()
        scale = COLUMNS / values.sum(axis=1).max()
        said = {(int(y), int(number)): (float(width), amount) for _, y, width, number, amount, _ in mine}
        rows = sorted({y for y, _ in said})
        for (y, number), (width, amount) in said.items():
            value = int(values[rows.index(y)][number])
            assert amount == f"{value:,}"
            assert width == pytest.approx(value * scale, abs=0.06)


def test_equal_micro_batches_have_no_picture():
    assert packed_chart(documents({"kind": "fixed"}, data=4)) == ""


def test_a_page_shows_the_picture(drawn):
    assert '<svg id="packed"' in page_of([PageRun(RunAnalysis(run(drawn)))])


def test_of_many_replicas_the_busiest_are_drawn():
    scenario = documents({"kind": "lognormal", "mean": 900, "sigma": 1}, data=MOST + 8)
    text = packed_chart(scenario.model_copy())
    assert len(re.findall(r">replica \d+</text>", text)) == MOST
    assert f"the {MOST} with the most squares of {MOST + 8}" in text
