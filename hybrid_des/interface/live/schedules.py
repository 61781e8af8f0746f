"""Every schedule on free links, side by side: as data for a page, and the page as one file for lectures."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hybrid_des.errors import HybridDesError, one_line
from hybrid_des.interface.live.schedule_formulas import row_of
from hybrid_des.pipeline import schedules
from hybrid_des.planning.planner import plan_of
from hybrid_des.report.page.document import PageRun, fill, run_data
from hybrid_des.result import Result
from hybrid_des.scenario.composition import override
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_of
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import format_seconds, format_share

FOLDER = Path(__file__).parent
ACTIVATIONS = 10**9  # bytes that stand for the activations of one micro-batch on one rank
UNIT = "A"  # that amount on the page


class Sizes(BaseModel):
    """What all schedules are given: sizes, and times of one micro-batch on one rank in seconds.

    Attributes:
        pipeline: ranks.
        microbatches: per step.
        chunks: per rank, where a schedule has a choice.
        forward: time of a forward.
        backward: time of a whole backward.
        weight: the part of it that computes weight gradients; None: half.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    pipeline: int = Field(4, ge=1, le=32)
    microbatches: int = Field(8, ge=1, le=128)
    chunks: int = Field(2, ge=1, le=8)
    forward: float = Field(1, ge=0, le=1000, allow_inf_nan=False)
    backward: float = Field(2, ge=0, le=1000, allow_inf_nan=False)
    weight: float | None = Field(None, ge=0, le=1000, allow_inf_nan=False)


def free_run(
    name: str, pipeline: int, microbatches: int, chunks: int | None = None, overrides: Sequence[str] = ()
) -> Run:
    """The run of a schedule on free links, with F = 1 s and a backward of 2 s unless overridden.

    Args:
        name: the schedule.
        pipeline: number of ranks.
        microbatches: number per step.
        chunks: per rank; default: 2 where the schedule allows a choice, since 1 would show nothing of interest.
        overrides: as `--set`.

    Raises:
        HybridDesError: the schedule does not take these sizes.
    """
    schedule: dict[str, Any] = {"kind": name, "microbatches": microbatches}
    if chunks is not None:
        schedule["chunks"] = chunks
    elif name in schedules.names() and schedules.find(name).facts["many_chunks"]:
        schedule["chunks"] = 2
    scenario = _scenario(schedule, pipeline, overrides)
    plan = plan_of(scenario)
    plan.check()
    return run(scenario, plan)


def _scenario(schedule: dict[str, Any], pipeline: int, overrides: Sequence[str]) -> Scenario:
    values: dict[str, object] = {
        "record": "compute",
        "cluster": {"gpus_per_node": pipeline, "nvlink": {"bandwidth": "inf", "latency": 0}},
        "parallel": {"pipeline": pipeline},
        "schedule": schedule,
        "workload": {
            "per": "rank", "forward": 1, "backward": 2, "memory": {"per_parameter": 0, "activation": ACTIVATIONS},
        },
    }  # fmt: skip
    document = Document(values, f"schedules {schedule['kind']}")
    override(document, overrides)
    return scenario_of(document)


def schedule_runs(sizes: Sizes, overrides: Sequence[str] = ()) -> Iterator[tuple[dict[str, Any], str]]:
    """Every schedule by name, as `run_data` gives it, with its table row; or why it does not take these sizes."""
    times, overrides = _said(sizes, overrides), [*_times(sizes), *overrides]
    for name in schedules.names():
        chunks = sizes.chunks if schedules.find(name).facts["many_chunks"] else None
        try:
            done = free_run(name, sizes.pipeline, sizes.microbatches, chunks, overrides)
        except HybridDesError as error:
            reason = one_line(str(error).splitlines()[0].removeprefix(f"schedules {name}: "))
            about = {"name": name, "refused": reason, "duration": 0, "gpuMemory": 0, "tables": {}}
            yield {**about, "lanes": [], "kinds": [], "causes": [], "key": [], "left_out": []}, ""
        else:
            about, data = run_data(PageRun(Result(done), name=name))
            yield {**about, "note": _note(done, chunks), "row": row_of(done, times)._asdict()}, data


def by_bubble(runs: Iterable[tuple[dict[str, Any], str]]) -> list[tuple[dict[str, Any], str]]:
    """Runs from the smallest bubble to the largest, equal ones by name, and at the end those that are refused."""
    return sorted(runs, key=lambda run: (run[0]["row"]["bubble"] if "row" in run[0] else inf, run[0]["name"]))


def _times(sizes: Sizes) -> list[str]:
    """The times as overrides."""
    given = {"forward": sizes.forward, "backward": sizes.backward, "weight": sizes.weight}
    return [f"workload.{key}={value!r}" for key, value in given.items() if value is not None]


def _note(done: Run, chunks: int | None) -> str:
    """Step, bubble and most activations in one line."""
    summary = Result(done).summary
    peaks = [size / ACTIVATIONS for size in summary["peak_memory_bytes"]]
    most = max(peaks)
    held = f"at most {most:.3g} {UNIT} held" + (f", on rank {peaks.index(most)}" if min(peaks) < most else "")
    figures = [format_seconds(summary["step_time_s"]), f"bubble {format_share(summary['step_shares']['bubble'])}", held]
    if len(done.plan.paths) > 1:
        figures.append("weights held twice")
    return " · ".join([*figures, *([f"v = {chunks}"] if chunks is not None else [])])


def schedules_page(sizes: Sizes, overrides: Sequence[str] = (), *, connected: bool = False) -> str:
    """The page as HTML.

    Args:
        sizes: those that it begins with.
        overrides: further values of every schedule's scenario, as `--set`.
        connected: whether a server answers when sizes are changed; else the page has no fields for them.
    """
    runs = [] if connected else by_bubble(schedule_runs(sizes, overrides))
    more = {"sizes": _said(sizes, overrides), "connected": connected, "unit": [ACTIVATIONS, UNIT]}
    connection = (FOLDER / "connection.js").read_text(encoding="utf-8") if connected else ""
    return fill(FOLDER / "schedules.html", runs, more=more, TITLE="Pipeline schedules", CONNECTION=connection)


def _said(sizes: Sizes, overrides: Sequence[str]) -> dict[str, Any]:
    """The sizes with the times that overrides give; None for one per rank."""
    said = sizes.model_dump()
    if overrides:
        schedule = {"kind": "gpipe", "microbatches": sizes.microbatches}
        workload = _scenario(schedule, sizes.pipeline, [*_times(sizes), *overrides]).workload
        given = {key: getattr(workload, key) for key in ("forward", "backward", "weight")}
        said |= {key: None if isinstance(time, tuple) or time is None else float(time) for key, time in given.items()}
    return said
