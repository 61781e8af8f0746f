"""The duration of every op of a pipeline, from any profile that says when each ran.

That are tables, traces that this program wrote for Holistic Trace Analysis, traces in which the schedules of
torch.distributed.pipelining name their ops, and event dumps of Primus and Megatron, which hold
start and end of every forward and backward of a rank, by CUDA events:

    pp_rank_3.json    {"7": {"total": 3006.7, "memory": 80.3, "fwd_start": […], "fwd_end": […], "bwd_start": […], …}, …}
    config.json       {"pp_size": 8, "vp_size": 2, "num_mbs": 16, …}

Keys are training steps; times are milliseconds since the start of the step, memory is the most GiB reserved so far.
Lists are in the order of execution. With several chunks, Megatron's interleaved 1F1B runs groups of p micro-batches
chunk by chunk, backwards from the last chunk to the first (NVIDIA/Megatron-LM, core/pipeline_parallel/schedules.py).
Format: AMD-AGI/Primus, tools/visualization/pp_vis.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.files import LARGEST, open_file
from hybrid_des.interchange.profiles.durations import NEEDED, read_table
from hybrid_des.interchange.profiles.kineto import KinetoTrace
from hybrid_des.interchange.profiles.kineto_pipelining import named_ops, names_ops
from hybrid_des.interchange.profiles.kineto_ranks import KinetoRanks
from hybrid_des.interchange.profiles.recognition import (
    DUMP,
    GZIP,
    KINETO,
    TABLE,
    WHAT,
    Profile,
    format_of,
    head_of,
    is_archive,
    recognized,
)

if TYPE_CHECKING:
    import pandas as pd


class OpTable(NamedTuple):
    """Ops of a measured run.

    Attributes:
        name: of the run.
        source: the file or folder, for messages.
        rows: one per op, as in `durations.read_table`.
        memory: GiB reserved by each pipeline rank, if known.
        skipped: steps that are left out, since training was not yet under way.
        inferred: what the reader inferred, one sentence each.
    """

    name: str
    source: str
    rows: pd.DataFrame
    memory: tuple[float, ...] | None = None
    skipped: tuple[int, ...] = ()
    inferred: tuple[str, ...] = ()


def has_ops(target: Path) -> bool:
    """Whether a file or a folder says whose micro-batch each op is; also if it cannot be read."""
    if not target.is_dir() and not is_archive(target) and (not target.exists() or format_of(target) is None):
        return True
    profile = recognized(target)
    return profile.format in (TABLE, DUMP) or _ours(profile)


def _ours(profile: Profile) -> bool:
    return profile.format == KINETO and b'"microbatch"' in head_of(profile.files[0])  # others name no micro-batches


def read_ops(target: Path) -> OpTable:
    """The ops in a file or a folder.

    Raises:
        UsageError: it has none, or is broken; another kind of profile is called by its name.
    """
    if target.suffix in (".csv", ".parquet", ".yaml", ".yml") or not target.exists():
        return OpTable(_name(target), str(target), read_table(target))
    if not target.is_dir() and not is_archive(target) and format_of(target) is None:
        return OpTable(_name(target), str(target), read_table(target))  # says what it is
    return ops_of(recognized(target))


def ops_of(profile: Profile) -> OpTable:
    """The ops in the files of a profile, with the errors of `read_ops`."""
    with profile.told_errors():
        table = _ops_of(profile)
    return table._replace(source=profile.told(table.source))


def _ops_of(profile: Profile) -> OpTable:
    first = profile.files[0]
    if profile.format == DUMP:
        return _event_dump(profile.files)
    if _ours(profile):
        rows = own_rows(KinetoRanks.read(profile.files))
        if rows is not None:
            return OpTable(_name(first.parent), str(first.parent), rows[1])
    if (named := _named_in(profile)) is not None:
        return named
    if profile.format != TABLE:
        why = "which does not say whose micro-batch a kernel is"
        raise UsageError(
            f"{first}: {WHAT[profile.format]}, {why} (hybrid-des import reads it); "
            f"expected CSV or Parquet with {', '.join(NEEDED)}"
        )
    if len({path.stem for path in profile.files}) > 1:
        names = " and ".join(path.name for path in profile.files[:2])
        raise UsageError(f"{first.parent}: {names}: several tables; name the one that is meant")
    path = _best(profile.files)
    return OpTable(_name(path), str(path), read_table(path))


def named_table(profile: Profile, job: KinetoRanks) -> OpTable | None:
    """The ops that PyTorch's pipelining schedules name in traces; None if there are none, or not of every stage."""
    if (named := named_ops(job)) is None:
        return None
    source = profile.told(profile.files[0].parent)
    return OpTable(profile.name, source, named.rows, inferred=tuple(named.inferred))


def _named_in(profile: Profile) -> OpTable | None:
    """The same, where the first trace has such names; others are not parsed."""
    if profile.format != KINETO or not names_ops(profile.files[0]):
        return None
    return named_table(profile, KinetoRanks.read(profile.files))


