"""What kernels of a profile reached: shares of a GPU's peak, and times of collectives by size.

The arithmetic of a product follows from the shapes of its operator (`record_shapes=True`): 2·m·k·n for a product of
matrices, 4·b·h·s·t·d for attention, as FlashAttention counts (Dao, arXiv 2307.08691; whether a call was causal, which
halves it, is not among its shapes). Its time is that of the kernels that it launched. Only 16-bit products are compared
with the 16-bit peak. Transfers of collectives are those without waiting, so traces of several ranks are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.cluster.gpus import named_in, part
from hybrid_des.cluster.gpus import names as gpu_names
from hybrid_des.cluster.time_table import write_table
from hybrid_des.errors import UsageError, unknown
from hybrid_des.interchange.profiles.kineto import KinetoTrace, Product
from hybrid_des.interchange.profiles.kineto_collectives import transfer_of
from hybrid_des.interchange.profiles.kineto_ranks import KinetoRanks
from hybrid_des.interchange.profiles.recognition import KINETO, WHAT, recognized
from hybrid_des.measured.calibration.nccl_tests import Measurement, NcclTests, all_reduce_table, link_table
from hybrid_des.units import format_share

SIXTEEN = ("bfloat16", "half", "float16")
NAMES = {"all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter"}
INNER = "aten::_flash_attention_forward"  # batch × length × heads × size; others have heads before length
LEAST = 10_000  # nanoseconds of a product below which launching it counts as much as computing
QUARTILES = (25, 75)


class AchievedShare(NamedTuple):
    """The share of a peak that a kind of product reached.

    Attributes:
        what: gemm or attention.
        share: all arithmetic over the time of all kernels, of the peak.
        quartiles: of the share of single products.
        products: how many there were.
        error: mean error of a product's time if it is predicted with `share`.
    """

    what: str
    share: float
    quartiles: tuple[float, float]
    products: int
    error: float


class Calibration(NamedTuple):
    """What a profile calibrates.

    Attributes:
        gpu: name of the GPU whose peak shares refer to; None if there are no products.
        reached: shares by kind of product.
        collectives: times by size, of each kind.
        notes: what is lacking, and why.
    """

    gpu: str | None
    reached: Sequence[AchievedShare]
    collectives: Mapping[str, NcclTests]
    notes: Sequence[str]

    def __str__(self) -> str:
        """The shares, or why there are none."""
        halves = {one: " … ".join(format_share(share) for share in one.quartiles) for one in self.reached}
        shares = ", ".join(
            f"{one.what} {format_share(one.share)} (half of them {half})" for one, half in halves.items()
        )
        return f"{shares} of the peak of {self.gpu}" if shares else "; ".join(self.notes)

    @property
    def figures(self) -> dict[str, Any]:
        """The GPU, shares by kind of product, what times of collectives rest on, and what is lacking, for JSON."""
        reached = {one.what: dict(zip(one._fields[1:], one[1:], strict=True)) for one in self.reached}
        return {
            "gpu": self.gpu,
            "reached": reached,
            "transfers": {name: test.notes[0] for name, test in self.collectives.items()},
            "lacking": list(self.notes),
        }

    def files(self) -> dict[str, str]:
        """By the names of files: the times of all-reduces for `gradients.table`, and those of a link's messages."""
        tables: dict[str, str] = {}
        if (reduces := self.collectives.get("all_reduce")) is not None:
            tables["all_reduce.csv"] = write_table(all_reduce_table(reduces), "all_reduce in a profile")
        if known := next(filter(None, map(self.collectives.get, NAMES.values())), None):
            with suppress(UsageError):  # a group of one, or fewer bytes than ranks
                tables["link.csv"] = write_table(
                    link_table(known), f"one message of a ring, from {known.test} in a profile"
                )
        return tables


def calibrate_profile(target: str | Path, gpu: str | None = None) -> Calibration:
    """Find what the kernels of profiler traces reached, as `calibration_of`.

    Raises:
        UsageError: these are no such traces, they are broken, or nothing in them can be used.
    """
    profile = recognized(target)
    if profile.format != KINETO:
        raise UsageError(f"{target}: {WHAT[profile.format]}; --from-profile reads {WHAT[KINETO]}")
    with profile.told_errors():
        calibration = calibration_of(KinetoRanks.read(profile.files), str(target), gpu)
    if not calibration.reached and not calibration.collectives:
        raise UsageError(f"{target}: nothing to calibrate: {'; '.join(calibration.notes)}")
    return calibration


