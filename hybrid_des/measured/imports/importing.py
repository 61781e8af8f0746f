"""Import a profile: its format decides how its files are read, and what the scenario is made of.

Of results of this program, `timeline.csv` and folders written by `export --for hta`, ranks do again what they did, gaps
included, so that the step is the same. The ops also say which schedule they follow and how long each took: with
`--set schedule.kind=…` the scenario takes medians of them, and messages of the recorded size on the links that are
given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles import op_table
from hybrid_des.interchange.profiles.graph import COMPUTE, RankTrace, Span, rank_trace
from hybrid_des.interchange.profiles.kineto import KinetoTrace
from hybrid_des.interchange.profiles.kineto_ranks import NANOSECOND, KinetoRanks
from hybrid_des.interchange.profiles.recognition import CHAKRA, DUMP, KINETO, TABLE, WHAT, Profile, head_of, recognized
from hybrid_des.measured.imports.calibrating import calibration_of
from hybrid_des.measured.imports.imported import Imported
from hybrid_des.measured.imports.pipelined import PipelineProfile
from hybrid_des.measured.imports.traced import TraceProfile, chakra_profile, kineto_profile
from hybrid_des.measured.replay.measured import MeasuredRun, measured_run
from hybrid_des.measured.replay.stragglers import Stragglers
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, load
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]  # (bytes read, of so many)


def import_profile(
    target: str | Path | Sequence[str | Path],
    progress: Progress | None = None,
    machine: Source | None = None,
    overheads_from: Sequence[str | Path] = (),
    *,
    schedule: str | None = None,
    gpu: str | None = None,
) -> Imported:
    """Read a profile, make a scenario from it, and simulate it.

    Args:
        target: a file, a folder, an archive or a pattern of files, or several of them.
        progress: called while large files are read.
        machine: a scenario, the path of its file, or a mapping: its cluster carries the messages of traces without a
            pipeline; default: the recorded times.
        overheads_from: recordings of the same pipeline with other numbers of chunks per rank, to separate host
            time from work.
        schedule: the name of the schedule of a table or of event dumps; default: the one with the recorded order.
        gpu: the catalogue's name of the GPU of traces that do not name it, for the shares of its peak.

    Returns:
        Its figures, its report as text, the scenario as values; `write` puts all of it into a folder.

    Raises:
        UsageError: there is no profile, or it is broken; the message names the file and what is wrong with it.

    Example:
        >>> from hybrid_des import import_profile
        >>> found = import_profile("scenarios/durations/a100_8x_slow_gpu.csv")
        >>> found.figures["schedule"], round(found.figures["worst_error_percent"], 1)
        ('1f1b', 0.0)
    """
    profile, known = recognized(target), None if machine is None else load(machine)
    with profile.told_errors():
        _refuse_idle(profile, schedule, gpu)
        if profile.format == KINETO and not overheads_from:
            job = KinetoRanks.read(profile.files, progress)
            return _of_kineto(profile, job, known, gpu)
        return _of_ops(profile, known, overheads_from, schedule)


def _refuse_idle(profile: Profile, schedule: str | None, gpu: str | None) -> None:
    """Refuse what does not apply to a profile of this format.

    Raises:
        UsageError: something is given that does not apply.
    """
    what = f"{profile.name}: {WHAT[profile.format]}"
    if schedule is not None and profile.format not in (TABLE, DUMP):
        raise UsageError(f"{what} is done as recorded; --schedule is for tables of durations and event dumps")
    if gpu is not None and profile.format != KINETO:
        raise UsageError(f"{what} names no kernels; --gpu is for {WHAT[KINETO]}")


def _of_ops(
    profile: Profile, machine: Scenario | None, overheads_from: Sequence[str | Path], schedule: str | None
) -> Imported:
    if profile.format == CHAKRA:
        return chakra_profile(profile, machine).imported()
    if profile.format == TABLE and not overheads_from and schedule is None and (own := own_timeline(profile)):
        return own.imported()
    return PipelineProfile.of(profile, [recognized(one) for one in overheads_from], schedule).imported()


def _of_kineto(profile: Profile, job: KinetoRanks, machine: Scenario | None, gpu: str | None) -> Imported:
    if (own := own_kineto(profile, job)) is not None:
        return own.imported()
    calibration = calibration_of(job, str(profile.files[0]), gpu)
    pipeline = named_pipeline(profile, job) or kineto_profile(profile, job, machine)
    return replace(pipeline.imported(), calibration=calibration)


def named_pipeline(profile: Profile, job: KinetoRanks) -> PipelineProfile | None:
    """The profile of traces in which PyTorch's schedules name the ops; None if they are others, or lack some."""
    ops = op_table.named_table(profile, job)
    if ops is None:
        return None
    pipeline = PipelineProfile(profile, ops)
    try:
        _ = pipeline.trace
    except UsageError:  # such as part of a step: its kernels are still a trace
        return None
    return pipeline