def _name(path: Path) -> str:
    return path.resolve().name.partition(".")[0] or "imported"


def _best(files: Sequence[Path]) -> Path:
    """CSV first: it needs no further package."""
    return min(files, key=lambda path: path.suffix != ".csv")


KERNELS = {"forward": "F", "backward": "B", "weight_gradient": "W"}  # of `report.files.kineto`
DURATIONS = ("step", "replica", "stage", "chunk", "kind", "microbatch", "seconds", "start_s")
ORDERS = (["tensor", "data", "pipeline"], ["tensor", "pipeline", "data"])


@dataclass(frozen=True)
class OwnLayout:
    """Replica and pipeline rank of every rank, and the order of axes that numbers them so."""

    replica: Mapping[int, int]
    stage: Mapping[int, int]
    order: list[str]

    @property
    def parallel(self) -> dict[str, Any]:
        """The section of a scenario."""
        sizes = {"pipeline": max(self.stage.values()) + 1, "data": max(self.replica.values()) + 1}
        return {**sizes, **({"order": self.order} if self.order != ORDERS[0] else {})}


def own_rows(job: KinetoRanks) -> tuple[OwnLayout, pd.DataFrame] | None:
    """The layout, and one row per op of the step of median length; None if another program wrote the traces."""
    import pandas as pd

    if not all(one.facts for one in job.traces):
        return None
    stages = {one.rank: min(facts["stage"] for facts in one.facts.values()) for one in job.traces}
    places = sorted(set(stages.values()))
    turns: dict[int, int] = {}
    replica = {}
    for rank in sorted(stages):
        replica[rank] = turns[stages[rank]] = turns.get(stages[rank], -1) + 1
    layout = layout_of(replica, {rank: places.index(stage) for rank, stage in stages.items()})
    if layout is None or [one.rank for one in job.traces] != list(range(len(job.traces))):
        return None
    rows = [row for one in job.traces for row in _rows(one, job.chosen, layout)]
    table = pd.DataFrame(rows, columns=[*DURATIONS])
    return layout, table.assign(row=table.index)


def _rows(trace: KinetoTrace, step: int, layout: OwnLayout) -> Iterator[tuple[Any, ...]]:
    position = layout.replica[trace.rank], layout.stage[trace.rank]
    split = any(trace.names[int(trace.name[event])] == "weight_gradient" for event in trace.facts)
    for event, facts in trace.facts.items():
        name = trace.names[int(trace.name[event])]
        if int(trace.step[event]) == step and name in KERNELS:
            kind = "I" if split and KERNELS[name] == "B" else KERNELS[name]
            seconds = trace.duration[event] / 10**9
            yield step, *position, facts["chunk"], kind, facts["microbatch"], seconds, trace.start[event] / 10**9


def layout_of(replica: Mapping[int, int], stage: Mapping[int, int]) -> OwnLayout | None:
    """The layout in which ranks have these places; None if no order of axes numbers them so."""
    replicas, stages, count = max(replica.values()) + 1, max(stage.values()) + 1, len(replica)
    if replicas * stages != count or sorted(replica) != list(range(count)):
        return None
    ranks = range(count)
    if all(stage[rank] * replicas + replica[rank] == rank for rank in ranks):
        return OwnLayout(replica, stage, ORDERS[0])
    if all(replica[rank] * stages + stage[rank] == rank for rank in ranks):
        return OwnLayout(replica, stage, ORDERS[1])
    return None


KINDS = {"F": "fwd", "B": "bwd"}
MILLISECONDS = 1000
LONGEST_MS = 1e9  # of an op or a step: eleven days
SETTLED = 0.005  # share of the memory of the last step by which that of a step may differ once training is under way
_RANK = re.compile(r"(\d+)\D*$")


def _event_dump(files: Sequence[Path]) -> OpTable:
    """Read the dumps of all pipeline ranks of a replica, of the steps in which training was under way.

    A `config.json` beside them gives sizes. Memory is that of the last step.

    Raises:
        UsageError: a file is not a dump or is cut, ranks or steps are missing, or an op ends before it starts.
    """
    import pandas as pd

    ranks = _by_rank(files)
    folder = files[0].parent
    config = _config(folder)
    pipeline = int(config.get("pp_size", len(ranks)))
    if missing := [rank for rank in range(pipeline) if rank not in ranks]:
        raise UsageError(f"{folder}: {len(ranks)} of {pipeline} pipeline ranks; rank {missing[0]} has no event dump")
    dumps = {rank: _read(path) for rank, path in ranks.items()}
    steps = _common_steps(dumps, ranks)
    skipped = _warm_up(dumps, steps)
    chunks = int(config.get("vp_size", 1))
    rows = [
        row
        for rank, dump in dumps.items()
        for step in steps
        if step not in skipped
        for row in _ops(dump[step], rank, step, (pipeline, chunks), ranks[rank])
    ]
    table = pd.DataFrame(rows, columns=["step", "stage", "kind", "microbatch", "chunk", "start_s", "seconds"])
    held = _numbers(dump[steps[-1]].get("memory") for dump in dumps.values())
    return OpTable(_name(folder), str(folder), table.assign(replica=0, row=table.index), held, tuple(skipped))


