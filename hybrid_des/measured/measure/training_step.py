"""A real training step of a model: forward and backward, gradients reduced in 32 bits, and AdamW on 32-bit weights.

Ranks are tensor groups of consecutive ones, and replicas of them; each replica computes one micro-batch. Nothing
overlaps, as in the scenario that predicts it. Where a whole model does not fit, it has fewer layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.measured.measure.folder import Folder
from hybrid_des.measured.measure.job import Job
from hybrid_des.measured.measure.shapes import Shape

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

TABLE = "steps.csv"
BYTES = 24  # per parameter: weights and gradients in 16 and 32 bits, AdamW's moments
ROOM = 0.5  # of the memory, for these
MOST_ON_HOST = 2  # layers of a model on processors


class Layout(NamedTuple):
    """Tensor ranks and replicas of a step, the samples of a micro-batch, and the layers of the model."""

    tensor: int
    data: int
    samples: int
    layers: int


def layers_that_fit(shape: Shape, parameters: int, memory: int, *, on_gpu: bool) -> int:
    """The number of layers whose weights, gradients and optimizer fit into half of the memory, at least one.

    Args:
        shape: of the whole model on a tensor rank.
        parameters: that the rank holds.
        memory: bytes that it has.
        on_gpu: whether there is a GPU; on processors, few layers do.
    """
    ends = (1 if shape.tied else 2) * shape.vocab * shape.hidden
    each = max(1, (parameters - ends) // shape.layers)
    fitting = int((ROOM * memory / BYTES - ends) // each)
    return max(1, min(shape.layers, fitting, shape.layers if on_gpu else MOST_ON_HOST))


def tasks(
    job: Job, folder: Folder, shape: Shape, layout: Layout, rounds: int
) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """The step of a layout, several times."""
    if folder.has(TABLE, tensor=layout.tensor, round=rounds - 1):
        return

    def measure() -> str | None:
        step = step_of(job, shape.model_copy(update={"layers": layout.layers}), layout)
        step()  # warms up
        for number in range(rounds):
            took = job.timed_once(step)
            if not folder.has(TABLE, tensor=layout.tensor, round=number):
                folder.add(TABLE, {**layout._asdict(), "round": number, "seconds": took})
        return None

    yield f"a step with tensor {layout.tensor}, data {layout.data}", measure


def step_of(job: Job, shape: Shape, layout: Layout) -> Callable[[], object]:
    """A training step on this rank."""
    import torch

    from hybrid_des.measured.measure.transformer import Transformer

    tensor_group = job.group(layout.tensor) if layout.tensor > 1 else None
    replicas = _replicas(job, layout)
    model = Transformer(shape, tensor_group).to(job.device, torch.bfloat16)
    weights = [parameter for parameter in model.parameters() if parameter.numel()]
    master = [torch.nn.Parameter(weight.detach().float()) for weight in weights]
    optimizer = torch.optim.AdamW(master, fused=job.on_gpu or None)
    tokens = torch.randint(0, shape.vocab * layout.tensor, (layout.samples, shape.sequence), device=job.device)
    reduced = torch.zeros(sum(weight.numel() for weight in weights), device=job.device)

    def step() -> None:
        model(tokens).backward()
        _reduce(weights, reduced, replicas)
        for weight, full, gradient in zip(weights, master, reduced.split([w.numel() for w in weights]), strict=True):
            full.grad, weight.grad = gradient.view_as(full), None
        optimizer.step()
        for weight, full in zip(weights, master, strict=True):
            weight.data.copy_(full.detach())

    return step


def _reduce(weights: list[torch.nn.Parameter], reduced: torch.Tensor, replicas: dist.ProcessGroup | None) -> None:
    """Sum the gradients of all replicas, as one buffer."""
    import torch.distributed as dist

    first = 0
    for weight in weights:
        assert weight.grad is not None
        reduced[first : first + weight.numel()].copy_(weight.grad.flatten())
        first += weight.numel()
    if replicas is not None:
        dist.all_reduce(reduced, group=replicas)


def _replicas(job: Job, layout: Layout) -> Any:
    """This rank's group of replicas; None if there is one."""
    import torch.distributed as dist

    mine = None
    for first in range(layout.tensor if layout.data > 1 else 0):
        members = list(range(first, layout.tensor * layout.data, layout.tensor))
        group = dist.new_group(members)
        mine = group if job.rank in members else mine
    return mine
