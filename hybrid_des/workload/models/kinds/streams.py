"""Residual streams, manifold-constrained hyper-connections (Xie et al., arXiv 2512.24880), as in DeepSeek-V4.

    n streams ─► pre: their sum, weighted ─► half of a block ─► post: to each stream, which are mixed ─► n streams

Weights are n·h·(n² + 2n) for the weights of a token's sums, and n² + 2n + 3 biases and scales, per half, which tensor
ranks have copies of; FLOP of this thin product are not counted (0.2 % of DeepSeek-V4 Flash). Pre reads n·h elements and
writes h; post reads (n + 1)·h and writes n·h. In the backward, pre reads the gradient h and the streams and writes the
streams' gradient; post reads that of n streams, the streams and the half's result, and writes gradients of both:
(2n + 1)·h and (3n + 2)·h. Their gradients of the streams, and that of the weights, are added in one pass over 4n·h
(Megatron-LM, hyper_connection.py, BroadcastTensorFused). Kernels reach a share of the bandwidth of their own, measured
in forwards. Of backwards one table is known: without that pass, 4.9 ms on GB200 for 32,768 tokens, n = 4 and h = 7,168
(NVIDIA/Megatron-LM, pull request 3828), 0.35 ms for 4,096 tokens of V4 Flash; 0.30 ms are counted.

Kept are the streams before each half, unless module `mhc` is computed again. Megatron-LM expands in the first stage and
contracts in the last, so that stages send n·h (NVIDIA/Megatron-LM, `--mhc-num-residual-streams`).
"""

from collections.abc import Sequence

from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.layer import Module, Part, weights
from hybrid_des.workload.models.operations import Elementwise

PRE, POST, SUM = "mhc pre", "mhc post", "mhc sums"


def _pre(h: int, n: int) -> Part:
    return Part((Elementwise(PRE, ELEMENT * (n + 1) * h, ELEMENT * (2 * n + 1) * h, "sequence", rate="mhc_pre"),))


def mixed_streams(h: int, n: int, halves: int, parts: Sequence[Part]) -> list[Part]:
    """The parts of a block between passes over n streams of h elements, which every half has."""
    moved = ELEMENT * (2 * n + 1) * h, ELEMENT * (3 * n + 2) * h
    post = Part((Elementwise(POST, *moved, "sequence", rate="mhc_post"),))
    own = weights(Parameters(replicated=n * h * (n**2 + 2 * n)), Parameters(replicated=n**2 + 2 * n + 3))
    streams = Kept(sequence=ELEMENT * n * h * halves)
    summed = Part((Elementwise(SUM, 0, 4 * ELEMENT * n * h, "sequence"),))
    again = Part(kept=streams, modules=(Module("mhc", (PRE, POST), streams),))
    return [*[_pre(h, n) + own] * halves, *parts, *[post + summed] * halves, again]


def contracted(h: int, n: int) -> Part:
    """The weighted sum of n streams before the last norm: n·h·n weights, n biases and a scale."""
    return _pre(h, n) + weights(Parameters(replicated=n * h * n), Parameters(replicated=n + 1))
