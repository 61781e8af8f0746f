"""Environment variables of a launch that change a step: NCCL's choice of algorithms, kernels of attention.

NCCL: docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. NVTE_*: docs.nvidia.com/deeplearning/
transformer-engine, environment variables; both attention kernels turned off leave the unfused one.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, one_line
from hybrid_des.files import read_catalogue

_TABLE = read_catalogue(Path(__file__).with_name("megatron_flags.yaml"))["variables"]
_WRONG = {name: text for text, names in _TABLE.items() for name in names}
_NAMES = r"\^?(Ring|Tree|NVLS|NVLSTree|LL|LL128|Simple)(,(Ring|Tree|NVLS|NVLSTree|LL|LL128|Simple))*"
_LISTS = {"NCCL_ALGO": "cluster.nccl_algorithm", "NCCL_PROTO": "cluster.nccl_protocol"}
_CANONICAL = {name.lower(): name for name in ("Ring", "Tree", "NVLS", "NVLSTree", "LL", "LL128", "Simple")}


def of_environment(variables: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The values that variables state, and those without an equal here, each with what is wrong in the figures."""
    values: dict[str, Any] = {}
    wrong = []
    if variables.get("NCCL_NVLS_ENABLE") == "0":
        values["cluster.nccl_algorithm"] = "^NVLS,NVLSTree"
    for name, path in _LISTS.items():
        if name in variables:
            words = re.sub(r"\w+", lambda match: _CANONICAL.get(match[0].lower(), match[0]), variables[name])
            if re.fullmatch(_NAMES, words):
                values[path] = words
            else:
                wrong.append(f"{name}={_short(variables[name])}: NCCL's own choice is counted here; state {path}")
    if variables.get("NVTE_FLASH_ATTN") == variables.get("NVTE_FUSED_ATTN") == "0":
        values["model.attention"] = "plain"
    elif variables.get("NVTE_FUSED_ATTN") == "0":
        wrong.append(
            "NVTE_FUSED_ATTN=0: cuDNN's attention is counted here, not FlashAttention's; state operators.attention"
        )
    wrong += [
        f"{name}={_short(value)}: {_WRONG[name]}"
        for name, value in variables.items()
        if name in _WRONG and value != "0"
    ]
    return values, wrong


def _short(value: str) -> str:
    return one_line(value, LONGEST_SHOWN)
