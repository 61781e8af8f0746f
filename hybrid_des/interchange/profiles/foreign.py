"""Recordings of other programs: named, with what to do instead of importing them.

Formats: Nsight Systems (docs.nvidia.com/nsight-systems, reports and exports), NCCL Inspector (NVIDIA/nccl,
plugins/profiler/inspector), flight recorder (pytorch, torch/csrc/distributed/c10d/FlightRecorder.hpp), memory snapshots
(pytorch, torch/cuda/memory.py), execution traces (pytorch, torch/csrc/profiler/standalone).
Pickles are searched for words, never loaded.
"""

from __future__ import annotations

from pathlib import Path

UTF8 = "convert it to UTF-8, as with iconv -f LATIN1 -t UTF-8"
RECORD = "profile the same steps with torch.profiler and import what export_chrome_trace writes"
PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
UTF16 = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0[")
NSIGHT = (".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep")


def foreign(head: bytes, path: Path) -> tuple[str, str] | None:
    """What a file of another program is, and what to do; None if it is not known.

    Args:
        head: its first bytes.
        path: its name, which tells reports of Nsight.
    """
    if head.startswith(UTF16):
        return "text in UTF-16", "convert it, as with iconv -f UTF-16 -t UTF-8"
    if path.suffix in NSIGHT or (head.startswith(b"SQLite format 3") and b"CUPTI" in head):
        return "a report of NVIDIA Nsight", RECORD
    if b'"inspector_output_format_version"' in head:
        return "output of NCCL Inspector, which has collectives and no computation", RECORD
    if _all_in(head, b"entries", b"pg_config") or _all_in(head, b"collective_seq_id", b"profiling_name"):
        return "a dump of PyTorch's flight recorder, which has collectives and no computation", RECORD
    if _all_in(head, b"segments", b"device_traces") or (head.startswith(PICKLE) and b"segments" in head):
        return "a snapshot of PyTorch's memory, which has no times of kernels", RECORD
    if _all_in(head, b'"schema"', b'"nodes"'):
        convert = (
            "convert it with chakra_trace_link and chakra_converter, or import the profiler's trace of these steps"
        )
        return "an execution trace of PyTorch, which has no times of kernels", convert
    if head.startswith(PICKLE):
        return "a pickle", RECORD
    return None


def _all_in(head: bytes, *words: bytes) -> bool:
    return all(word in head for word in words)
