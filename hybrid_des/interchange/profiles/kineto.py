"""The trace of one rank by PyTorch's profiler (Kineto): what ran on its GPU, and which op launched it.

A kernel belongs to the runtime call with its correlation number, the call to the innermost annotation that contains it:
on its own thread, else (the autograd thread) on the main one; without annotations, to the forward or the backward, by
the profiler's links between both. A step is `ProfilerStep#k`, by the time of the launch.

Kernels that communicate have names of NCCL and RCCL (`ncclDevKernel_AllReduce_…`, before 2.11
`ncclAllReduceRingLLKernel_…`; RCCL's `ncclDevKernel_Generic` does anything), DeepEP and the like
(`deep_ep::internode::dispatch`), and all-reduces over mapped memory (`cross_device_reduce_1stage`,
`multimem_all_reduce_kernel`). Their arguments are those that PyTorch copies from its operator `record_param_comms` to
the kernel (pytorch/kineto, libkineto/src/output_json.cpp); traces of other versions have them on the operator only, or
only the sizes of its annotation `nccl:all_reduce`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        identity: a number that all ranks give this collective and no other, if the trace says: PyTorch's `Comms Id`, a
            hash of the group and the sequence number (since April 2026; torch/csrc/profiler/util.cpp).
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
    identity: int | None = None


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
        "Dst Rank" in args, _count(args.get("Comms Id")) or None,
    )  # fmt: skip


def input_bytes(args: Mapping[str, Any]) -> int:
    """Bytes of the tensors that an annotation `nccl:…` lists; 0 if it lists none of a known type."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return 0
    total = 0
    for shape, kind in zip(dims, types, strict=False):
        width = BYTES.get(str(kind).lower(), 0)
        if width and isinstance(shape, list) and shape and all(isinstance(one, int) for one in shape):
            total += width * prod(shape)
    return total


def _count(value: Any) -> int:
    try:
        return max(0, int(value or 0))
    except (TypeError, ValueError, OverflowError):
        return 0


NONE = -1
Numbers = NDArray[np.int64]
Annotation = tuple[int, int, str]  # start, end, name


class Product(NamedTuple):
    """A call of an operator of `PRODUCTS`.

    Attributes:
        shapes, types: of its inputs, as recorded with `record_shapes`.
        thread, start, end: where and when it launched its kernels.
    """

    name: str
    shapes: Sequence[Sequence[int]]
    types: Sequence[str]
    thread: int
    start: int
    end: int


class StreamWait(NamedTuple):
    """A wait of a stream for an event of another one; times are those of the calls, `NONE` if they are not known."""

    stream: int
    other: int
    recorded: int
    waited: int


