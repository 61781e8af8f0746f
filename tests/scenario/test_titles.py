"""Titles name a scenario with its overrides."""

from support.scenarios import MINIMAL

from hybrid_des.report.plots.gantt import title_of
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load, titled


def test_a_title_names_the_overrides(scenarios):
    changes = ["schedule.kind=gpipe", "parallel.pipeline=2"]
    changed = load(scenarios / "a100_8x.yaml", changes)
    assert titled(load(scenarios / "a100_8x.yaml")) == "a100_8x"
    assert titled(changed) == "a100_8x with schedule.kind=gpipe, parallel.pipeline=2"
    assert title_of(simulate(changed).run)[0] == titled(changed)


def test_a_file_without_a_description_is_titled_too(write):
    changed = load(write(MINIMAL), {"schedule.microbatches": 3})
    assert changed.description == "with schedule.microbatches=3"
    assert titled(changed) == "a with schedule.microbatches=3"
    assert titled(load(write(MINIMAL), {"name": "mine"})) == "mine"
