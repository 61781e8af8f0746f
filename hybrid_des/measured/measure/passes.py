"""Operations bound by memory, as PyTorch runs those of a transformer, under the names that the simulator has for them.

Each takes the sizes of a tensor rank and the tokens of a micro-batch, and returns its forward and the inputs whose
gradients its backward computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from hybrid_des.measured.measure import transformer
from hybrid_des.measured.measure.job import Job
from hybrid_des.measured.measure.shapes import Shape

Pass = tuple[Callable[[], list[torch.Tensor]], list[torch.Tensor]]


def _random(job: Job, *sizes: int) -> torch.Tensor:
    return torch.randn(sizes, dtype=torch.bfloat16, device=job.device, requires_grad=True)


def _embedding(shape: Shape, tokens: int, job: Job) -> Pass:
    weights = _random(job, shape.vocab, shape.hidden)
    chosen = torch.randint(0, shape.vocab, (tokens,), device=job.device)
    return lambda: [functional.embedding(chosen, weights)], [weights]


def _norm(shape: Shape, tokens: int, job: Job) -> Pass:
    norm, x = transformer.norm_of(shape).to(job.device, torch.bfloat16), _random(job, tokens, shape.hidden)
    return lambda: [norm(x)], [x, *norm.parameters()]


def _norms_and_residuals(shape: Shape, tokens: int, job: Job) -> Pass:
    norm, x = transformer.norm_of(shape).to(job.device, torch.bfloat16), _random(job, tokens, shape.hidden)

    def forward() -> list[torch.Tensor]:
        middle = x + norm(x)
        return [middle + norm(middle)]

    return forward, [x, *norm.parameters()]


def _head_layout(shape: Shape, tokens: int, job: Job) -> Pass:
    """Queries, keys and values from one product to heads, turned, and heads back beside each other."""
    samples = max(1, tokens // shape.sequence)
    width = (shape.heads + 2 * shape.kv_heads) * shape.head
    joined = _random(job, samples, tokens // samples, width)
    turn = transformer.rotations(shape.head, tokens // samples, job.device, torch.bfloat16)

    def forward() -> list[torch.Tensor]:
        queries, keys, values = transformer.heads_of(joined, shape, turn)
        return [transformer.flat(queries), keys, values]

    return forward, [joined]


def _activation(shape: Shape, tokens: int, job: Job) -> Pass:
    x = _random(job, tokens, shape.ffn * (2 if shape.mlp == "swiglu" else 1))
    return lambda: [transformer.activated(x, shape)], [x]


def _loss(shape: Shape, tokens: int, job: Job) -> Pass:
    logits, targets = _random(job, tokens, shape.vocab), torch.randint(0, shape.vocab, (tokens,), device=job.device)
    return lambda: [transformer.loss_of(logits, targets)], [logits]


KNOWN: Mapping[str, Callable[[Shape, int, Job], Pass]] = {
    "embedding": _embedding,
    "norm": _norm,
    "norms and residuals": _norms_and_residuals,
    "head layout": _head_layout,
    "activation": _activation,
    "loss": _loss,
}
