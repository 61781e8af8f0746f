"""Background traffic beside a job: how urgent it is, and the rate that it keeps."""

import pytest

from hybrid_des.errors import Refusal
from hybrid_des.studies.jobs.result import simulate_jobs


def beside(sharing="priority-fair", **flow):
    """The step of a job that moves 400 MB in 40 ms alone, beside a flow that offers as much as the link carries."""
    port = {"bandwidth": "10 GB/s", "latency": 0}
    job = {
        "priority": 2, "steps": 4, "parallel": {"data": 2}, "schedule": {"microbatches": 1},
        "gradients": {"algorithm": "ring", "channels": 1},
        "workload": {"forward": "1 ms", "backward": "1 ms", "parameters": 100_000_000},
    }  # fmt: skip
    return simulate_jobs({
        "cluster": {"nodes": 2, "gpus_per_node": 1, "sharing": sharing, "infiniband": port}, "jobs": {"a": job},
        "background": [{"from": "node0", "to": "node1", "rate": "10 GB/s", **flow}],
    })  # fmt: skip


def test_background_is_less_urgent_than_all_jobs():
    assert beside().summary["jobs"]["a"]["step_time_s"] == pytest.approx(0.042)


def test_background_as_urgent_as_the_job_takes_half():
    assert beside(priority=2).summary["jobs"]["a"]["step_time_s"] == pytest.approx(0.082)


def test_background_that_starves_a_job_is_refused():
    with pytest.raises(Refusal, match="this job gets nothing"):
        beside(priority=3)


def test_more_urgent_background_slows_without_starving():
    assert beside(priority=3, rate="5 GB/s").summary["jobs"]["a"]["slowdown"] > 1.5


def test_priorities_that_nothing_reads_are_a_note():
    assert any("priorities of jobs change nothing" in note for note in beside("fair").summary["notes"])


def test_a_delayed_flow_catches_up():
    found = beside(rate="0.2 GB/s", message="100 kB").summary
    sent = found["links"]["node0/nic0/out"]["bytes"]["background"]
    assert sent > 0.7 * 0.2e9 * found["simulated_s"]  # all but that of the last reduction
