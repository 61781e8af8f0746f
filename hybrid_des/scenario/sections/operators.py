"""The section that says which operators are joined into kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from hybrid_des.options import Count, Flag, Section, choice
from hybrid_des.scenario.problem import Problem, misfit


class Operators(Section):
    """Operators between GEMMs: norms, rotations, activations, losses. Each kernel reads and writes memory."""

    blocks: Annotated[Literal["fused", "eager"], choice("fused", "eager")] = "fused"
    """Of blocks: fused as by Megatron-LM or torch.compile, or eager, each a kernel of its own, as PyTorch runs them."""
    attention: Annotated[str, choice("cudnn", "flash-2", "flash-3", "triton", "plain")] | None = None
    """The kernel of attention. cudnn: as fast as the GPU's `efficiency` says, the default; plain: writes scores."""
    loss: Annotated[str, choice("fused", "compiled", "eager", "chunked")] = "fused"
    """Of the loss: fused as by Megatron-LM, compiled by torch.compile, or eager; copies of the logits differ.

    chunked: as compiled, for some tokens after the other, so that hardly any logits exist at a time."""
    loss_chunk: Count | None = None
    """With `loss: chunked`: tokens at a time, whose logits and gradients take 12 bytes each. Default: hardly any."""
    loss_again: Flag = False
    """With `loss: chunked`: whether the backward computes the logits again; otherwise the forward forms gradients."""
    mlp_tile: Count | None = None
    """Tokens of a rank that an MLP processes at a time, whose gradients exist at a time. Default: all."""
    mlp_again: Flag = False
    """With `mlp_tile`: whether the backward computes each tile again, of which nothing inside the MLP is kept."""
    logits: Annotated[Literal["sharded", "gathered"], choice("sharded", "gathered")] = "sharded"
    """Of tensor ranks: each has its part of the vocabulary, or all of it, gathered before the loss.

    As in PyTorch without `loss_parallel` (torch/distributed/tensor/parallel)."""


def misfits_of_operators(operators: Operators) -> Iterator[Problem]:
    """Keys of chunked losses beside another loss, and of tiles without any."""
    if operators.mlp_again and operators.mlp_tile is None:
        yield misfit("is read with `operators.mlp_tile` only", "operators.mlp_again", "operators.mlp_tile")
    for key in ("loss_chunk", "loss_again"):
        if getattr(operators, key) and operators.loss != "chunked":
            yield misfit("is read with `loss: chunked` only", f"operators.{key}", "operators.loss")
