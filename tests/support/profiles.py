"""Profiles written from simulated runs, in the formats of other programs."""

import gzip
import json
from pathlib import Path
from typing import Any

from hybrid_des import simulate
from hybrid_des.scenario.definition import Scenario

GROWING = {1: 0.8, 2: 0.95}  # share of the memory in the first steps


def event_dumps(scenario: Scenario, folder: Path, changes: Any = None) -> Path:
    """Event dumps of a run with whole backwards; `changes` may change the dumps by rank before they are written."""
    table = simulate(scenario).timeline.query("lane == 'compute' and kind in ('F', 'B')").sort_values("start_s")
    pipeline, chunks = scenario.parallel.pipeline, scenario.schedule.chunks
    dumps: dict[int, dict[str, Any]] = {}
    for (rank, number), rows in table.groupby(["pipeline_rank", "step"]):
        zero = table[table.step == number].start_s.min()
        step: dict[str, Any] = {"total": 0.0, "memory": 10.0 * (pipeline - rank) * GROWING.get(number + 1, 1)}
        for kind, name in (("F", "fwd"), ("B", "bwd")):
            for end in ("start", "end"):
                step[f"{name}_{end}"] = [1000 * (one - zero) for one in rows[rows.kind == kind][f"{end}_s"]]
        dumps.setdefault(rank, {})[str(number + 1)] = step
    if changes is not None:
        changes(dumps)
    folder.mkdir(exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(dump))
    config = {"pp_size": pipeline, "vp_size": chunks, "num_mbs": scenario.schedule.microbatches}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Kineto:
    """A profiler's trace of one rank, as its events are added; times in µs."""

    def __init__(self, rank: int = 0, world: int | None = 1) -> None:
        self.about: dict[str, Any] = {"schemaVersion": 1}
        if world is not None:
            self.about["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
        self.after: dict[str, Any] = {}  # what stands behind the events
        self.events: list[dict[str, Any]] = []

    def note(self, name: str, start: float, end: float, thread: int = 1) -> None:
        """An annotation, such as ProfilerStep#3."""
        self.events.append(_event("user_annotation", name, start, end - start, thread, {}))

    def kernel(
        self, name: str, start: float, took: float, stream: int = 7, *, launched: float | None = None, thread: int = 1,
        **args: Any,
    ) -> None:  # fmt: skip
        """A kernel and its launch."""
        number = len(self.events)
        at = start if launched is None else launched
        self.events.append(_event("cuda_runtime", "cudaLaunchKernel", at, 1, thread, {"correlation": number}))
        about = {"correlation": number, "stream": stream, **args}
        self.events.append(_event("kernel", name, start, took, stream, about))

    def product(self, name: str, shapes: list[list[int]], start: float, took: float) -> None:
        """An operator on 16-bit tensors of these shapes, and its kernel."""
        types = ["c10::BFloat16"] * len(shapes)
        self.events.append(_event("cpu_op", name, start, 1, 1, {"Input Dims": shapes, "Input type": types}))
        self.kernel("gemm", start, took)

    def reduce(self, start: float, took: float, elements: int, *, launched: float | None = None, **args: Any) -> None:
        """An all-reduce of floats on a stream of its own."""
        nccl = {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "Float", **args}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.kernel(name, start, took, 20, launched=launched, **nccl)

    def collective(
        self, does: str, start: float, end: float, ranks: list[int], elements: int = 1000, *, stream: int = 20,
        **args: Any,
    ) -> None:  # fmt: skip
        """A kernel of NCCL with the arguments that PyTorch gives it since 2.3."""
        nccl = {
            "Collective name": does, "In msg nelems": elements, "Out msg nelems": elements, "dtype": "BFloat16",
            "Group size": len(ranks), "Process Group Name": "1", "Process Group Ranks": str(ranks),
        }  # fmt: skip
        self.kernel("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", start, end - start, stream,
                    **{**nccl, **args})  # fmt: skip

    def write(self, path: Path, shift: float = 0) -> Path:
        """The file, its times later by `shift`; packed if its name says so."""
        events = [{**event, "ts": event["ts"] + shift} for event in self.events]
        text = json.dumps({**self.about, "traceEvents": events, **self.after}).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def _event(category: str, name: str, start: float, took: float, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": start, "dur": took, "args": args}
