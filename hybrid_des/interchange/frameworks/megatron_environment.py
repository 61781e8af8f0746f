"""Environment variables of a launch that change a step: NCCL's choice of algorithms, kernels of attention.

NCCL: docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. NVTE_*: docs.nvidia.com/deeplearning/
transformer-engine, environment variables; both attention kernels turned off leave the unfused one. PET_*: torchrun's
own flags (docs.pytorch.org/docs/stable/elastic/run.html); NNODES and NPROC_PER_NODE: those of ms-swift's `megatron`.
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
_GPUS = {"--nnodes": ("PET_NNODES", "NNODES"), "--nproc-per-node": ("PET_NPROC_PER_NODE", "NPROC_PER_NODE")}
_CANONICAL = {name.lower(): name for name in ("Ring", "Tree", "NVLS", "NVLSTree", "LL", "LL128", "Simple")}


def machine_of(variables: Mapping[str, str]) -> dict[str, list[str]]:
    """The flags of torchrun that variables stand for, as programs that start it themselves read them."""
    stated = {flag: next((variables[name] for name in names if name in variables), "") for flag, names in _GPUS.items()}
    if not stated["--nproc-per-node"].isdecimal():
        return {}
    return {flag: [word or "1"] for flag, word in stated.items()}


def of_environment(variables: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that variables state, and those without an equal here, each with what is wrong in the figures."""
    values: dict[str, Any] = {}
    wrong = {}
    if variables.get("NCCL_NVLS_ENABLE") == "0":
        values["cluster.nccl_algorithm"] = "^NVLS,NVLSTree"
    for name, path in _LISTS.items():
        if name in variables:
            words = re.sub(r"\w+", lambda match: _CANONICAL.get(match[0].lower(), match[0]), variables[name])
            if re.fullmatch(_NAMES, words):
                values[path] = words
            else:
                wrong[f"{name}={_short(variables[name])}"] = f"NCCL's own choice is counted here; state {path}"
    if variables.get("NVTE_FLASH_ATTN") == variables.get("NVTE_FUSED_ATTN") == "0":
        values["model.attention"] = "plain"
    elif variables.get("NVTE_FUSED_ATTN") == "0":
        wrong["NVTE_FUSED_ATTN=0"] = "cuDNN's attention is counted, not FlashAttention's; state operators.attention"
    others = {name: value for name, value in variables.items() if name in _WRONG and value not in ("0", "")}
    return values, wrong | {f"{name}={_short(value)}": _WRONG[name] for name, value in others.items()}


def _short(value: str) -> str:
    return one_line(value, LONGEST_SHOWN)