@dataclass
class KinetoTrace:
    """The trace of one rank; times are nanoseconds.

    Attributes:
        path: its file.
        rank: its global rank.
        world: number of ranks of the job; 0 if it is not known.
        named: the rank in the name of the file; `NONE` if it has none.
        start, duration, stream, correlation, name: of the device's events, in the order of their starts; names are
            numbers of `names`, one per name and grid.
        launched, thread: of these, when and on which thread they were launched; `NONE` if that is not known.
        annotations: thread → annotations, in the order of their starts.
        passes: the same for forwards and backwards, by the profiler's links between them.
        communications: kernels of communication.
        steps: number of each step → its start and end on the host; on the device if `on_device`.
        main: the thread of the steps, else the one with most annotations.
        collectives: thread → start, end, name and bytes of annotations `nccl:…`.
        base: nanoseconds to add to all times, by which traces of several ranks differ.
        waits: waits of streams for events of other streams.
        facts: kernel → what it computes, in traces of this program.
        products: operators with shapes.
        device: name of the GPU.
        on_host: whether there is no device, and its events are operators of the host.
    """

    path: Path
    rank: int
    world: int
    named: int = NONE
    names: list[str] = field(default_factory=list)
    start: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    duration: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    stream: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    correlation: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    name: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    launched: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    thread: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    annotations: dict[int, list[Annotation]] = field(default_factory=dict)
    passes: dict[int, list[Annotation]] = field(default_factory=dict)
    communications: list[Communication] = field(default_factory=list)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    on_device: bool = False
    collectives: dict[int, list[tuple[int, int, str, int]]] = field(default_factory=dict)
    main: int = NONE
    base: int = 0
    waits: list[StreamWait] = field(default_factory=list)
    facts: dict[int, Mapping[str, int]] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)
    device: str = ""
    on_host: bool = False

    @cached_property
    def communicates(self) -> NDArray[np.bool_]:
        """Whether each of the device's events communicates."""
        flags = np.zeros(len(self.start), dtype=bool)
        flags[[one.kernel for one in self.communications]] = True
        return flags

    @property
    def numbers(self) -> set[int]:
        """The numbers of the steps that have events."""
        return {*np.unique(self.step[self.step != NONE]).tolist()}

    @property
    def end(self) -> Numbers:
        """When each of the device's events ends."""
        return self.start + self.duration

    @cached_property
    def op(self) -> list[str]:
        """What each of the device's events belongs to, an annotation or a pass; empty if nothing says it."""
        ops = [""] * len(self.start)
        for thread in np.unique(self.thread[self.launched != NONE]).tolist():
            mine = np.flatnonzero((self.thread == thread) & (self.launched != NONE))
            of_main = {} if thread == self.main else self.annotations
            for intervals in (
                self.annotations.get(thread, ()), of_main.get(self.main, ()), self.passes.get(thread, ()),
            ):  # fmt: skip
                for number, name in zip(mine.tolist(), self._innermost(mine, intervals), strict=True):
                    ops[number] = ops[number] or name
        return ops

    def _innermost(self, events: Numbers, annotations: Sequence[Annotation]) -> list[str]:
        """The innermost annotation that contains the launch of each event, steps left out."""
        order = np.argsort(self.launched[events], kind="stable")
        names = [""] * len(events)
        open_ones: list[tuple[int, str]] = []
        at = 0
        for index in order.tolist():
            time = int(self.launched[events[index]])
            while at < len(annotations) and annotations[at][0] <= time:
                _, end, name = annotations[at]
                open_ones.append((end, name))
                at += 1
            while open_ones and open_ones[-1][0] < time:
                open_ones.pop()
            names[index] = next((name for end, name in reversed(open_ones) if end >= time), "")
        return names

    @cached_property
    def step(self) -> Numbers:
        """The step of each of the device's events, by its launch; `NONE` if there is none."""
        if not self.steps:
            return np.zeros(len(self.start), dtype=np.int64)
        steps = np.full(len(self.start), NONE, dtype=np.int64)
        numbers = sorted(self.steps, key=lambda number: self.steps[number][0])
        starts = [self.steps[number][0] for number in numbers]
        for event, time in enumerate((self.start if self.on_device else self.launched).tolist()):
            turn = bisect_right(starts, time) - 1
            if time != NONE and turn >= 0 and time <= self.steps[numbers[turn]][1]:
                steps[event] = numbers[turn]
        return steps

    def outermost(self) -> Iterator[tuple[Product, int]]:
        """Products that no other one contains, each with nanoseconds of the kernels that it launched."""
        order = np.lexsort((self.launched, self.thread))
        keys = list(zip(self.thread[order].tolist(), self.launched[order].tolist(), strict=True))
        before = np.concatenate(([0], np.cumsum(self.duration[order])))
        ends: dict[int, int] = {}
        for product in sorted(self.products, key=lambda product: (product.start, -product.end)):
            if product.start >= ends.get(product.thread, NONE):
                ends[product.thread] = product.end
                first, last = (
                    bisect_left(keys, (product.thread, product.start)),
                    bisect_right(keys, (product.thread, product.end)),
                )
                yield product, int(before[last] - before[first])

    @property
    def recorded_waits(self) -> bool:
        """Whether the profiler recorded which streams wait for which."""
        return any(one.waited != NONE for one in self.waits)

    @property
    def linked(self) -> float:
        """Percentage of the device's events whose op is known."""
        return 100 * sum(map(bool, self.op)) / len(self.op) if self.op else 0.0
