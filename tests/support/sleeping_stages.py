"""Stages for PyTorch's pipelines that sleep in their forward and in both parts of their backward.

A rank sleeps SLEEP_S in each, however many stages it holds.
"""

import os
from time import sleep

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

WIDTH = 16


class Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, seconds):
        ctx.seconds = seconds
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        sleep(ctx.seconds)
        return gradient, None


class Sleeping(torch.nn.Module):
    """Their sum is where both gradients part, so that each is computed without the other."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        sleep(self.seconds)
        return Slept.apply(x, self.seconds) + Slept.apply(self.weight, self.seconds)


def stages(stage, count):
    """A stage of a model whose ranks sleep SLEEP_S each, over WORLD_SIZE ranks."""
    chunks = count // int(os.environ["WORLD_SIZE"])
    return Sleeping(float(os.environ.get("SLEEP_S", "0.03")) / chunks)


def join():
    """Join the process group of RANK and WORLD_SIZE that meets in the file RENDEZVOUS."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
    )  # fmt: skip
    return dist.get_rank(), dist.get_world_size()


def schedule_of(name, chunks, microbatches, *, v_shaped=False):
    """A schedule of PyTorch over sleeping stages."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks * chunks
    mine = [rank, 2 * ranks - 1 - rank] if v_shaped else [rank + chunk * ranks for chunk in range(chunks)]
    device = torch.device("cpu")
    parts = [PipelineStage(stages(stage, count), stage, count, device) for stage in mine]
    return get_schedule_class(name)(parts if "1F1B" != name != "GPipe" else parts[0], microbatches, loss_fn=loss)


def loss(output, target):
    return (output - target).mean()


def step(schedule, microbatches):
    """One step of a schedule on this rank."""
    batch, rank = torch.ones(microbatches, WIDTH), dist.get_rank()
    stage_indices = [stage.stage_index for stage in getattr(schedule, "_stages", None) or [schedule._stage]]
    last = max(stage.num_stages for stage in getattr(schedule, "_stages", None) or [schedule._stage]) - 1
    inputs = [batch] if rank == 0 else []
    targets = {"target": batch, "losses": []} if last in stage_indices else {}
    schedule.step(*inputs, **targets)
