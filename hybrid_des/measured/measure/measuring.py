"""Measure a node: tables of what takes how long on it, a scenario of them, and real steps that it predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hybrid_des.cluster.operator_table import RESIDUAL
from hybrid_des.errors import UsageError
from hybrid_des.measured.measure import collectives, operators, overlap, training_step
from hybrid_des.measured.measure.chosen import Options
from hybrid_des.measured.measure.folder import ABOUT, Folder, Rows, contents_of
from hybrid_des.measured.measure.job import Job, joined
from hybrid_des.measured.measure.machine import MACHINE, Facts, as_yaml, facts_of, machine_of, state_of
from hybrid_des.measured.measure.measured_pipeline import (
    durations_name,
    durations_of_runs,
    proofs,
    scenario_name,
    sections_of,
)
from hybrid_des.measured.measure.pipelines import SIZES, Pipelines, Run, runs_of
from hybrid_des.measured.measure.proof import Proof
from hybrid_des.measured.measure.reached import reached_in
from hybrid_des.measured.measure.stages import modules_of
from hybrid_des.measured.measure.trained import Trained, trained_on
from hybrid_des.units import format_seconds


class AgreedError(UsageError):
    """An error that every rank finds: it is said once."""


NOISE = "noise.json"
Task = tuple[str, Callable[[], str | None]]
Show = Callable[[int, int, str], None]  # (tasks done, of so many, what is measured now)
LABEL = 12  # characters of a label


@dataclass
class Measured:
    """What was measured.

    Attributes:
        folder: where it is.
        device: on what.
        files: what a scenario takes from there.
        proofs: real steps and their predictions.
        lacking: what was not measured, one sentence each.
    """

    folder: Path
    device: str
    files: list[str] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Any]:
        """All of it by public keys."""
        return {
            "folder": str(self.folder), "device": self.device, "files": self.files,
            "proof": [one.to_mapping() for one in self.proofs], "not_measured": self.lacking,
        }  # fmt: skip

    def text(self) -> str:
        """The report, line by line."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.folder}: {self.device}"
        yield ""
        for number, name in enumerate(self.files):
            yield f"{'' if number else 'base:':<{LABEL}}{self.folder / name}"
        for number, proof in enumerate(self.proofs):
            times = f"measured {format_seconds(proof.measured)} (fastest {format_seconds(proof.fastest)})"
            yield (
                f"{'' if number else 'proof':<{LABEL}}{proof.what}: {times}, predicted "
                f"{format_seconds(proof.predicted)}: {proof.error:+.1f} %"
            )
        for number, why in enumerate(self.lacking):
            yield f"{'' if number else 'not measured':<{LABEL}}{'' if number else ' '}{why}"


def measure(options: Options, show: Show) -> Measured | None:
    """Measure on all ranks, which call this together; the result is that of rank 0, None elsewhere.

    Raises:
        UsageError: options contradict each other or the number of processes, a user's function fails, or the folder
            cannot be used.
    """
    with joined() as job:
        folder, lacking = _opened(job, options), list[str]()
        before = state_of(job)
        runs = runs_of(options.chunks) if options.modules and options.pipeline > 1 else []
        trained = trained_on(facts_of(job), options)
        lacking += [why for model in trained for why in model.lacking]
        tasks: dict[str, Callable[[], str | None]] = {}  # by what they measure: tensor ranks share operators
        for each in (
            _pipelines(job, folder, options, runs),  # first: what a user's function does wrong is said at once
            collectives.tasks(job, folder, options.repeats),
            *(model.tasks(job, folder, options) for model in trained),
        ):
            for what, task in each:
                tasks.setdefault(what, task)
        for done, (what, task) in enumerate(tasks.items()):
            show(done, len(tasks), what)
            if why := task():
                lacking.append(why)
        show(len(tasks), len(tasks), "predicting")
        after = state_of(job)
        facts = facts_of(job)
    if job.rank:
        return None
    folder.write({NOISE: {"before": before, "after": after, "spread": spread_of(folder.tables)}})
    return _finished(facts, folder, options, runs, trained, lacking)


