"""What the live page shows after a change: the changed scenario, simulated and ready to be drawn."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hybrid_des.analysis.losses import losses
from hybrid_des.errors import HybridDesError, UsageError, one_line
from hybrid_des.interface.cli.deadline import has_timer, timer
from hybrid_des.interface.live.controls import controls_of
from hybrid_des.interface.live.possible import possible_values
from hybrid_des.interface.live.schedules import Sizes, by_bubble, schedule_runs
from hybrid_des.report.content import content_of
from hybrid_des.report.explained import in_brief, offered
from hybrid_des.report.fact import Fact
from hybrid_des.report.page.document import PageRun, run_data
from hybrid_des.result import Result, simulate
from hybrid_des.scenario.composition import anchor_overrides, files_in, override
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import read_scenario, scenario_of
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.simulation.watch import RunProgress
from hybrid_des.studies.advice import advise
from hybrid_des.studies.sweep.rows import columns
from hybrid_des.studies.sweep.runner import file_text
from hybrid_des.units import format_bytes

FAST = 1  # level of zlib's compression


FILES = ("*.yaml", "*.yml")


MOST_CHANGES = 100


NUMBERS = {  # of the summary, for comparisons: labels and units by key
    "step_time_s": ("step time", "s"), "step_shares.bubble": ("bubble", "share"),
    "exposed_communication_ratio": ("exposed communication", "share"), "efficiency": ("efficiency", "share"),
    "mfu": ("MFU", "share"), "microbatches_per_s": ("micro-batches per second", "number"),
    "messages": ("messages per step", "number"),
}  # fmt: skip


MOST_OPS = 2**15  # micro-batches of all ranks that are explained while one waits
TOO_LARGE = "the step is too large to be explained here; hybrid-des explain says why, and what to change"
DIGITS = 3  # of a prediction's figures
LOOK_S = 0.2  # seconds after which to look for a newer request
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_CHANGED = re.compile(r"--set (?P<path>[\w.-]+)=.*?: (?=\S)")


class NewerRequest(Exception):
    """A newer request of the same page has arrived."""


class Request(BaseModel):
    """What a page asks for.

    Attributes:
        number: counts the requests of a page from 1; its answer has the same.
        want: a frame, why its step takes as long as it does and which values are possible, the text of a scenario
            file, or the runs of all schedules.
        file: of the scenario, in the folder.
        changes: values by path, as in `--set`.
        sizes: of the schedules.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    number: int
    want: Literal["frame", "why", "yaml", "schedules"] = "frame"
    file: str = ""
    changes: dict[str, str] = {}
    sizes: Sizes = Sizes()

    @classmethod
    def of(cls, text: str | bytes) -> Request:
        """Read a request.

        Raises:
            UsageError: it is not one.
        """
        try:
            request = cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UsageError(f"not a request: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if len(request.changes) > MOST_CHANGES:
            raise UsageError(f"{len(request.changes)} changes; at most {MOST_CHANGES}")
        return request


@dataclass(frozen=True)
class ServerState:
    """What all pages of a server start from.

    Attributes:
        file: the scenario to begin with; pages may ask for others of its folder, and for nothing outside.
        overrides: of the command line, before the changes of a page.
        imports: files of plug-ins.
        budget_s: real seconds for one request.
    """

    file: Path
    overrides: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    budget_s: float = inf

    @property
    def folder(self) -> Path:
        """Where the scenarios are."""
        return self.file.parent

    def files(self) -> list[str]:
        """The names of all scenario files of the folder."""
        return sorted({file.name for pattern in FILES for file in self.folder.glob(pattern) if file.is_file()})

    def document(self, request: Request) -> Document:
        """The scenario of a request with its changes.

        Raises:
            UsageError: it names a file outside of the folder.
            ScenarioError: as `read_scenario`.
        """
        path = self.folder / request.file
        own = self.overrides if path == self.file else ()
        if path != self.file:
            self._check_inside(path)
        document = read_scenario(path, own)
        known = set(files_in(document))
        override(document, _overrides(request))
        anchor_overrides(document, path.parent)
        for file in set(files_in(document)) - known:
            self._check_inside(Path(file))
        return document

    def _check_inside(self, path: Path) -> None:
        folder = self.folder.resolve()
        if "\0" in str(path) or not path.resolve().is_relative_to(folder):
            raise UsageError(f"{one_line(str(path))}: outside of {folder}; pages read files of this folder only")

    def sets(self, request: Request) -> list[str]:
        """The overrides of a request: those of the command line for its file, then the changes of the page."""
        own = self.overrides if self.folder / request.file == self.file else ()
        return [*own, *_overrides(request)]

    def command(self, request: Request) -> str:
        """The command that simulates the same."""
        file = self.folder / request.file
        imports = [word for one in self.imports for word in ("--import", one)]
        sets = [word for one in self.sets(request) for word in ("--set", one)]
        return shlex.join(["hybrid-des", str(file), *imports, *sets])


def _overrides(request: Request) -> list[str]:
    return [f"{path}={value}" for path, value in request.changes.items()]


def answer(
    state: ServerState,
    request: Request,
    newer: Callable[[], bool] = lambda: False,
    early: Callable[[dict[str, Any]], None] = lambda part: None,
) -> dict[str, Any]:
    """Answer a request; mistakes in it are `problems`, one line each.

    Args:
        state: what the pages start from.
        request: the request.
        newer: whether a newer one has arrived; asked a few times per second of a long simulation.
        early: called with each part of a long answer as soon as it is known.

    Raises:
        NewerRequest: a newer one has arrived.
    """
    try:
        if request.want == "why":
            return {"number": request.number, **_why(state, request, newer, early)}
        return {"number": request.number, **_ANSWERS[request.want](state, request, newer)}
    except HybridDesError as error:
        lines = str(error).splitlines()
        others = [line for line in lines if not _CHANGED.match(line)]
        return {"number": request.number, "problems": lines, "fields": problems_by_path(error), "others": others}
    except OSError as error:
        return {"number": request.number, "problems": [f"{error.filename}: {error.strerror or error}"]}


def _frame(state: ServerState, request: Request, newer: Callable[[], bool]) -> dict[str, Any]:
    document = state.document(request)
    scenario = scenario_of(document)
    result = simulate(scenario, budget_s=state.budget_s, progress=partial(_end_if, newer))
    about, data = run_data(PageRun(result), FAST)
    slow = document.value.get("slow")
    return {
        "file": request.file,
        "controls": [control._asdict() for control in controls_of(scenario, document)],
        "slow": [json.loads(json.dumps(one, default=float)) for one in slow] if isinstance(slow, list) else [],
        "run": about,
        "data": data,
        **_said(result),
        "summary": result.summary,
        "command": state.command(request),
    }


def _why(
    state: ServerState, request: Request, newer: Callable[[], bool], early: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Why a step takes as long as it does, which values are possible, and advice; a newer request ends it."""
    document = state.document(request)
    scenario = scenario_of(document)
    with ended_by(newer):
        lost = losses(scenario) if _is_small(scenario) else None
        why = {} if lost is None else in_brief(lost)
    early({"number": request.number, "why": why})  # not to be ended half-way
    with ended_by(newer):
        possible = possible_values(document, controls_of(scenario, document))
    early({"number": request.number, "possible": possible})
    advice: dict[str, Any] = {"label": "Change", "lines": [], "none": TOO_LARGE}
    if lost is not None:
        with ended_by(newer):
            advice = offered(lost, advise(state.folder / request.file, state.sets(request), run=lost.run))
    return {"why": why, "possible": possible, "advice": advice}


def _is_small(scenario: Scenario) -> bool:
    """Whether it can be explained while one waits."""
    parallel, schedule = scenario.parallel, scenario.schedule
    return parallel.pipeline * parallel.data * schedule.microbatches * schedule.chunks * scenario.steps <= MOST_OPS


@contextmanager
def ended_by(newer: Callable[[], bool]) -> Iterator[None]:
    """Look for a newer request a few times per second, where a process has a timer.

    Raises:
        NewerRequest: it has arrived.
    """
    with timer(LOOK_S, LOOK_S, partial(_end_if, newer)) if has_timer() else nullcontext():
        yield


def _end_if(newer: Callable[[], bool], *_: RunProgress) -> None:
    if newer():
        raise NewerRequest


def problems_by_path(error: HybridDesError) -> dict[str, str]:
    """What is wrong with each value that a page has changed, without the words of the command line."""
    fields: dict[str, str] = {}
    for line in str(error).splitlines():
        if changed := _CHANGED.match(line):
            fields.setdefault(changed["path"], line[changed.end() :].removeprefix(f"{changed['path']}: "))
    return fields


def _said(result: Result) -> dict[str, Any]:
    """The report of a run, in parts."""
    content, summary = content_of(result), result.summary
    figures = columns({**summary})
    numbers = [{"label": label, "unit": unit, "value": figures[key]} for key, (label, unit) in NUMBERS.items()
               if figures.get(key) is not None]  # fmt: skip
    peak, memory = max(summary["peak_memory_bytes"], default=0), content.resources[0]
    numbers.append({"label": "peak memory", "unit": "bytes", "value": peak})
    held = Fact("peak memory", format_bytes(peak), "; ".join([memory.value, memory.note]))
    return {
        "description": content.description,
        "alarm": content.alarm,
        "setup": list(content.setup),
        "cards": [as_known(fact, result)._asdict() for fact in (*content.headline, held)],
        "resources": [fact._asdict() for fact in content.resources],
        "shares": [
            {**share._asdict(), "colour": share.colour} for share in content.shares
        ],
        "numbers": numbers,
        "limits": content.limits,
    }  # fmt: skip


def as_known(fact: Fact, result: Result) -> Fact:
    """A figure of a predicted step with three digits: measured runs differ from predictions in the second."""
    if "experience" not in result.summary:
        return fact
    return fact._replace(value=_NUMBER.sub(lambda number: _rounded(number[0]), fact.value, count=1))


def _rounded(number: str) -> str:
    """A number to three digits, with thousands separators if it has them; one with fewer stays."""
    digits = number.replace(",", "").replace(".", "").lstrip("0")
    if len(digits) <= DIGITS:
        return number
    value = float(f"{float(number.replace(',', '')):.{DIGITS}g}")
    return f"{value:,.0f}" if "," in number else f"{value:#.{DIGITS}g}".rstrip(".")


def _yaml(state: ServerState, request: Request, newer: Callable[[], bool]) -> dict[str, Any]:
    """The text of a file with the changes in it; its paths are absolute, so that it can be placed anywhere."""
    document = state.document(request)
    scenario_of(document)  # what is saved can be simulated
    lines = [f"# {request.file}, changed on a page of hybrid-des live:"]
    lines += [f"#   {one_line(text)}" for text in _overrides(request)] or ["#   nothing"]
    return {"yaml": "\n".join(lines) + "\n\n" + file_text(document), "name": request.file}


def _schedules(state: ServerState, request: Request, newer: Callable[[], bool]) -> dict[str, Any]:
    runs = []
    for entry in schedule_runs(request.sizes):
        _end_if(newer)
        runs.append(entry)
    runs = by_bubble(runs)
    return {"runs": [about for about, _ in runs], "data": [data for _, data in runs]}


_ANSWERS: Mapping[str, Callable[[ServerState, Request, Callable[[], bool]], dict[str, Any]]] = {
    "frame": _frame, "yaml": _yaml, "schedules": _schedules,
}  # fmt: skip