def calibration_of(job: KinetoRanks, source: str, gpu: str | None = None) -> Calibration:
    """What the kernels of profiler traces reached; `gpu` names the GPU, which is else told by the trace.

    Raises:
        UsageError: there is no such GPU.
    """
    notes: list[str] = []
    named = gpu_of(job.traces[0], gpu)
    reached = [] if named is None else _reached(job.traces, float(part(named).peak), notes)
    if named is None:
        notes.append(f"no efficiency: the GPU ({job.traces[0].device or 'not named'}) is unknown; name it by --gpu")
    collectives = _collectives(job, source, notes)
    return Calibration(named if reached else None, reached, collectives, notes)


def gpu_of(trace: KinetoTrace, gpu: str | None) -> str | None:
    """The catalogue's name of a GPU: as given, else the one whose words a device's name has.

    Raises:
        UsageError: the given name is unknown.
    """
    if gpu is not None:
        if gpu not in gpu_names():
            raise UsageError(f"--gpu: {unknown(gpu, gpu_names(), 'GPU')}")
        return gpu
    return named_in(trace.device)


def _reached(traces: Sequence[KinetoTrace], peak: float, notes: list[str]) -> list[AchievedShare]:
    shares: dict[str, list[tuple[float, float]]] = {}
    lacking = 0
    for trace in traces:
        for product, took in trace.outermost():
            flops = arithmetic(product)
            if flops is None:
                lacking += 1
            elif took >= LEAST:
                shares.setdefault("gemm" if "attention" not in product.name else "attention", []).append(
                    (flops, took / 1e9)
                )
    if lacking:
        notes.append(f"{lacking} GEMMs are not in 16 bits, or have no shapes; they are left out")
    if not shares:
        notes.append("no efficiency: no 16-bit GEMMs with shapes of at least 10 µs; profile with record_shapes=True")
    return [_share(what, np.array(each), peak) for what, each in sorted(shares.items(), reverse=True)]


def _share(what: str, each: np.ndarray[tuple[int, int], np.dtype[np.float64]], peak: float) -> AchievedShare:
    flops, seconds = each.T
    share = float(flops.sum() / seconds.sum() / peak)
    single = flops / seconds / peak
    low, high = (float(one) for one in np.percentile(single, QUARTILES))
    error = float(np.mean(np.abs(flops / (share * peak) / seconds - 1)))
    return AchievedShare(what, share, (low, high), len(each), error)


def arithmetic(product: Product) -> float | None:
    """Floating-point operations of a 16-bit product; None if it is none, or its shapes are not known."""
    shapes = [shape for shape in product.shapes if isinstance(shape, list) and len(shape) >= 2]
    if not any(word in str(one).lower() for one in product.types for word in SIXTEEN):
        return None
    try:
        if "attention" in product.name:
            heads_at, length_at = (2, 1) if product.name == INNER else (1, 2)
            batch, heads, queries, size = shapes[0][0], shapes[0][heads_at], shapes[0][length_at], shapes[0][3]
            keys = shapes[1][length_at]
            return float(4 * batch * heads * queries * keys * size)
        left, right = shapes[-2:]
        batches = left[0] if len(left) == 3 else 1
        return float(2 * batches * left[-2] * left[-1] * right[-1])
    except (ValueError, IndexError, TypeError):
        return None


def _collectives(job: KinetoRanks, source: str, notes: list[str]) -> dict[str, NcclTests]:
    times: dict[tuple[str, int], dict[int, list[int]]] = {}
    for key, members in job.gathered.items():
        size, ranks = members[0].communication.size, len(members)
        expected = members[0].communication.group_size or ranks
        if key[2] in NAMES and size and ranks == expected:
            whole = size * ranks if key[2] == "all-gather" else size
            times.setdefault((key[2], ranks), {}).setdefault(whole, []).append(max(1, transfer_of(members)) * 1000)
    if not times:
        alone = len(job.traces) == 1
        notes.append(
            "no times of collectives: "
            + ("one rank's kernels hold the wait for the others" if alone else "none of known size has all its ranks")
        )
    tables: dict[str, NcclTests] = {}
    for (does, ranks), sizes in sorted(times.items(), key=lambda entry: len(entry[1])):
        each = [Measurement(size, round(median(sizes[size]))) for size in sorted(sizes)]
        spread = [Fraction(max(all_of), max(1, min(all_of))) for all_of in sizes.values()]
        slowest = f"the slowest of a size took up to {float(max(spread)):.2f} times the fastest"
        note = f"medians of {sum(map(len, sizes.values()))} transfers on {ranks} ranks; {slowest}"
        tables[NAMES[does]] = NcclTests(NAMES[does], ranks, each, source, (note,))
    return tables
