"""Which kernels of a profiler's trace communicate, and what their arguments say.

Names are those of NCCL and RCCL (`ncclDevKernel_AllReduce_…`, before 2.11 `ncclAllReduceRingLLKernel_…`; RCCL's
`ncclDevKernel_Generic` does anything), DeepEP and the like (`deep_ep::internode::dispatch`), and all-reduces over
mapped memory (`cross_device_reduce_1stage`, `multimem_all_reduce_kernel`). Arguments are those that PyTorch copies from
its operator `record_param_comms` to the kernel (pytorch/kineto, libkineto/src/output_json.cpp); traces of other
versions have them on the operator only, or only the sizes of its annotation `nccl:all_reduce`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from hybrid_des.interchange.profiles.graph import EXCHANGE

LIBRARY = re.compile(r"^(?:void )?(?:nccl|rccl|msccl)", re.IGNORECASE)
EXPERTS = re.compile(
    r"deep_ep|hybrid_ep|::ep::(?:internode|intranode)::|::(?:dispatch|combine)<|\bEp(?:Dispatch|Combine)"
)
MAPPED = re.compile(r"cross_device_reduce|multimem_|(?:one|two)_shot_all_reduce|userbuffers")
UNKNOWN = "communication"  # what a kernel does if nothing says it
KINDS = {  # words, without underscores, in kernels, annotations and "Collective name"; the first that fits
    "reducescatter": "reduce-scatter", "allreduce": "all-reduce", "crossdevicereduce": "all-reduce",
    "allgather": "all-gather", "alltoall": "all-to-all", "broadcast": "broadcast", "barrier": "all-reduce",
    "sendrecv": EXCHANGE, "scatter": "scatter", "gather": "gather", "reduce": "reduce", "send": EXCHANGE,
    "recv": EXCHANGE,
}  # fmt: skip
BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "byte": 1, "char": 1,
    "int8": 1, "uint8": 1, "short": 2, "int": 4, "int32": 4, "long": 8, "long int": 8, "int64": 8, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "unsigned char": 1,
    "signed char": 1, "c10::half": 2, "c10::bfloat16": 2, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
}  # fmt: skip
OPERATOR, PREFIX = "record_param_comms", "nccl:"
CUT = 30  # ranks after which PyTorch cuts a list, with "..."
MEMBERS = re.compile(r"\d+")


class Communication(NamedTuple):
    """A kernel of communication.

    Attributes:
        kernel: its number among the device's events.
        does: what it does, such as all-reduce; `UNKNOWN` if nothing says it.
        size: bytes of this rank's input; 0 if they are not known.
        group: the name of its process group, or what stands for it; empty if it is not known.
        members: global ranks of the group, as far as the trace lists them.
        group_size: number of members; 0 if it is not known.
        sequence: its number within the group, if the trace says.
        peer, sends: the other rank of a message, if the trace says, and whether it is the one that receives.
    """

    kernel: int
    does: str
    size: int
    group: str
    members: tuple[int, ...]
    group_size: int
    sequence: int | None
    peer: int | None = None
    sends: bool = False


def kind_of(text: str) -> str | None:
    """What a collective with this name does."""
    plain = text.lower().replace("_", "")
    return next((does for word, does in KINDS.items() if word in plain), None)


@lru_cache(maxsize=1 << 14)
def library_of(name: str) -> re.Pattern[str] | None:
    """The names among which that of a kernel is; None if it computes or copies."""
    return next((one for one in (EXPERTS, LIBRARY, MAPPED) if one.search(name)), None)


def communication(kernel: int, name: str, args: Mapping[str, Any]) -> Communication | None:
    """The communication of a kernel; None if it computes or copies."""
    library = library_of(name)
    if library is None:
        return None
    group = str(args.get("Process Group Name") or args.get("Process Group Description") or "")
    if library == EXPERTS:
        does = "all-to-all"
        group = group or ("dispatch" if "ispatch" in name else "combine" if "ombine" in name else "notify")
    else:
        called = kind_of(str(args.get("Collective name", "")))
        does = kind_of(name.partition("(")[0].partition("<")[0]) or called or UNKNOWN
        if does == EXCHANGE and called is not None:
            does = called  # an all-to-all is a kernel of sends and receives
    listed = str(args.get("Process Group Ranks", ""))
    members = tuple(map(int, MEMBERS.findall(listed)))
    sequence, peer = args.get("Seq"), args.get("Dst Rank", args.get("Src Rank"))
    size = _count(args.get("In msg nelems")) * BYTES.get(str(args.get("dtype", "")).lower(), 0)
    return Communication(
        kernel, does, size, group, members, _count(args.get("Group size")) or (0 if "..." in listed else len(members)),
        sequence if isinstance(sequence, int) else None, peer if isinstance(peer, int) else None,
        "Dst Rank" in args,
    )  # fmt: skip


def input_bytes(args: Mapping[str, Any]) -> int:
    """Bytes of the tensors that an annotation `nccl:…` lists; 0 if it lists none of a known type."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return 0
    found = 0
    for shape, kind in zip(dims, types, strict=False):
        width = BYTES.get(str(kind).lower(), 0)
        if width and isinstance(shape, list) and shape and all(isinstance(one, int) for one in shape):
            product = width
            for one in shape:
                product *= one
            found += product
    return found


def _count(value: Any) -> int:
    try:
        return max(0, int(value or 0))
    except (TypeError, ValueError, OverflowError):
        return 0
