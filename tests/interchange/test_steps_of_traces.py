"""What a step of a profiler's trace takes: its distance from the one before, whatever the host did meanwhile."""

import pytest
from support.profiles import Kineto

from hybrid_des import load, simulate
from hybrid_des.errors import UsageError
from hybrid_des.measured.imports.importing import import_profile

PERIOD = 2000  # µs


def steps(folder, ranks=1, count=5, **kernel):
    """Traces of ranks whose compute of a step, which the kernel describes, ends every 2 ms, 10 µs later per rank."""
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        trace = Kineto(rank, ranks)
        for number in range(count):
            zero = number * PERIOD
            trace.note(f"ProfilerStep#{number + 3}", zero, zero + PERIOD)
            if "early" in kernel:  # the batch of this step is copied beside the step before
                trace.kernel("copy", zero + 50, kernel["early"], 30, launched=zero + 20)
            took = kernel["took"][number % len(kernel["took"])]
            end = zero + kernel["end"] + 10 * rank
            trace.kernel("gemm", end - took, took, launched=zero + 30)
        trace.write(folder / f"rank{rank}.json")
    return folder


def again(found, folder):
    """The step that the written scenario takes, in µs."""
    found.write(folder)
    return simulate(load(folder / "scenario.yaml")).summary["step_time_s"] * 1e6


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_host_that_runs_ahead_does_not_lengthen_the_step(ranks, tmp_path):
    found = import_profile(steps(tmp_path / "t", ranks, early=80, took=[1900], end=3500))
    assert found.figures["measured_step_time_s"] == pytest.approx(PERIOD * 1e-6)
    assert again(found, tmp_path / "out") == pytest.approx(PERIOD)
    assert found.figures["measured_steps_s"] == [None, *4 * [pytest.approx(PERIOD * 1e-6)]]


def test_what_a_loader_holds_up_belongs_to_the_step(tmp_path):
    found = import_profile(steps(tmp_path / "t", took=[700], end=1900))
    assert found.figures["measured_step_time_s"] == pytest.approx(PERIOD * 1e-6)
    assert again(found, tmp_path / "out") == pytest.approx(PERIOD)


def test_other_steps_are_predicted_and_the_one_is_not(tmp_path):
    """Steps end at 1000, 3000, 5500, 7000, 9000 µs: distances are 2, 2.5, 1.5 and 2 ms."""
    trace = Kineto()
    for number, end in enumerate((1000, 3000, 5500, 7000, 9000)):
        trace.note(f"ProfilerStep#{number}", number * PERIOD, (number + 1) * PERIOD)
        trace.kernel("gemm", end - 900, 900, launched=number * PERIOD + 10)
    found = import_profile(trace.write(tmp_path / "a.json"))
    assert found.figures["step"] == 1
    assert [1e6 * one for one in found.simulated] == pytest.approx(4 * [2000])
    errors = [100 * (2000 / one - 1) for one in (2500, 1500, 2000)]
    assert found.figures["mean_error_percent"] == pytest.approx(sum(map(abs, errors)) / 3)
    assert found.figures["worst_error_percent"] == pytest.approx(max(map(abs, errors)))
    assert "as a prediction of the other 3: error 17.78 % on average, 33.33 % at worst" in found.text()


def test_a_step_alone_is_said_to_be_reproduced(tmp_path):
    found = import_profile(steps(tmp_path / "t", count=1, took=[700], end=1900))
    assert found.figures["measured_step_time_s"] == pytest.approx(700e-6)
    assert "one step, reproduced within 0.00 %" in found.text()
    assert any("no two in a row were recorded" in one for one in found.unknown)


def test_a_late_kernel_is_of_the_rank_in_its_file(tmp_path):
    trace = Kineto(5, 8)
    for number, took in enumerate((10, 10, 10, 45)):
        trace.kernel("gemm", 100 * number, took)
    found = import_profile(trace.write(tmp_path / "worker.json"))
    assert [one.rank for one in found.unusual] == [5]
    assert "gemm of rank 5" in found.text()


@pytest.mark.parametrize("first", [3, 2**63 + 11], ids=["small", "beyond 63 bits"])
def test_ranks_share_the_identity_of_a_collective(first, tmp_path):
    """The kernels have no Seq, and rank 1 has a barrier less: its second is the third of rank 0."""
    for rank, kept in ((0, (0, 1, 2)), (1, (0, 2))):
        trace = Kineto(rank, 2)
        for number in kept:
            begin = 100 * number + 5 * rank
            trace.collective("allreduce", begin, 100 * number + 20, [0, 1], **{"Comms Id": first + number})
        trace.write(tmp_path / f"rank{rank}.json")
    table = import_profile(tmp_path).files["collectives.csv"]
    known = table[table.transfer_s.notna()]
    assert sorted(known["rank"].tolist()) == [0, 0, 1, 1]
    assert known.transfer_s.tolist() == pytest.approx(4 * [15e-6])


def launched_alone(trace):
    for number in range(7):
        trace.events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 10 * number, "dur": 2,
                             "tid": 1, "args": {"correlation": number}})  # fmt: skip


@pytest.mark.parametrize(
    ("add", "said"),
    [(launched_alone, "7 kernels were launched"), (lambda trace: None, r"the job ran on GPUs \(NCCL\)")],
)
def test_time_of_the_host_is_not_measured_on_a_gpu(add, said, tmp_path):
    trace = Kineto(0, 8)
    trace.events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 5, "dur": 60, "tid": 1, "args": {}})
    add(trace)
    with pytest.raises(UsageError, match=said + ".* but none was recorded: profile with ProfilerActivity.CUDA"):
        import_profile(trace.write(tmp_path / "a.json"))
