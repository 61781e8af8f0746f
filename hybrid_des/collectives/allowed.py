"""Algorithms and protocols that a user forces on NCCL, as with NCCL_ALGO and NCCL_PROTO.

    Tree            only trees                  Ring,Tree       one of these, as the tuner takes it
    ^NVLS,NVLSTree  all but these               LL128           with NCCL_PROTO alike

Upper and lower case are the same. NCCL's other algorithms are not simulated, and so never taken (NVIDIA/nccl,
src/graph/tuning.cc, parseList; documentation of its environment variables).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_des.errors import unknown
from hybrid_des.options import Reads, describe

ALGORITHMS: Mapping[str, str] = {"ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls-tree"}
OTHERS = ("collnetdirect", "collnetchain", "pat")  # of NCCL's, which are not simulated
PROTOCOLS: Mapping[str, str] = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}


def listed(known: Mapping[str, str], others: Sequence[str] = ()) -> Reads:
    """A list of names as NCCL reads it, of which those that may be taken are kept, separated by commas.

    Args:
        known: names in small letters without dashes → those here.
        others: names that NCCL knows, too, and that are never taken.
    """

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value.removeprefix("^").strip():
            names = ", ".join(known.values())
            raise ValueError(f"expected one or more of {names}, or ^ and those excluded, found {describe(value)}")
        if ":" in value or ";" in value:
            raise ValueError(f"expected one list for all collectives, found {describe(value)}")
        named = [_name(one, known, others) for one in value.removeprefix("^").split(",")]
        kept = [known[name] for name in known if (name in named) != value.startswith("^")]
        if not kept:
            raise ValueError(f"{describe(value)} leaves none of {', '.join(known.values())}, which are simulated")
        return ",".join(kept)

    return Reads(read, {"type": "string"})


def _name(word: str, known: Mapping[str, str], others: Sequence[str]) -> str:
    name = word.strip().lower().replace("-", "").replace("_", "")
    if name not in known and name not in others:
        raise ValueError(unknown(word.strip(), [*known.values()]))
    return name
