"""Durations that were recorded on one GPU, on another: by what bounds a kernel, which its name tells.

Products take their time times (peak · efficiency.gemm) of the recorded GPU over that of the other, attention the same
with efficiency.attention, and kernels bound by memory with bandwidth · efficiency.memory (the two roofs of Williams,
Waterman and Patterson, CACM 52(4), 2009). Names are those of cuBLAS, CUTLASS, cuDNN, rocBLAS, FlashAttention, PyTorch,
and Triton's as torch.compile writes them. What no name tells keeps its time, as do gaps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from hybrid_des import hardware
from hybrid_des.errors import UsageError

PRODUCTS, ATTENTION, MEMORY = "products", "attention", "memory"
NAMES = (  # the first that fits
    (ATTENTION, re.compile(r"flash|fmha|attn_(?:fwd|bwd)|attention|cudnn_generated_fort_native_sdpa", re.IGNORECASE)),
    (PRODUCTS, re.compile(
        r"gemm|gemv|cutlass|\bmatmul|_matmul|aten::(?:mm|bmm|addmm|linear)\b|cijk_|nvjet|xmma|wgmma|conv|dgrad|wgrad",
        re.IGNORECASE)),
    (MEMORY, re.compile(
        r"elementwise|reduce|norm|softmax|copy|memcpy dtod|memset|cat_?array|index|embedding|dropout|adam|multi_tensor"
        r"|gelu|silu|swiglu|\bbn_|batch_norm|nchw|nhwc|transpose|triton_(?:poi|red|per)|pool|scatter|gather|fill",
        re.IGNORECASE)),
)  # fmt: skip
SIXTEEN = ("bf16", "fp16")  # precisions of `efficiency`; others are not told by names


@lru_cache(maxsize=1 << 14)
def work_of(name: str) -> str | None:
    """What bounds a kernel with this name; None if that is not known."""
    return next((work for work, words in NAMES if words.search(name)), None)


def factors(recorded: str, gpu: Any) -> Mapping[str, Fraction]:
    """What durations that were recorded on a GPU are multiplied with on another one, by what bounds them.

    Args:
        recorded: its name in the catalogue.
        gpu: name, peak and bandwidth of the other one; outside the catalogue, it reaches the same shares of them.

    Raises:
        UsageError: the peak or the bandwidth of the other one is not known.
    """
    if gpu.name == recorded:
        return {PRODUCTS: Fraction(1), ATTENTION: Fraction(1), MEMORY: Fraction(1)}
    if gpu.peak is None or gpu.bandwidth is None:
        raise UsageError(f"cluster.gpu: durations of {recorded} are scaled by peak and bandwidth; give both")
    part = hardware.part(recorded)
    before = _shares(recorded)
    after = _shares(gpu.name) if gpu.name in hardware.names() else before
    speeds = {PRODUCTS: ("gemm", "peak"), ATTENTION: ("attention", "peak"), MEMORY: ("memory", "bandwidth")}
    return {
        work: getattr(part, figure) * before[share] / (getattr(gpu, figure) * after[share])
        for work, (share, figure) in speeds.items()
    }


def _shares(name: str) -> Mapping[str, Fraction]:
    by_precision = hardware.part(name).efficiency
    found = next(by_precision[one] for one in SIXTEEN if one in by_precision)
    return {key: Fraction(str(found[key])) for key in ("gemm", "attention", "memory")}
