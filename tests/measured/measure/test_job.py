"""The processes that measure: what their environment must tell, and modules that fail, without PyTorch."""

import pytest

from hybrid_des.errors import UsageError
from hybrid_des.measured.measure.job import gpu_of_process, rank_of_process
from hybrid_des.measured.measure.pipelines import Pipelines, Run
from hybrid_des.measured.measure.stages import Modules


def test_without_torchrun_there_is_rank_0(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert rank_of_process() == 0
    monkeypatch.setenv("RANK", "3")
    assert rank_of_process() == 3


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5"])
def test_a_wrong_rank_is_named(monkeypatch, text):
    monkeypatch.setenv("RANK", text)
    with pytest.raises(UsageError, match=f'RANK in the environment: "{text}"; expected a number'):
        rank_of_process()


def test_each_process_has_a_gpu(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert gpu_of_process(2) == 1
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match=r"4 processes on a host with 2 GPUs; .*--nproc-per-node 2"):
        gpu_of_process(2)


class Failing:
    """A schedule whose first stage fails, as PyTorch says it."""

    def step(self, *inputs, **options):
        try:
            raise ValueError("sizes\ndo not fit")
        except ValueError as error:
            raise RuntimeError("[Stage 0] failed to run forward:") from error


def test_a_module_that_fails_is_one_line():
    pipelines = Pipelines(None, None, Modules("mine:stages", None, ()), 8, 3)
    with pytest.raises(UsageError, match=r"^mine:stages: a step of 1F1B fails: ValueError: sizes do not fit$"):
        pipelines._step(Run("1f1b", "1F1B", 1), Failing(), [], {})
