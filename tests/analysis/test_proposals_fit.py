"""No proposal, of no command, needs memory that the GPUs do not have."""

import json
from functools import cache

import pytest
from support.campaigns import thinned
from support.scenarios import merged

from hybrid_des import explain, load, render_explanation, simulate, simulate_jobs
from hybrid_des.report.explained import next_change


def pipeline(**sections):
    """A model of seven billion parameters on four GPUs of 40 GB, for which its activations are too large."""
    base = {
        "cluster": {"gpu": "a100-40gb", "gpus_per_node": 4},
        "model": {"base": "llama2-7b", "sequence": 4096},
        "parallel": {"pipeline": 4},
        "schedule": {"kind": "1f1b", "microbatches": 4, "microbatch_size": 1},
    }
    return merged(base, sections)


REPLICAS = {
    "cluster": {"nodes": 4, "infiniband": {"bandwidth": "5 GB/s", "nics_per_node": 1}},
    "parallel": {"pipeline": 4, "data": 4},
    "gradients": {"algorithm": "ring", "overlap": False},
}
GIVEN = {
    "cluster": {"gpu": "a100-40gb", "gpus_per_node": 4},
    "parallel": {"pipeline": 4},
    "schedule": {"kind": "gpipe", "microbatches": 8},
    "workload": {"forward": "1 ms", "backward": "2 ms", "memory": {"activation": "6 GB"}},
}
TOO_LARGE = {
    "bubble": pipeline(),
    "replicas on slow links": pipeline(**REPLICAS),
    "a slow rank": pipeline(slow=[{"gpu": 1, "factor": 0.5}]),
    "halves of micro-batches": pipeline(schedule={"microbatch_size": 2}),
    "blocking sends": pipeline(schedule={"p2p": "blocking"}),
    "given times": GIVEN,
    "given times, a slow rank": {**GIVEN, "slow": [{"gpu": 1, "factor": 0.5}]},
    "nothing helps": pipeline(model={"base": "llama2-13b", "sequence": 16384}),
}
LONGER = ["replicas on slow links", "a slow rank", "halves of micro-batches", "blocking sends"]
TIGHT = {
    "recomputed": pipeline(recompute="full"),
    "recomputed replicas": pipeline(recompute="full", **REPLICAS),
    "given times": merged(GIVEN, {"schedule": {"kind": "1f1b"}}),
}


@cache
def explained(name):
    """What is said of a plan that does not fit."""
    return explain(TOO_LARGE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(TOO_LARGE, LONGER))
def test_of_what_does_not_fit_only_what_does_is_proposed(name):
    found = explained(name)
    assert simulate(found.run.scenario).summary["out_of_memory"]
    for one in found.proposals:
        assert not simulate(load(TOO_LARGE[name], one.change.split(","))).summary["out_of_memory"], one.change
    said = next_change(found.losses, found.advice)
    assert said.startswith(
        "to fit into memory: " if found.advice.lines else "None of the settings that were tried fits"
    )


def test_what_makes_a_step_fit_is_proposed_first():
    first, *_ = explained("bubble").proposals
    assert (first.against, first.change) == ("memory", "recompute=full")
    assert first.gain < 0  # the forward is computed twice


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(TIGHT, ["recomputed replicas"]))
def test_proposals_for_what_fits_fit_too(name):
    asked = ["schedule.kind=zb-v,schedule.chunks=2", "schedule.kind=gpipe,schedule.microbatches=64"]
    found = explain(TIGHT[name], asked)
    assert not simulate(found.run.scenario).summary["out_of_memory"]
    for one in found.proposals:
        if "=" in one.change:  # not links to buy
            assert not simulate(load(TIGHT[name], one.change.split(","))).summary["out_of_memory"], one.change
    rows = {one["change"]: one["out_of_memory"] for one in found.to_mapping()["what_if"]}
    expected = [simulate(load(TIGHT[name], change.split(","))).summary["out_of_memory"] for change in asked]
    assert [rows[change] for change in asked] == expected and any(expected)
    assert " ".join(render_explanation(found, 100).split()).count("does not fit into memory") == sum(expected)


def test_jobs_that_do_not_fit_get_no_remedies(run, tmp_path):
    links = {"bandwidth": "5 GB/s", "nics_per_node": 1}
    job = {key: value for key, value in pipeline(**REPLICAS).items() if key != "cluster"}
    job["parallel"] = {"pipeline": 2, "data": 2}
    shared = {"gpu": "a100-40gb", "nodes": 4, "gpus_per_node": 2, "sharing": "fair", "infiniband": links}
    shared |= {"topology": "leaf-spine", "leaf_size": 2, "oversubscription": 2}
    jobs = {"cluster": shared, "jobs": {"a": {**job, "nodes": [0, 2]}, "b": {**job, "nodes": [1, 3]}}}
    summary = simulate_jobs(jobs).summary
    assert [one["out_of_memory"] for one in summary["jobs"].values()] == [True, True]
    file = tmp_path / "jobs.yaml"
    file.write_text(json.dumps(jobs))
    for command in ([], ["explain"]):
        code, out, _ = run(*command, file)
        assert code == 0
        assert out.count("OUT OF MEMORY") == 2
        assert "not tried" in out and "a and b do not fit into memory" in out