LANE = "compute"
NEEDED = {
    b"rank", b"lane", b"kind", b"start_s", b"end_s", b"replica", b"pipeline_rank", b"step", b"hop", b"peer", b"asked_s",
    b"bytes", b"microbatch", b"chunk", b"stage",
}  # fmt: skip
OF_ROWS = ("step", "rank", "replica", "pipeline_rank", "start_s", "end_s")  # numbers that each row has
OF_MESSAGES = ("asked_s", "peer", "bytes", "hop")
OF_OPS = ("microbatch", "chunk", "stage")  # empty in other rows
OPS = ("F", "B", "W")  # of a timeline, besides fused pairs
LONGEST_S = 10**6
UNKNOWN = (
    "links: what ranks waited for stays as recorded; with --set schedule.kind=… messages travel on those that are set"
)


def own_timeline(profile: Profile) -> TraceProfile | None:
    """The profile of a `timeline.csv` with ranks and lanes; None if the table is another one.

    Raises:
        UsageError: the table is broken.
    """
    import pandas as pd

    path = next((path for path in profile.files if path.suffix == ".csv"), None)
    if path is None or not {*head_of(path).partition(b"\n")[0].strip().split(b",")} >= NEEDED:
        return None
    ops = op_table.ops_of(profile).rows  # refuses broken tables
    rows = _whole(pd.read_csv(path, index_col=False), path)
    compute = rows[rows.lane == LANE]
    places = compute.drop_duplicates("rank").set_index("rank")
    numbers = [{int(rank): int(at) for rank, at in places[name].items()} for name in ("replica", "pipeline_rank")]  # type: ignore[call-overload]
    layout = op_table.layout_of(*numbers)
    if layout is None or not {*compute.kind} <= {*OPS, "optimizer"}:
        return None
    times = rows.assign(**{end: (rows[f"{end}_s"] * PICOSECONDS_PER_SECOND).round() for end in ("start", "end")})
    bounds = times.groupby("step").agg({"start": "min", "end": "max"}).astype("int64")
    order = np.argsort((bounds.end - bounds.start).to_numpy(), kind="stable")
    middle = int(order[(len(order) - 1) // 2])
    step, zero, end = (int(column[middle]) for column in (bounds.index, bounds.start.to_numpy(), bounds.end.to_numpy()))
    if len(bounds) == 1:
        end = max(end, zero + round(_step_of_summary(path) * PICOSECONDS_PER_SECOND))
    mine = times[(times.step == step) & (times.lane == LANE)].sort_values(["start", "end"], kind="stable")
    parts = {rank: mine[mine["rank"] == rank] for rank in sorted(layout.stage)}
    spans = {rank: [_span(one) for one in part.to_dict("records")] for rank, part in parts.items()}
    traces = [rank_trace(f"rank {rank} of {path}", spans[rank], zero, end) for rank in sorted(spans)]
    messages = times[(times.lane != LANE) & (times.step == step)]
    run, measured = measured_run(ops, str(path)), {step: (end - zero) / PICOSECONDS_PER_SECOND}
    return _profile(profile, traces, layout, run, measured=measured, step=step, collectives=_transfers(messages))


def _whole(rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The rows of a timeline, with numbers where there must be some.

    Raises:
        UsageError: a row lacks what every row has, or every message, such as the last one of a cut file.
    """
    import pandas as pd

    numbers = {name: pd.to_numeric(rows[name], errors="coerce") for name in (*OF_ROWS, *OF_MESSAGES, *OF_OPS)}
    numbered = rows.assign(**numbers)
    empty = numbered[[*OF_ROWS, "lane", "kind"]].isna()
    empty[[*OF_OPS]] = numbered[[*OF_OPS]].isna() & rows[[*OF_OPS]].notna()
    empty[[*OF_MESSAGES]] = numbered[[*OF_MESSAGES]].isna() & (numbered.lane != LANE).to_numpy()[:, None]
    if empty.any(axis=None):
        row = int(empty.any(axis=1).argmax())
        lacks = next(name for name in rows if name in empty and empty[name].iloc[row])
        raise UsageError(f"{path}: row {row + 2}: {lacks}: expected a value, found {rows[lacks].iloc[row]}; is it cut?")
    return numbered


def _step_of_summary(path: Path) -> float:
    """The step of the `summary.json` beside a timeline, whose rows end with the last message; 0 if there is none."""
    try:
        summary = json.loads((path.parent / "summary.json").read_text(encoding="utf-8"))
        step = summary["step_time_s"] if path.name == "timeline.csv" else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
    return float(step) if isinstance(step, int | float) and 0 <= step < LONGEST_S else 0.0


def _span(row: Mapping[Any, Any]) -> Span:
    facts = {name: int(row[name]) for name in ("microbatch", "chunk", "stage") if row[name] == row[name]}
    kind = {} if row["kind"] == "optimizer" else {"op_kind": row["kind"], **facts}
    return Span(str(row["kind"]), COMPUTE, int(row["start"]), int(row["end"]), place=kind)


def _transfers(messages: pd.DataFrame) -> pd.DataFrame:
    """One row per message: as `collectives.csv`, its group being its two ranks."""
    names = ["step", "group", "kind", "number", "bytes", "rank", "start_s", "transfer_s", "wait_s"]
    if messages.empty:
        return messages.reindex(columns=names)
    first = messages[messages.hop == 0]
    table = first.assign(
        group=first["rank"].astype(str) + ">" + first.peer.astype(int).astype(str),
        number=first.groupby(["rank", "peer", "kind"]).cumcount(),
        transfer_s=first.end_s - first.start_s,
        wait_s=first.start_s - first.asked_s,
    )
    return table[names]


def own_kineto(profile: Profile, job: KinetoRanks) -> TraceProfile | None:
    """The profile of a folder written by `export --for hta`; None if the traces are others."""
    own = op_table.own_rows(job)
    if own is None:
        return None
    layout, table = own
    try:
        run = measured_run(table.assign(row=table.index), str(profile.files[0].parent))
    except UsageError:  # fused pairs: no durations of single ops
        return None
    traces = [_own_trace(job, one, job.zero, job.outer[job.chosen][1]) for one in job.traces]
    return _profile(profile, traces, layout, run, measured=job.lengths, step=job.chosen, collectives=job.table())


def _own_trace(job: KinetoRanks, trace: KinetoTrace, zero: int, end: int) -> RankTrace:
    """The ops of a rank; its collectives and messages show as gaps."""
    spans = []
    for event in job.computing(trace).tolist():
        name = trace.names[int(trace.name[event])]
        facts = trace.facts.get(event)
        known = {} if facts is None else {"op_kind": op_table.KERNELS.get(name, "F"), **facts}
        start = int(trace.start[event]) * NANOSECOND
        spans.append(Span(name, COMPUTE, start, start + int(trace.duration[event]) * NANOSECOND, place=known))
    return rank_trace(str(trace.path), spans, zero * NANOSECOND, end * NANOSECOND)


def _profile(
    profile: Profile, traces: Sequence[RankTrace], layout: op_table.OwnLayout, run: MeasuredRun, *,
    measured: Mapping[int, float], step: int, collectives: pd.DataFrame,
) -> TraceProfile:  # fmt: skip
    sent = collectives[collectives.kind.isin(["activation", "gradient", "send-receive"])]
    size = int(sent.bytes.max()) if len(sent) else 0
    chunks = {"chunks": run.sizes.chunk} if run.sizes.chunk > 1 else {}
    workload = {"durations": "durations.csv", "timing": "auto", **({"activation": size} if size else {})}
    return TraceProfile(
        profile,
        traces,
        len(traces),
        measured=measured,
        unknown=[UNKNOWN],
        facts={"step": step, "pipeline": run.sizes.stage, "replicas": run.sizes.replica, "chunks": run.sizes.chunk,
               "microbatches": run.sizes.microbatch},
        tables={"durations.csv": _durations(run), "collectives.csv": collectives},
        schedule=run.schedule or "its own order",
        stragglers=Stragglers(run),
        further={"parallel": layout.parallel, "schedule": {"microbatches": run.sizes.microbatch, **chunks},
                 "workload": workload},
    )  # fmt: skip


def _durations(run: MeasuredRun) -> pd.DataFrame:
    """The durations of all ops, as a table."""
    import pandas as pd

    rows = []
    for kind, times in run.durations.times.items():
        for index in zip(*np.nonzero(times >= 0), strict=True):
            step, replica, stage, chunk, microbatch = (int(one) for one in index)
            seconds = int(times[index]) / PICOSECONDS_PER_SECOND
            rows.append((run.durations.steps[step], replica, stage, chunk, kind, microbatch, seconds))
    return pd.DataFrame(rows, columns=[*op_table.DURATIONS[:-1]])