def _opened(job: Job, options: Options) -> Folder:
    """The folder, with the rows that an earlier measurement left there.

    Raises:
        UsageError: as `measure`.
    """
    import torch

    if options.pipeline > 1 and options.pipeline != job.ranks:
        raise AgreedError(
            f"--pipeline {options.pipeline}: expected {options.pipeline} processes, not {job.ranks}: "
            f"torchrun --nproc-per-node {options.pipeline} -m hybrid_des measure …"
        )
    facts = facts_of(job)
    about = {
        "device": facts.device, "ranks": job.ranks, "per_node": job.per_node, "torch": str(torch.__version__),
        "modules": options.modules, "shapes": options.shapes, "model": options.model,
        "pipeline": options.pipeline, "microbatches": options.microbatches,
    }  # fmt: skip
    runs = runs_of(options.chunks)
    names = [
        collectives.TABLE,
        operators.TABLE,
        overlap.TABLE,
        training_step.TABLE,
        SIZES,
        *(run.table for run in runs),
    ]
    kept: Any = None
    if job.rank == 0:
        try:
            kept = contents_of(options.out, about, names, again=options.again)
        except UsageError as error:
            kept = str(error)
    kept = job.of_first(kept)
    if isinstance(kept, str):
        raise AgreedError(kept)
    return Folder(options.out, about, kept, writes=job.rank == 0, dropped=names if options.again else ())


def _pipelines(job: Job, folder: Folder, options: Options, runs: Sequence[Run]) -> Iterator[Task]:
    if runs:
        assert options.modules is not None
        try:
            modules = modules_of(options.modules, options.shapes or "")
        except UsageError as error:
            raise AgreedError(str(error)) from error
        yield from Pipelines(job, folder, modules, options.microbatches, options.rounds).tasks(runs)


def spread_of(tables: Mapping[str, Rows]) -> dict[str, dict[str, float]]:
    """By how much repeats of a table differ: (p90 − p10) / median, its median and its worst row."""
    spreads = {}
    for name, rows in tables.items():
        shares = [
            (float(row[f"p90_{unit}"]) - float(row[f"p10_{unit}"])) / float(row[middle])
            for row in rows
            for unit, middle in (("us", "time_us"), ("s", "seconds"))
            if f"p90_{unit}" in row and float(row[middle])
        ]
        if shares:
            shares.sort()
            spreads[name] = {"median": shares[len(shares) // 2], "worst": shares[-1], "rows": len(shares)}
    return spreads


def _finished(
    facts: Facts, folder: Folder, options: Options, runs: Sequence[Run], trained: Sequence[Trained], lacking: list[str]
) -> Measured:
    """Write the scenarios of what was measured, and predict what was run."""
    count = f"{facts.ranks} × " if facts.ranks > 1 else ""
    measured = Measured(options.out, f"{count}{facts.device}", [MACHINE], lacking=lacking)
    tables = folder.tables
    rows = [tables.get(name, []) for name in (operators.TABLE, overlap.TABLE, collectives.TABLE)]
    reached = reached_in(facts, rows[0], rows[1], rows[2], operators.TABLE)
    folder.write({MACHINE: as_yaml({"name": options.out.resolve().name, **machine_of(facts, tables, reached)})})
    if facts.ranks == 1:
        lacking.append("links and collectives: there is one process; torchrun --nproc-per-node starts several")
    _steps_of(folder, options, [model for model in trained if model.layout is not None], measured)
    _pipelines_of(folder, options, runs, measured)
    folder.write({ABOUT: {**measured.figures, **folder.about}})
    return measured


def _steps_of(folder: Folder, options: Options, trained: Sequence[Trained], measured: Measured) -> None:
    """Write the scenarios of a model's steps, and predict them."""
    for model in trained:
        measured.files.append(model.file)
        folder.write({model.file: as_yaml(model.sections(options.out))})
    if trained:
        folder.tables[operators.TABLE] = [row for row in folder.rows(operators.TABLE) if row["operator"] != RESIDUAL]
        folder.write({operators.TABLE: folder.frame(operators.TABLE).convert_dtypes()})
    factors = [factor for model in trained if (factor := model.residual(options.out, folder)) is not None]
    if factors:
        folder.add(operators.TABLE, {"operator": RESIDUAL, "seconds": median(factors)})
    measured.proofs += [model.proof(options.out, folder) for model in trained]


def _pipelines_of(folder: Folder, options: Options, runs: Sequence[Run], measured: Measured) -> None:
    """Write the scenarios of pipelines, and predict those that were run but not used."""
    frames = {run.table: folder.frame(run.table) for run in runs if folder.rows(run.table)}
    for chunks in options.chunks:
        table = durations_of_runs(runs, frames, chunks)
        if table is None:
            continue
        folder.write({durations_name(chunks, runs[0].chunks): table})
        used = [run for run in runs if not run.proves]
        sections = sections_of(options.out, used, chunks, folder.rows(SIZES))
        measured.files.append(scenario_name(chunks, runs[0].chunks))
        folder.write({measured.files[-1]: as_yaml(sections)})
    measured.proofs += proofs(options.out, runs, frames) if runs else []
