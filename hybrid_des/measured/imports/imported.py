"""What an import found: figures, text, and the files to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.verdict import share_name
from hybrid_des.interchange.profiles.recognition import WHAT, Profile
from hybrid_des.measured.imports.calibrating import Calibration
from hybrid_des.measured.replay.stragglers import Stragglers
from hybrid_des.measured.replay.who_was_slow import told, told_of_ranks
from hybrid_des.report.files.staging import Written, write_files
from hybrid_des.report.page.document import PageRun, page_of
from hybrid_des.report.terminal import as_html
from hybrid_des.units import format_seconds, format_share

if TYPE_CHECKING:
    import pandas as pd

MOST_SHOWN = 6  # unusual ops in the text
LEAST = 0.0005  # a share of the step that the text gives
LABEL = 12  # characters of a label
HOST = {  # keys of the fact `overhead`, in words
    "forward": "per forward", "backward": "per backward", "weight": "per weight part", "between": "between ops",
    "latency": "from rank to rank",
}  # fmt: skip
TRACES = "chakra.*.et"
REPLACED = (  # files of an earlier import that this one may lack
    "collectives.csv", "durations.csv", "order.csv", "classes.csv", "steps.csv", "stragglers.png", "stragglers.svg",
    "all_reduce.csv", "link.csv",
)  # fmt: skip


class Unusual(NamedTuple):
    """An op that took much longer than others of its kind.

    Attributes:
        what: its name.
        rank: its pipeline rank, or rank.
        step: its step.
        seconds, usual: its duration, and the median.
        place: what else is known of it.
    """

    what: str
    rank: int
    step: int
    seconds: float
    usual: float
    place: Mapping[str, Any]

    def to_mapping(self) -> dict[str, Any]:
        """The fields, by name."""
        return {
            "op": self.what, "rank": self.rank, "step": self.step, "seconds": self.seconds, "median_s": self.usual,
            **self.place,
        }  # fmt: skip


@dataclass(frozen=True)
class Imported:
    """An imported profile.

    Attributes:
        profile: its format and files.
        values: the scenario, as in a file.
        files: further files that it needs, by name.
        measured: seconds of each measured step; None if they are not known.
        simulated: seconds of the same steps, simulated.
        reproduced: which of them the scenario was made of, if one was: errors are those of the others.
        linked: percentage of the device's work whose op is known.
        schedule: the name of the schedule, or what is known instead.
        unusual: ops that took much longer than others of their kind, the longest first.
        unknown: what the profile does not say, one sentence each.
        clocks: `spread_s`, by which the clocks of ranks differ at least, and whether they are `apart`.
        facts: further figures.
        stragglers: who was slow, if the profile says whose micro-batch each op is.
        calibration: what the kernels of a trace reached, and times of its collectives.
        shown: makes the measured and the simulated run to show on a page.
    """

    profile: Profile
    values: Mapping[str, Any]
    files: Mapping[str, Any]
    measured: Sequence[float] | None
    simulated: Sequence[float]
    linked: float
    schedule: str | None
    unusual: Sequence[Unusual]
    unknown: Sequence[str]
    clocks: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    reproduced: int | None = None
    shown: Callable[[], tuple[RunAnalysis, RunAnalysis]] | None = None
    stragglers: Stragglers | None = None
    calibration: Calibration | None = None

    @property
    def figures(self) -> dict[str, Any]:
        """All figures by their public keys; what is not known is None."""
        errors = self._errors
        return {
            "name": self.values["name"],
            "format": self.profile.format,
            "files": [self.profile.told(path) for path in self.profile.files],
            "ignored": [self.profile.told(path) for path in self.profile.ignored],
            "measured_step_time_s": _mean(self.measured),
            "simulated_step_time_s": _mean(self.simulated),
            "mean_error_percent": _mean(list(map(abs, errors))) if errors else None,
            "worst_error_percent": max(map(abs, errors)) if errors else None,
            "bias_percent": _mean(errors) if errors else None,
            "linked_percent": self.linked,
            "schedule": self.schedule,
            "unusual": [one.to_mapping() for one in self.unusual],
            "unknown": list(self.unknown),
            "clocks": dict(self.clocks),
            **self.facts,
            **({} if self.stragglers is None else self.stragglers.figures),
            **({} if self.calibration is None else self.calibration.figures),
            **({} if self.shares is None else {"step_shares": self.shares}),
        }

    @cached_property
    def shares(self) -> Mapping[str, float] | None:
        """What the mean GPU does in the simulated step that is shown, as in the summary; None if none is."""
        if self.shown is None:
            return None
        return {name: float(share) for name, share in self.shown()[1].breakdown.shares.items()}

    @property
    def _errors(self) -> list[float]:
        if self.measured is None:
            return []
        pairs = [*enumerate(zip(self.simulated, self.measured, strict=True))]
        others = [pair for number, pair in pairs if number != self.reproduced] or [pair for _, pair in pairs]
        return [100 * (simulated / measured - 1) for simulated, measured in others if measured]

    def tables(self) -> dict[str, pd.DataFrame]:
        """What was found as DataFrames, by name; those of which nothing is known are left out.

        `steps`: `step` (from 0), `measured_s`, `simulated_s` and `error_percent`. `unusual`: ops that took much longer
        than others of their kind. `classes`: who was slow, as of `replay`. `measured`, `simulated`: the timelines of
        the step that is shown, with the columns of `Result.timeline`.

        Example:
            >>> from hybrid_des import import_profile
            >>> tables = import_profile("scenarios/durations/a100_8x_slow_gpu.csv").tables()
            >>> sorted(tables)
            ['classes', 'measured', 'simulated', 'steps']
            >>> bool(tables["steps"].error_percent.abs().max() < 0.1)
            True
        """
        import pandas as pd

        known: dict[str, pd.DataFrame] = {}
        if self.measured is not None:
            steps = pd.DataFrame({"measured_s": list(self.measured), "simulated_s": list(self.simulated)})
            steps["error_percent"] = 100 * (steps["simulated_s"] / steps["measured_s"] - 1)
            known["steps"] = steps.rename_axis("step").reset_index()
        if self.unusual:
            known["unusual"] = pd.DataFrame([event.to_mapping() for event in self.unusual])
        if self.stragglers is not None:
            known["classes"] = self.stragglers.classes
        if self.shown is not None:
            known |= {name: run.timeline for name, run in zip(("measured", "simulated"), self.shown(), strict=True)}
        return known

    def contents(self) -> dict[str, Any]:
        """The files to write: those of the scenario, the figures, the text and the page."""
        scenario = yaml.safe_dump(dict(self.values), sort_keys=False, allow_unicode=True, width=120)
        return {
            **dict.fromkeys(REPLACED),
            **self.files,
            **({} if self.stragglers is None else self.stragglers.files()),
            **({} if self.calibration is None else self.calibration.files()),
            "scenario.yaml": scenario,
            "import.json": self.figures,
            "import.txt": self.text() + "\n",
            "timelines.html": self.page(),
        }

    def write(self, folder: str | Path) -> Written:
        """Write the scenario, its tables, the figures, the text and the page into a folder, created if missing.

        Raises:
            UsageError: the folder cannot be written.
        """
        return write_files(folder, self.contents(), [path.name for path in Path(folder).glob(TRACES)])

    def __repr__(self) -> str:
        return f"<Imported {self.values['name']}: {WHAT[self.profile.format]}, {'; '.join(self._steps())}>"

    def _repr_html_(self) -> str:
        """The report, for notebooks."""
        return as_html(self.text())

    def page(self) -> str | None:
        """The measured and the simulated timeline of a step on one axis; None if there is nothing to show."""
        if self.shown is None:
            return None
        named = zip(self.shown(), ("measured", "simulated"), strict=True)  # without real time: files are reproducible
        return page_of([PageRun(RunAnalysis(replace(one.run, wall_s=0.0)), name=name) for one, name in named])

    def text(self, width: int | None = None) -> str:
        """The report, line by line, with tables at most as wide as given."""
        slow = told_of_ranks(self.figures, width) if self.stragglers is None else told(self.stragglers, width)
        return "\n".join([*self._lines(), *slow])

    def _lines(self) -> Iterator[str]:
        count = len(self.profile.files)
        what = WHAT[self.profile.format]
        yield f"{self.values['name']}: {what}, {count} file{'s' if count > 1 else ''}"
        yield ""
        yield from (_labelled("" if number else "step", text) for number, text in enumerate(self._steps()))
        origin = " (assumed, as the table has no starts)" if self.facts.get("schedule_assumed") else ""
        yield _labelled("schedule", f"{self.schedule or 'no pipeline'}{origin}")
        yield _labelled("linked", f"{self.linked:.1f} % of the device's work belongs to a known op")
        if self.clocks:
            spread = format_seconds(self.clocks["spread_s"])
            said = f"ranks' clocks differ by at least {spread}" if self.clocks["spread_s"] else "no contradiction found"
            yield _labelled("clocks", said)
        if self.shares is not None:
            traced = "trace" in (self.values.get("workload") or {})
            named = {share_name(name, traced): share for name, share in self.shares.items() if share >= LEAST}
            yield _labelled("time", ", ".join(f"{name} {format_share(share)}" for name, share in named.items()))
        for name, text in self._facts():
            yield _labelled(name, text)
        for number, event in enumerate(self.unusual[:MOST_SHOWN]):
            times = f"{format_seconds(event.seconds)}, usually {format_seconds(event.usual)}"
            yield _labelled(
                "" if number else "unusual", f"{event.what} of rank {event.rank} in step {event.step}: {times}"
            )
        if len(self.unusual) > MOST_SHOWN:
            yield _labelled("", f"and {len(self.unusual) - MOST_SHOWN} more")
        for number, text in enumerate(self.unknown):
            yield _labelled("" if number else "unknown", text)

    def _steps(self) -> Iterator[str]:
        simulated = f"simulated {format_seconds(_mean(self.simulated) or 0.0)}"
        if not (errors := self._errors):
            yield f"{simulated}; the measured one is not known"
            return
        both = f"measured {format_seconds(_mean(self.measured) or 0.0)}, {simulated}"
        off = f"error {_mean(list(map(abs, errors))):.2f} % on average, {max(map(abs, errors)):.2f} % at worst"
        steps = len(self.simulated)
        if self.reproduced is None:
            yield f"{both}: {off}"
        elif steps == 1:
            yield f"{both}: one step, reproduced within {abs(errors[0]):.2f} %"
        else:
            yield f"{both}: the mean of {steps} steps, and step {self.facts['step']}"
            yield f"as a prediction of the other {steps - 1 if steps > 2 else 'step'}: {off}"

    def _facts(self) -> Iterator[tuple[str, str]]:
        if "memory_gib" in self.facts:
            held = " ".join(f"{one:.1f}" for one in self.facts["memory_gib"])
            slope = self.facts.get("memory_per_microbatch_gib")
            more = "" if slope is None else f"; {slope:.1f} per micro-batch in flight"
            yield "memory", f"{held} GiB reserved{more}"
        if "communication_s" in self.facts:
            whole, exposed = (
                format_seconds(self.facts[name]) for name in ("communication_s", "exposed_communication_s")
            )
            yield "collectives", f"{whole} per rank, {exposed} of it with no computation beside"
        if self.facts.get("kernels"):
            yield (
                "kernels",
                ", ".join(f"{format_share(share, 0)} {work}" for work, share in self.facts["kernels"].items() if share),
            )
        if self.calibration is not None:
            yield "efficiency", str(self.calibration)
            for name, note in self.calibration.figures["transfers"].items():
                yield "transfers", f"{name}: {note}"
        if known := [said for name, said in HOST.items() if (self.facts.get("overhead") or {}).get(name)]:
            times = (format_seconds(time) for time in self.facts["overhead"].values() if time)
            yield "overhead", ", ".join(f"{time} {said}" for time, said in zip(times, known, strict=True))
        if self.facts.get("skipped_steps"):
            yield "left out", f"steps {', '.join(map(str, self.facts['skipped_steps']))}: memory was still growing"


def _mean(values: Sequence[float] | None) -> float | None:
    return sum(values) / len(values) if values else None


def _labelled(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"
