"""Mamba-2, a selective state space (Dao and Gu, arXiv 2405.21060), scanned in chunks.

    h ─► z, x, B, C, dt ─► convolution of x, B, C ─► scan ─► norm(· × z) ─► output

With n heads of size p, D = n·p channels, g groups that share B and C, N the size of a state, chunks of Q tokens:

    parameters   h·(2D + 2gN + n) + (D + 2gN)·(width + 1) of the convolution + 3n + D (norm) + D·h
    scan         2gQN + 2QD + 4DN FLOP: scores and results within a chunk, its state, and results of the state before it
    kept         h, 2D + 2gN + n and D; convolution, states and scores are computed again (state-spaces/mamba,
                 ssd_combined.py)
    backward     4.5 forwards: what a model of 1.34 billion parameters takes on an H200 and on a GB200, one number for
                 both (state-spaces/mamba, issue 904: 239.2 and 360.4 TFLOP/s, read as 6 FLOP per parameter and token)

Tensor ranks divide heads and groups, context ranks the heads: they exchange z, x, B, C, dt, and the results, by
all-to-alls (NVIDIA/Megatron-LM, megatron/core/ssm/mamba_context_parallel.py). The convolution moves 2 bytes in and out
per channel. Where several samples of a micro-batch are interleaved, as in Megatron-LM, the input product's results,
their gradients, and the scan's results are copied into the other order (megatron/core/ssm/mamba_mixer.py,
_ssm_training).
"""

from fractions import Fraction

from hybrid_des.workload.models.amounts import ELEMENT, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Part, linear
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.mixers.scanned import scanned
from hybrid_des.workload.models.operations import Elementwise, Scan

BACKWARD = 4.5  # see above


@mixer("mamba2", summary="Mamba-2's state spaces", sizes="mamba")
def mamba2(block: Block) -> Part:
    """The joined input product, the convolution, the scan, the gated norm, and the output."""
    assert block.mamba is not None
    sizes, h = block.mamba, block.hidden
    n, g, state, chunk = sizes.heads, sizes.groups, sizes.state, sizes.chunk
    width, shared = n * sizes.head_size, 2 * g * state
    mixed, joined = width + shared, 2 * width + shared + n
    flop = chunk * shared + 2 * chunk * width + 4 * width * state
    sent = {"there": 2 * width + n, "shared": shared, "back": width}
    scan = Scan("state space scan", "scan", Fraction(flop), n, g, **sent, backward=BACKWARD, state=width * state)
    own = [mixed * sizes.conv, mixed, n, n, n, *([width] if sizes.norm else [])]
    ordered = Elementwise(
        "order of samples", 2 * ELEMENT * (joined + width), 2 * ELEMENT * joined, "tensor", kernels=0, of_samples=True
    )
    inputs, kept = linear("mamba in", h, joined, "columns") + Part((ordered,)), ELEMENT * (joined + width)
    return scanned(h, inputs, scan, "mamba out", mixed=mixed, kept=kept, own=(Parameters(tensor=size) for size in own))
