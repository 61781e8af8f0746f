"""Runs in which GPUs wait for their hosts: what the report says, and what is proposed."""

from hybrid_des import explain, simulate

SMALL = {
    "cluster": {"gpu": "h100"},
    "model": {"base": "llama3.1-8b", "layers": 4, "sequence": 1024, "written": "megatron"},
    "parallel": {"tensor": 4, "data": 2, "sequence": True},
    "schedule": {"kind": "1f1b", "microbatches": 8, "microbatch_size": 1},
}


def test_a_report_says_how_long_gpus_wait_for_launches():
    result = simulate(SMALL)
    share = result.summary["step_shares"]["host"]
    assert share > 0.1
    line = next(line for line in result.report(width=200).splitlines() if line.startswith("host-bound"))
    assert " ".join(line.split()).startswith(f"host-bound {share * 100:.1f} % of the step waits for launches")
    assert "host-bound" not in simulate(SMALL | {"cuda_graphs": "full"}).report(width=200)


def test_graphs_and_more_work_per_launch_are_proposed():
    proposed = [one.change for one in explain(SMALL).proposals if one.against == "host"]
    assert "cuda_graphs=layers" in proposed
    assert "schedule.microbatch_size=2,schedule.microbatches=4" in proposed
    assert "parallel.tensor=2,parallel.data=4,schedule.microbatches=4" in proposed