def _by_rank(files: Sequence[Path]) -> dict[int, Path]:
    paths: dict[int, Path] = {}
    for number, path in enumerate(files):
        match = _RANK.search(path.stem)
        rank = int(match[1]) if match else number
        if rank in paths:
            raise UsageError(f"{path}: a second event dump of rank {rank}, beside {paths[rank].name}")
        paths[rank] = path
    return dict(sorted(paths.items()))


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        return {}
    config = read_json(path)
    for key in ("pp_size", "vp_size", "num_mbs"):
        value = config.get(key, 1)
        if type(value) is not int or not 0 < value < 2**20:
            raise UsageError(f"{path}: {key}: expected a positive whole number, found {value}")
    return config


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON file that holds an object.

    Raises:
        UsageError: it is not one, or is cut.
    """
    with open_file(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UsageError(f"{path}: larger than {LARGEST // 2**20} MiB")
    if content.startswith(GZIP):
        raise UsageError(f"{path}: packed; unpack it first")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not whole JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a JSON object")
    return value


def _read(path: Path) -> dict[int, dict[str, Any]]:
    """The steps of a dump by number."""
    steps = {}
    for key, step in read_json(path).items():
        if not key.isdecimal() or not isinstance(step, dict):
            raise UsageError(f'{path}: "{key[:40]}": expected the number of a step, and its events')
        steps[int(key)] = step
    if not steps:
        raise UsageError(f"{path}: no steps")
    return steps


def _common_steps(dumps: Mapping[int, Mapping[int, Any]], ranks: Mapping[int, Path]) -> list[int]:
    first = next(iter(dumps))
    for rank, dump in dumps.items():
        if different := sorted(dump.keys() ^ dumps[first].keys()):
            have, lacks = (rank, first) if different[0] in dump else (first, rank)
            raise UsageError(
                f"{ranks[lacks]}: no step {different[0]}, which {ranks[have].name} has; are they of one run?"
            )
    return sorted(dumps[first])


def _warm_up(dumps: Mapping[int, Mapping[int, Mapping[str, Any]]], steps: Sequence[int]) -> list[int]:
    """The first steps, in which the allocator's memory still grows: some op there waits for it, or for compilation."""
    settled = steps[0]
    for dump in dumps.values():
        held = _numbers(dump[step].get("memory") for step in steps)
        if held is None or min(held) <= 0:
            continue
        low = held[-1] * (1 - SETTLED)
        settled = max(settled, next(step for step, one in zip(steps, held, strict=True) if one >= low))
    return [step for step in steps if step < settled]


def _numbers(values: Iterable[Any]) -> tuple[float, ...] | None:
    """The values as numbers; None if one is none."""
    listed = list(values)
    return tuple(float(one) for one in listed) if all(isinstance(one, int | float) for one in listed) else None


def _ops(
    step: Mapping[str, Any], rank: int, number: int, sizes: tuple[int, int], path: Path
) -> Iterator[tuple[Any, ...]]:
    """The rows of one rank and step."""
    pipeline, chunks = sizes
    for kind, name in KINDS.items():
        starts, ends = (step.get(f"{name}_{end}") for end in ("start", "end"))
        where = f"{path}: step {number}: {name}"
        if not isinstance(starts, list) or not isinstance(ends, list) or len(starts) != len(ends) or not starts:
            raise UsageError(f"{where}_start and {name}_end: expected two lists of the same length")
        if len(starts) % (chunks if chunks == 1 else chunks * pipeline):
            raise UsageError(
                f"{where}: {len(starts)} ops; expected a multiple of {chunks} chunks × {pipeline} pipeline ranks"
            )
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if not all(isinstance(one, int | float) and abs(one) <= LONGEST_MS for one in (start, end)):
                raise UsageError(f"{where}: op {index}: expected times in milliseconds, of at most {LONGEST_MS:g}")
            if end < start:
                raise UsageError(f"{where}: op {index} ends at {end:g} ms, before its start at {start:g} ms")
            microbatch, chunk = place_of(index, pipeline, chunks)
            chunk = chunks - 1 - chunk if kind == "B" else chunk
            yield number, rank, kind, microbatch, chunk, start / MILLISECONDS, (end - start) / MILLISECONDS


def place_of(turn: int, pipeline: int, chunks: int) -> tuple[int, int]:
    """The micro-batch and the chunk of a rank's n-th forward: groups of `pipeline` micro-batches, chunk by chunk."""
    if chunks == 1:
        return turn, 0
    group, within = divmod(turn, pipeline * chunks)
    chunk, pipeline_rank = divmod(within, pipeline)
    return group * pipeline + pipeline_rank, chunk
