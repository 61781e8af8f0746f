"""The table of measured runs and of how far their predictions were off: its columns, read and written."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache
from math import log10
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.scenario.defaults import fill_efficiency
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.training import ModelChoice
from hybrid_des.workload.models.kinds import registration as kinds
from hybrid_des.workload.models.operations import Gemm, Operation, Scan

Units = NDArray[np.float64]


TABLE = Path(__file__).with_name("experience.csv")


UNLIKE = {  # how unlike runs are that differ in this
    "stack": 3.0, "calibrated": 2.0, "gpu": 1.0, "precision": 1.0, "kind": 1.0, "sharded": 1.0, "divided": 1.0,
    "recomputed": 1.0, "graphs": 1.0, "pipelined": 1.0,
}  # fmt: skip


DECADES = {"parameters": 0.5, "gpus": 0.5, "work": 1.0, "rows": 1.0}  # how unlike those that differ by a factor of ten


RANGES = {"sequence": "sequences longer than {:,} tokens", "gpus": "more than {:,} GPUs"}  # beyond what was measured


STACKS = {"megatron": "Megatron", "pytorch": "PyTorch", "compiled": "compiled PyTorch", "deepspeed": "DeepSpeed",
          "jax": "JAX"}  # fmt: skip


PRECISIONS = {"bf16": "16 bits", "fp16": "16 bits"}


KINDS = {"dense": "", "experts": " with experts", "linear": " with linear mixers", "adapters": " with frozen weights"}


RECOMPUTED = {"none": "none", "full": "all"}


SHARES = ("gemm", "attention", "memory")  # of the peaks


class Likeness(NamedTuple):
    """What a run is like.

    Attributes:
        gpu: the generation, such as "a100".
        precision: that of products.
        kind: "dense" or "experts"; "linear", with linear mixers too; "adapters", with frozen weights too.
        stack: the software, a value of `model.written`; "" if it is not known.
        sharded: whether single layers are sharded.
        divided: whether tensor ranks divide layers.
        recomputed: what backwards recompute: "none", "some" or "all".
        graphs: what is launched without the host, a value of `cuda_graphs`.
        pipelined: whether there is a pipeline.
        calibrated: whether it states shares of the peaks that are not those of the catalogue, such as fitted ones.
        parameters, gpus: the size of the model and the number of its GPUs.
        work: FLOP of an operation on a rank, for a micro-batch, on average.
        rows: tokens of a micro-batch for one expert; 0 without experts.
        sequence: tokens of a sample.
    """

    gpu: str
    precision: str
    kind: str
    stack: str
    sharded: bool
    divided: bool
    recomputed: str
    graphs: str
    pipelined: bool
    calibrated: bool
    parameters: int
    gpus: int
    work: float
    rows: float
    sequence: int

    @classmethod
    def of(cls, scenario: Scenario, stack: str = "") -> Likeness:
        """That of a scenario with a model, by default of the software that the model is written for."""
        assert scenario.model is not None
        model, parallel = scenario.model.network, scenario.parallel
        operations = [one for layer in model.layers for one in layer.operations]
        experts = [one for one in operations if isinstance(one, Gemm) and one.expert]
        samples = Fraction(scenario.schedule.microbatch_size, parallel.context)
        share = "none" if scenario.recompute == () else "some"
        return cls(
            scenario.cluster.kinds[0].gpu.name.partition("-")[0],
            PRECISIONS.get(scenario.precision, scenario.precision),
            _kind(operations),
            stack or _stack(scenario.model),
            scenario.fsdp,
            parallel.tensor > 1,
            RECOMPUTED.get(str(scenario.recompute), share) if scenario.recompute_layers is None else "some",
            scenario.cuda_graphs,
            parallel.pipeline > 1,
            _is_calibrated(scenario),
            model.parameters,
            parallel.ranks,
            float(model.flop * samples / parallel.tensor / len(operations)),
            float(model.tokens * samples * experts[0].rows * parallel.expert) if experts else 0.0,
            model.tokens,
        )

    @property
    def words(self) -> str:
        """In words, without software and sizes."""
        return ", ".join([self.gpu, self.precision, self.kind, *(["sharded layers"] if self.sharded else [])])

    @property
    def place(self) -> str:
        """Its software, kind of model and GPU in words: "Megatron with experts on H100"."""
        software = STACKS.get(self.stack, self.stack) + KINDS[self.kind]
        return f"{software.strip()} on {self.gpu.upper()}" if software else self.gpu.upper()

    def decades(self, other: Likeness, name: str) -> float:
        """Between these figures of two runs; none if one of them has none."""
        first, second = getattr(self, name), getattr(other, name)
        return abs(log10(first / second)) if first and second else 0.0

    def distance(self, other: Likeness) -> float:
        """Between the sizes of two runs, in decades."""
        return self.decades(other, "parameters") + self.decades(other, "gpus")

    @property
    def where(self) -> tuple[str, str, str]:
        """What decides whether anybody measured such a run: its software, its GPU, and the kind of model."""
        return self.stack, self.gpu, self.kind


def unlikeness(some: Sequence[Likeness], others: Sequence[Likeness]) -> Units:
    """How unlike each of some runs is to each of others, some × others.

    Every characteristic that differs counts, another software most; of sizes, the decades between them, unless one of
    both has none.
    """
    units = np.zeros((len(some), len(others)))
    for name, weight in UNLIKE.items():
        codes: dict[object, int] = {}  # numbers compare faster than words
        values = [[codes.setdefault(getattr(one, name), len(codes)) for one in runs] for runs in (some, others)]
        mine, theirs = (np.array(each) for each in values)
        units += weight * (mine[:, None] != theirs)
    for name, weight in DECADES.items():
        mine, theirs = (np.array([getattr(one, name) for one in runs], float) for runs in (some, others))
        decades = np.log10(np.where(mine > 0, mine, 1))[:, None] - np.log10(np.where(theirs > 0, theirs, 1))
        units += weight * np.abs(decades) * ((mine > 0)[:, None] & (theirs > 0))
    return units


def _kind(operations: Sequence[Operation]) -> str:
    """What a model is like, the least usual first."""
    products = [one for one in operations if isinstance(one, Gemm)]
    if any(isinstance(one, Scan) for one in operations):
        return "linear"
    if not all(one.trained for one in products):
        return "adapters"
    return "experts" if any(one.expert for one in products) else "dense"


def _is_calibrated(scenario: Scenario) -> bool:
    usual: dict[str, object] = {}
    given: dict[str, object] = {
        "cluster": {"gpu": scenario.cluster.kinds[0].gpu.name},
        "precision": scenario.precision,
        "model": {},
        "operators": {"attention": getattr(scenario.operators, "attention", None)},
    }
    fill_efficiency(usual, given)
    return any(float(getattr(scenario.efficiency, name)) != float(str(usual.get(name, "nan"))) for name in SHARES)


def _stack(model: ModelChoice) -> str:
    """The software that a model is written for, or that its kind has; transformers runs as PyTorch does."""
    written = getattr(model.options, "written", None) or kinds.find(model.kind).facts["framework"] or ""
    return "pytorch" if written == "transformers" else str(written)


class Recorded(NamedTuple):
    """One measured run.

    Attributes:
        corpus: the name of its corpus.
        fitted: how many numbers were fitted to it and other runs of the corpus.
        ratio: predicted / measured.
        date, commit: of the prediction.
    """

    corpus: str
    like: Likeness
    fitted: int
    ratio: float
    date: str
    commit: str

    def tells_of(self, like: Likeness) -> bool:
        """Whether it tells how the software of another run does on its GPU.

        One whose own efficiencies were fitted to it says nothing of those of the catalogue.
        """
        own = self.like.calibrated and self.fitted > 0
        return self.like.where == like.where and (like.calibrated or not own)


COLUMNS = ("corpus", *Likeness._fields, "fitted", "ratio", "date", "commit")


def _is_yes(cell: str) -> bool:
    return cell == "yes"


READ: tuple[Callable[[str], Any], ...] = (  # the cells of a likeness
    str, str, str, str, _is_yes, _is_yes, str, str, _is_yes, _is_yes, int, int, float, float, int,
)  # fmt: skip


@cache
def known() -> tuple[Recorded, ...]:
    """The runs of the package's table."""
    return read(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else ()


def read(text: str) -> tuple[Recorded, ...]:
    """The runs of a table."""
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Recorded(
            row["corpus"],
            Likeness(*(read_cell(row[name]) for name, read_cell in zip(Likeness._fields, READ, strict=True))),
            int(row["fitted"]), float(row["ratio"]), row["date"], row["commit"],
        )
        for row in rows
    )  # fmt: skip


def written(runs: Iterable[Recorded]) -> str:
    """A table of runs."""
    file = io.StringIO()
    file.write(
        "# predicted / measured step times of published runs; made by hybrid-des validate --record, never by hand\n"
    )
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in sorted(runs, key=lambda run: (run.corpus, run.like)):
        writer.writerow([run.corpus, *map(_cell, run.like), run.fitted, f"{run.ratio:.5f}", run.date, run.commit])
    return file.getvalue()


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
