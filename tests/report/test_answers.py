"""What a page says before its timeline: a verdict, what to change, what the step is made of, and how sure that is."""

import html
import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from support.explanations import explained
from support.paths import SCENARIOS
from support.verdicts import of_model

from hybrid_des import simulate
from hybrid_des.analysis.advice import Advice
from hybrid_des.analysis.difference import Difference
from hybrid_des.analysis.idle import PARTS, REASONS
from hybrid_des.analysis.verdict import share_name
from hybrid_des.cluster.purposes import OF_LAYERS
from hybrid_des.report import palette
from hybrid_des.report.page.answer import cards_of, parts_of
from hybrid_des.report.page.document import PageRun, page_of, shipped
from hybrid_des.report.page.traced_pages import explanation_page


@pytest.fixture(scope="module")
def found():
    return explained("first")


@pytest.fixture(scope="module")
def page(found):
    return explanation_page(found)


@pytest.mark.parametrize(
    "name", ["contention_slower.yaml", pytest.param("llama3.1-70b_128.yaml", marks=pytest.mark.slow)]
)
def test_parts_of_a_pages_bar_sum_to_the_step(name):
    """With exposed communication by axis, what is inside ops too, under the names of `explain`."""
    result = simulate(SCENARIOS / name)
    page = page_of([PageRun(result)])
    bar, names = re.search(r'<div class="shares">(.*?)</div><ul class="names">(.*?)</ul>', page).groups()
    assert sum(map(float, re.findall(r"width:([\d.]+)%", bar))) == pytest.approx(100, abs=0.01)
    shown = {key: float(share) for key, share in re.findall(r"<span>([^<]+) <b>([\d.]+) %</b>", names)}
    assert sum(shown.values()) == pytest.approx(100, abs=0.05 * (len(shown) + 1))
    shares = result.breakdown.shares
    for key, share in shares.items():
        if share > 0.001:
            assert shown[share_name(key)] == pytest.approx(100 * float(share), abs=0.051)
    seconds = sum(one.fraction for one in parts_of(result)) * result.summary["step_time_s"]
    assert seconds == pytest.approx(result.summary["step_time_s"], rel=1e-9)


def test_parts_of_a_bar_are_told_apart_without_colour():
    """Of neighbours in a bar no two have the same hatch."""
    scenario = of_model(parallel={"tensor": 2, "pipeline": 2}, recompute="full")
    scenario["efficiency"] = {"launch": "100 us"}
    hatches = [one.hatch for one in parts_of(simulate(scenario)) if one.fraction > 0.001]
    assert len(hatches) > 4
    assert all(mine != next_one for mine, next_one in pairwise(hatches))


def test_cards_of_a_page_have_the_flags_of_the_advice(found, page):
    cards = re.findall(r'<article class="card">(.*?)</article>', page)
    assert len(cards) == len(found.advice.lines) > 0
    for card, line in zip(cards, found.advice.lines, strict=True):
        assert html.escape(line.change) in card
        copied = re.search(r'<div class="flags"><code>(.*?)</code>', card)[1]
        copied = html.unescape(re.sub("</?span>", "", copied))
        dropped = [html.unescape(flag) for flag in re.findall(r"<li>drop <code>(.*?)</code>", card)]
        assert [*copied.split(" --"), *dropped] == [
            *" ".join(flag for flag in line.flags if not flag.startswith("drop ")).split(" --"),
            *(flag.removeprefix("drop ") for flag in line.flags if flag.startswith("drop ")),
        ]


def test_a_page_answers_before_it_draws(found, page):
    """Verdict, changes, parts and interval stand above the timeline; figures and text come behind tabs."""
    marks = ('class="verdict"', "What to change", "What the step is made of", "How sure the prediction is")
    places = [page.index(mark) for mark in marks] + [page.index('<canvas id="chart"'), page.rindex("<pre>")]
    assert places == sorted(places)
    said = html.unescape(re.search(r'<p class="verdict">(.*?)</p>', page)[1])
    assert found.losses.verdict in re.sub("<[^>]*>", "", said)


def test_a_page_without_advice_says_how_to_get_it():
    page = page_of([PageRun(simulate(SCENARIOS / "contention_slower.yaml"))])
    assert "<code>hybrid-des explain SCENARIO --out FOLDER</code>" in page
    assert "<article" not in page


def test_a_page_names_the_runs_that_an_interval_rests_on():
    result = simulate(SCENARIOS / "llama3.1-8b_8.yaml")
    page = page_of([PageRun(result)])
    known = result.summary["experience"]
    places = dict(re.findall(r"<li>([^<]+) <b>(\d+)</b></li>", page))
    assert {place: int(number) for place, number in places.items()} == known["rests_on"]
    left, wide = map(float, re.search(r'class="interval"><i style="left:([\d.]+)%;width:([\d.]+)%', page).groups())
    low, high = known["interval_s"]
    assert left / (left + wide) == pytest.approx(low / high, abs=0.001)


def test_a_page_writes_percent_one_way(page):
    """ "45.6 %", outside of styles and scripts."""
    shown = re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert re.findall(r".{20}\d%", shown) == []


def test_a_card_says_that_a_gain_is_not_certain(found):
    line = found.advice.lines[0]
    sure, unsure = (replace(line, sure=Difference(("layout",), reach, 20)) for reach in (0.01, 1.0))
    said = [one.likely for one in cards_of(Advice(line.scenario, 2.0, 1, 2, [sure, unsure]))]
    assert ["not certain" in text for text in said] == [False, True]


@pytest.mark.parametrize("causes", [PARTS, REASONS])
def test_idle_time_is_told_apart_by_hatches_alone(causes):
    """Of what ranks wait for between ops; collectives inside ops are bars."""
    shown = [cause for cause in causes if cause not in {purpose.cause for purpose in OF_LAYERS.values()}]
    hatches = [palette.hatch(cause) for cause in shown]
    assert len(set(hatches)) == len(hatches) and set(hatches) <= set(palette.HATCHES)


def test_every_hatch_is_drawn_by_style_and_script():
    style, script = (shipped(file) for file in ("page.css", "timeline.js"))
    for hatch in filter(None, palette.HATCHES):
        quoted = json.dumps(hatch)
        assert f"[data-hatch={quoted}]" in style
        assert f"{quoted}: [" in script
