"""The section that says which shares of the GPU's peaks a run achieves, and what is lost beside them."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from hybrid_des.cluster.link_figures import CollectiveFile
from hybrid_des.options import Factor, Number, Section, Time
from hybrid_des.scenario.sections.values import OperatorFile, share

ZERO = Fraction(0)

Lost = Annotated[Fraction, share(below_1=True)]
Reached = Annotated[Fraction, share(above_0=True)]


class ScanShares(Section):
    """Achieved shares of the peak 16-bit FLOP/s of cores of linear mixers."""

    scan: Reached | None = None
    """Mamba-2's scan: share of the peak 16-bit FLOP/s. Default from the GPU, where it is known."""
    delta: Reached | None = None
    """The same of the gated delta rule."""
    kda: Reached | None = None
    """The same of Kimi delta attention."""
    lightning: Reached | None = None
    """The same of lightning attention, which is known of no GPU."""


class StreamShares(Section):
    """Achieved shares of the bandwidth of passes over residual streams."""

    mhc_pre: Reached | None = None
    """Sums of residual streams before halves of blocks: share of the peak bandwidth. Default from the GPU, if known.

    Measured with 4 streams of 4,096 and of 7,168: from 31 % less than these defaults to 14 % more."""
    mhc_post: Reached | None = None
    """The same of what adds a half's result to the streams and mixes them: measured within 4 %."""


SCANS, STREAMS = tuple(ScanShares.model_fields), tuple(StreamShares.model_fields)


class Efficiency(ScanShares, StreamShares):
    """Achieved shares of the GPU's peaks. Defaults from the GPU and the precision."""

    gemm: Reached
    """GEMMs of ideal shape: share of the peak FLOP/s."""
    gemm_16bit: Reached | None = None
    """The same for GEMMs that stay in 16 bits under fp8. Default from the GPU; without one, `gemm`."""
    attention: Reached
    """Flash attention over very many keys: share of the peak 16-bit FLOP/s."""
    attention_half: Number = ZERO
    """Keys over which it reaches half of that."""
    attention_head: Number = ZERO
    """Head size at which other work takes as long as its GEMMs; `attention` is that of heads of 128."""
    memory: Reached
    """Operations bound by memory: share of its bandwidth."""
    network: Reached = Fraction(1)
    """Share of every link's bandwidth."""
    adapters: Reached | None = None
    """The same for NICs and for switches between nodes. Default from the GPU; without one, `network`."""
    grouped: Reached = Fraction(1)
    """GEMMs of experts: share of the rate of other GEMMs of their shape."""
    # with the backward 2.5 times: 0.82 by the A100's kernels alone, 0.84 by the B200's; between 0.80 and 0.84, the mean
    # error of 15 steps of DeepSeek and Kimi K2 changes by 0.5 points
    latent: Reached = Fraction(41, 50)
    """Latent attention, whose keys are longer than its values: share of the rate of other attention.

    Kernels with keys of 192 and values of 128 against 128 and 128: 0.83 to 1.1 forward, 0.77 to 0.84 backward
    (github.com/MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json and a100_pcie.json)."""
    exchange_overhead: Time = Fraction(28, 10**5)
    """Added to each per-node all-to-all of experts, instead of `collective_overhead`.

    The host waits for the number of tokens that it will receive, and is late for what follows: about 0.28 ms on H100s.
    With graphs of layers it is late after it has counted only; with one of the whole iteration, never."""
    collective_overhead: Time = ZERO
    """Added to each collective of tensor, context and expert ranks: launching it; a fifth more per further member."""
    layer_overhead: Time = ZERO
    """The least time of a layer's forward, and half of that of its backward: launching kernels."""
    launch: Time = ZERO
    """Time in which the host launches one operator or collective: a layer takes at least as long as all of these."""
    routing: Time = ZERO
    """With `data`: time in which the host launches one of the operators that find out which documents a rank sends.

    Six for each document that the ranks at one place of their replicas hold, before every step."""
    kept: Factor = Fraction(1)
    """Activations kept, relative to the count of fused kernels; those of a stack that fuses less are larger."""
    slowed: Lost = Fraction(1, 4)
    """Share of its speed that GEMMs lose during collectives within a node; 0: nothing is slowed."""
    slowed_network: Lost | None = None
    """The same during collectives over NICs. Default 0.6 of `slowed`."""
    slowed_memory: Lost | None = None
    """The same of operations bound by memory, beside any collectives. Default 0.76 of `slowed`."""
    step_overhead: Time = ZERO
    """Added to every step: data loading, optimizer launches, logging."""
    collectives: CollectiveFile | None = None
    """A CSV file with measured times of collectives by group, for those of layers that are replayed."""
    table: OperatorFile | None = None
    """A CSV file with measured times of operators, as written by `hybrid-des measure`; shapes in it take these."""
