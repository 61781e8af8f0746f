"""What an imported step does is told once: exposed communication of the trace is that of the scenario's own report."""

import pytest
from support.profiles import Kineto

from hybrid_des import explain, render_explanation, simulate
from hybrid_des.analysis.idle import account, idle_pieces
from hybrid_des.analysis.step_times import step_times
from hybrid_des.measured.imports.importing import import_profile


def one_rank(stream):
    """One of four ranks, whose all-reduce does not say with whom: 50 µs of 190 are exposed, 3 are the host's."""
    trace = Kineto(0, 4)
    trace.note("ProfilerStep#3", 0, 1000)
    trace.kernel("gemm", 10, 50, launched=8)
    trace.collective("allreduce", 60, 90, [0, 1], stream=stream, **{"Process Group Ranks": ""})
    trace.kernel("adam", 90, 50, launched=30)
    trace.kernel("ncclDevKernel_SendRecv(x)", 140, 20, stream)
    trace.kernel("copy", 163, 37, launched=30)
    return trace


def whole_of(run):
    times = step_times(run.timeline)
    return times.total * len(run.ranks)


@pytest.mark.parametrize("stream", [7, 20])
def test_collectives_of_unknown_ranks_are_communication(tmp_path, stream):
    """On a stream of their own, or on that of the ops, as gloo's."""
    one_rank(stream).write(tmp_path / "rank0.json")
    found = import_profile(tmp_path / "rank0.json")
    assert found.measured == found.simulated == [pytest.approx(190e-6)]
    found.write(tmp_path / "out")
    result = simulate(tmp_path / "out" / "scenario.yaml")
    share = result.summary["step_shares"]
    exposed = found.figures["exposed_communication_s"]
    assert exposed == pytest.approx(50e-6)
    assert result.summary["exposed_communication_ratio"] * result.summary["step_time_s"] == pytest.approx(exposed)
    assert share["gradients"] + share["pipeline"] == pytest.approx(50 / 190)
    assert (share["host"], share["bubble"]) == (pytest.approx(3 / 190), 0)
    assert result.summary["efficiency"] == pytest.approx(137 / 190)
    assert found.figures["step_shares"] == pytest.approx(share)
    assert "time        computing 72.1 %, sends and receives 10.5 %, all-reduces" in found.text()
    assert "Main loss 16 % of the step goes to all-reduces and reduce-scatters." in " ".join(
        render_explanation(explain(tmp_path / "out" / "scenario.yaml")).split()
    )


@pytest.mark.parametrize("stream", [7, 20])
@pytest.mark.parametrize("ranks", [1, 2])
def test_time_of_imports_is_counted_once(tmp_path, ranks, stream):
    """Waits for collectives and the gaps around them: busy and idle time sum to the step, and pieces do not overlap."""
    for rank in range(ranks):
        trace = Kineto(rank, 2)
        trace.note("ProfilerStep#3", 0, 1000)
        trace.kernel("gemm", 10, 30 + 30 * rank, launched=8)
        trace.collective("allreduce", 40 + 30 * rank, 100, [0, 1], stream=stream)
        trace.kernel("adam", 103, 50, launched=30)
        trace.kernel("late", 200, 50, launched=30)
        trace.write(tmp_path / f"rank{rank}.json")
    run = import_profile(tmp_path).shown()[1].run
    assert sum(account(run.timeline, step_times(run.timeline)).values()) == whole_of(run)
    pieces = idle_pieces(run.timeline)
    assert (pieces["start"][1:] >= pieces["end"][:-1])[pieces["rank"][1:] == pieces["rank"][:-1]].all()
