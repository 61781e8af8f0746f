"""The page of several jobs begins with who slows whom; the short explanation has at most fifteen lines."""

import re

import pytest
from support.paths import SCENARIOS

from hybrid_des import simulate_jobs
from hybrid_des.studies.jobs.explained import explain_jobs
from hybrid_des.studies.jobs.page import fabric_page

FILE = SCENARIOS / "jobs" / "three_placements.yaml"


@pytest.fixture(scope="module", params=["packed", "spread"])
def found(request):
    return request.param, simulate_jobs(FILE, ["sweep=none", f"placement={request.param}"])


def test_the_page_begins_with_who_slows_whom(found):
    placement, jobs = found
    said = re.search(r'<p class="verdict"><span>(.*?)</span></p>', fabric_page(jobs))[1]
    if placement == "packed":
        assert said == "The jobs do not slow each other down."
        return
    worst = max(jobs.runs, key=lambda one: one.slowdown)
    waits = jobs.waits[jobs.waits["job"] == worst.job.name].groupby("behind")["waited_s"].sum()
    assert said.startswith(f"{worst.job.name} is slowed down the most, to {worst.slowdown:.3f} times its step")
    assert f"mostly by {waits.idxmax()} on " in said
    assert f"{jobs.slowdown:.3f} times as long as alone" in said


def test_bars_of_slowdowns_are_on_one_scale(found):
    _, jobs = found
    bars = re.search(r'<div class="changes">(.*?)</span></div>', fabric_page(jobs))[1]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bars)]
    most = max(one.slowdown for one in jobs.runs)
    for one, alone, more in zip(jobs.runs, widths[::2], widths[1::2], strict=True):
        assert alone == pytest.approx(100 / most, abs=0.01)
        assert alone + more == pytest.approx(100 * one.slowdown / most, abs=0.01)


@pytest.mark.parametrize("placement", ["packed", "spread", "random"])
def test_an_explanation_of_jobs_has_at_most_fifteen_lines(placement):
    from hybrid_des.scenario.jobs import load_jobs

    text = explain_jobs(load_jobs(FILE, ["sweep=none", f"placement={placement}"]))
    lines = text.report(80).splitlines()
    assert len(lines) <= 15
    ranked = sorted(text.jobs, key=lambda one: -one.waits_for_others)
    assert [line.split()[0] for line in lines if re.match(r"\w+ +step ", line)] == [one.run.job.name for one in ranked]
    assert len(text.details(80).splitlines()) > 15
