"""The page of weeks begins with the share of useful time; its parts sum to all of it."""

import re

import pytest
from support.paths import SCENARIOS

from hybrid_des import goodput, load
from hybrid_des.studies.goodput.page import goodput_page, verdict_of

FEW = ["faults.replications=2", "faults.horizon=5 d"]


@pytest.fixture(scope="module")
def weeks():
    return goodput(load(SCENARIOS / "goodput" / "gpus_1024.yaml", FEW))


def test_the_page_begins_with_useful_time_and_largest_loss(weeks):
    facts = weeks.summary
    lost = {cause: seconds for cause, seconds in facts["lost_s"].items() if seconds}
    said = verdict_of(weeks, None)
    assert said.startswith(f"{100 * facts['goodput']:.1f} % of the time")
    assert f"{100 * max(lost.values()) / facts['horizon_s']:.1f} %" in said
    page = goodput_page(weeks, None, None)
    body = page.split("<body>")[1]
    assert body.index('class="verdict"') < body.index('class="shares"') < body.index("<table")


def test_parts_of_the_bar_sum_to_all_of_the_time(weeks):
    bar = re.search(r'<div class="shares">(.*?)</div>', goodput_page(weeks, None, None))[1]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bar)]
    assert sum(widths) == pytest.approx(100, abs=0.05)
    assert widths[0] == pytest.approx(100 * weeks.summary["goodput"], abs=0.001)


def test_a_better_interval_is_named_with_its_goodput(weeks):
    seldom = goodput(load(SCENARIOS / "goodput" / "gpus_1024.yaml", [*FEW, "faults.checkpoint.every=9 h"]))
    table = seldom.over_intervals([1800.0, 3600.0, 7200.0])
    best = seldom.summary["best_interval_s"]["exact"]
    row = table.loc[(table["interval_s"] - best).abs().idxmin()]
    assert f"not 9 h, which gives {100 * row['goodput']:.1f} %." in verdict_of(seldom, table)
    assert "interval between" not in verdict_of(weeks, None)  # its own is about the best
