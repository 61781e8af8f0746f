"""The version of the model changes when figures do."""

from support.paths import ROOT

from hybrid_des import goodput, simulate, simulate_jobs
from hybrid_des.simulation.model_version import MODEL_VERSION


def test_the_changelog_has_a_line_for_the_version():
    assert f"`model_version` {MODEL_VERSION}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_summary_states_it(scenarios):
    weeks = goodput(scenarios / "goodput/gpus_1024.yaml", overrides={"faults.replications": 1})
    jobs = simulate_jobs(scenarios / "jobs/two_jobs.yaml")
    for summary in (simulate(scenarios / "prototype_4gpu.yaml").summary, weeks.summary, jobs.summary):
        assert summary["model_version"] == MODEL_VERSION
