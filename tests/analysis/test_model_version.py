"""The version of the model changes when figures do."""

import pytest
from support.figures_of_version import QUICK, ROOT, SLOW, recorded, step_ps
from support.scenarios import plain, scenario

from hybrid_des import goodput, simulate, simulate_jobs
from hybrid_des.cost_model.model_version import MODEL_VERSION


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_figures_are_those_of_the_version(name):
    """If figures change on purpose: raise MODEL_VERSION, say so in the changelog, run support/figures_of_version.py."""
    assert recorded()["model_version"] == MODEL_VERSION
    assert step_ps(name) == recorded()["step_ps"][name]


def test_the_changelog_has_a_line_for_the_version():
    assert f"`model_version` {MODEL_VERSION}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_summary_states_it():
    weeks = goodput(scenario(faults={"horizon": "1 h", "replications": 1, "classes": [{"what": "gpu", "mtbf": "1 h"}]}))
    jobs = simulate_jobs({"cluster": {}, "jobs": {name: plain(ranks=[gpu]) for gpu, name in enumerate("ab")}})
    for summary in (simulate(scenario()).summary, weeks.summary, jobs.summary):
        assert summary["model_version"] == MODEL_VERSION
