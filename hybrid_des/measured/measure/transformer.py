"""A transformer in PyTorch, in the shapes that the simulator counts: products joined, tensor ranks as in Megatron-LM.

    x ─► norm ─► queries, keys, values ─► rotation ─► attention ─► output ─► + ─► norm ─► up ─► activation ─► down ─► +

Over tensor ranks, the products before attention and activation are divided by columns, those after them by rows, and
partial outputs are summed; so are gradients of inputs (Shoeybi et al., arXiv 1909.08053, section 3). Embedding and
logits are divided by tokens known.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from hybrid_des.measured.measure.shapes import Shape

ROTATION = 10_000.0  # base of the frequencies


class CopyToTensorRanks(torch.autograd.Function):
    """What every tensor rank takes as it is; gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """The same."""
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The sum over tensor ranks."""
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class ReduceFromTensorRanks(torch.autograd.Function):
    """Partial outputs summed over tensor ranks; gradients are the same on all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """The sum over tensor ranks."""
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The same."""
        return gradients[0], None


def copied(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """An input of products that tensor ranks divide."""
    return _applied(CopyToTensorRanks.apply, x, group)


def summed(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """The output of products that tensor ranks divide."""
    return _applied(ReduceFromTensorRanks.apply, x, group)


def _applied(function: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    result: torch.Tensor = x if group is None else function(x, group)
    return result


def norm_of(shape: Shape) -> nn.Module:
    """A norm of the hidden vector."""
    return nn.RMSNorm(shape.hidden) if shape.norm == "rms" else nn.LayerNorm(shape.hidden)


def activated(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The activation of an MLP, with its gate if it has one."""
    if shape.mlp != "swiglu":
        return functional.gelu(x)
    gate, values = x.chunk(2, dim=-1)
    return functional.silu(gate) * values


def rotations(head: int, length: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every place and pair of a head's elements."""
    pairs = torch.arange(0, head, 2, device=device) / head
    angles = torch.outer(torch.arange(length, device=device), ROTATION**-pairs)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Queries or keys with their places turned in."""
    first, second = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat((-second, first), dim=-1) * turn[1]


def heads_of(
    joined: torch.Tensor, shape: Shape, turn: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of each head, from one product; batch × heads × length × size."""
    sizes = [count * shape.head for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
    queries, keys, values = (
        part.unflatten(-1, (-1, shape.head)).transpose(1, 2) for part in joined.split(sizes, dim=-1)
    )
    if shape.positions == "rotary":
        queries, keys = rotated(queries, turn), rotated(keys, turn)
    return queries, keys, values


def attended(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Attention of every head."""
    shared = shape.kv_heads < shape.heads
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=shape.causal, enable_gqa=shared)


def flat(heads: torch.Tensor) -> torch.Tensor:
    """Heads beside each other: batch × length × all."""
    return heads.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """A block on one tensor rank; `shape` has its heads and its share of the MLP."""

    def __init__(self, shape: Shape, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.shape, self.group = shape, group
        width = shape.heads * shape.head
        self.before, self.after = norm_of(shape), norm_of(shape)
        self.joined = nn.Linear(shape.hidden, width + 2 * shape.kv_heads * shape.head, bias=shape.bias)
        self.output = nn.Linear(width, shape.hidden, bias=shape.bias)
        self.up = nn.Linear(shape.hidden, shape.ffn * (2 if shape.mlp == "swiglu" else 1), bias=shape.bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.bias)

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The block's output for batch × length × hidden."""
        parts = heads_of(self.joined(copied(self.before(x), self.group)), self.shape, turn)
        x = x + summed(self.output(flat(attended(*parts, self.shape))), self.group)
        inner = activated(self.up(copied(self.after(x), self.group)), self.shape)
        return x + summed(self.down(inner), self.group)


class Transformer(nn.Module):
    """Embedding, blocks, and the loss of the next token; `shape` has the tensor rank's share of everything."""

    def __init__(self, shape: Shape, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.shape, self.group = shape, group
        self.first = shape.vocab * (dist.get_rank(group) if group is not None else 0)
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.places = nn.Parameter(torch.zeros(0 if shape.positions == "rotary" else shape.sequence, shape.hidden))
        self.blocks = nn.ModuleList(Block(shape, group) for _ in range(shape.layers))
        self.norm = norm_of(shape)
        self.logits = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.logits.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean loss of batch × length tokens, each of which is to predict itself."""
        x = self._embedded(tokens)
        turn = rotations(self.shape.head, self.shape.sequence, tokens.device, x.dtype)
        for block in self.blocks:
            x = block(x, turn)
        logits = self.logits(copied(self.norm(x), self.group)).flatten(0, 1)
        if self.group is None:
            return loss_of(logits, tokens.flatten())
        return divided_loss(logits, tokens.flatten() - self.first, self.group)

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            x: torch.Tensor = self.embedding(tokens)
        else:
            mine = (tokens >= self.first) & (tokens < self.first + self.shape.vocab)
            x = summed(self.embedding((tokens - self.first).where(mine, 0)) * mine.unsqueeze(-1), self.group)
        return x if self.shape.positions == "rotary" else x + self.places


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross-entropy, in 32 bits."""
    return functional.cross_entropy(logits.float(), targets)


def divided_loss(logits: torch.Tensor, targets: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The same where each tensor rank has the logits of some tokens; targets count from its first one."""
    logits = logits.float()
    largest = logits.detach().amax(dim=-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest.unsqueeze(-1)
    mine = (targets >= 0) & (targets < logits.shape[-1])
    wanted = shifted.gather(-1, targets.where(mine, 0).unsqueeze(-1)).squeeze(-1) * mine
    total = summed(shifted.exp().sum(dim=-1), group)
    return (total.log() - summed(wanted, group)).mean()
