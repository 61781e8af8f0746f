"""Residual streams, manifold-constrained hyper-connections (Xie et al., arXiv 2512.24880), as in DeepSeek-V4.

    n streams ─► pre: their sum, weighted ─► half of a block ─► post: to each stream, which are mixed ─► n streams

Weights are n·h·(n² + 2n) for the weights of a token's sums, and n² + 2n + 3 biases and scales, per half, which tensor
ranks have copies of; FLOP of this thin product are not counted (0.2 % of DeepSeek-V4 Flash). Pre reads n·h elements and
writes h; post reads (n + 1)·h and writes n·h. In the backward, pre reads the gradient h and the streams and writes the
streams' gradient; post reads that of n streams, the streams and the half's result, and writes gradients of both:
(2n + 1)·h and (3n + 2)·h. The kernels reach a share of the bandwidth of their own; of backwards none is measured.

Kept are the streams before each half, unless module `mhc` is computed again. Megatron-LM expands in the first stage and
contracts in the last, so that stages send n·h (NVIDIA/Megatron-LM, `--mhc-num-residual-streams`).
"""

from collections.abc import Sequence

from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.layer import Module, Part, weights
from hybrid_des.workload.models.operations import Elementwise

PRE, POST = "mhc pre", "mhc post"


def _pre(h: int, n: int) -> Part:
    return Part((Elementwise(PRE, ELEMENT * (n + 1) * h, ELEMENT * (2 * n + 1) * h, "sequence", rate="mhc_pre"),))


def mixed_streams(h: int, n: int, halves: int, parts: Sequence[Part]) -> list[Part]:
    """The parts of a block between passes over n streams of h elements, which every half has."""
    moved = ELEMENT * (2 * n + 1) * h, ELEMENT * (3 * n + 2) * h
    post = Part((Elementwise(POST, *moved, "sequence", rate="mhc_post"),))
    own = weights(Parameters(replicated=n * h * (n**2 + 2 * n)), Parameters(replicated=n**2 + 2 * n + 3))
    streams = Kept(sequence=ELEMENT * n * h * halves)
    again = Part(kept=streams, modules=(Module("mhc", (PRE, POST), streams),))
    return [*[_pre(h, n) + own] * halves, *parts, *[post] * halves, again]


def contracted(h: int, n: int) -> Part:
    """The weighted sum of n streams before the last norm: n·h·n weights, n biases and a scale."""
    return _pre(h, n) + weights(Parameters(replicated=n * h * n), Parameters(replicated=n + 1))
