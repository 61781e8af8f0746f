"""The table of measured runs and of how far their predictions were off: its columns, read and written."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from functools import cache
from math import log10
from pathlib import Path
from typing import NamedTuple

from hybrid_des.scenario.definition import Scenario
from hybrid_des.workload.models.layer import Gemm

TABLE = Path(__file__).with_name("experience.csv")


DECADE = 0.5  # how unlike runs are that differ by a factor of ten in size


PRECISIONS = {"bf16": "16 bits", "fp16": "16 bits"}


class Likeness(NamedTuple):
    """What a run is like.

    Attributes:
        gpu: the generation, such as "a100".
        precision: that of products.
        kind: "dense" or "experts".
        sharded: whether single layers are sharded.
        divided: whether tensor ranks divide layers.
        parameters, gpus: the size of the model and the number of its GPUs.
    """

    gpu: str
    precision: str
    kind: str
    sharded: bool
    divided: bool
    parameters: int
    gpus: int

    @classmethod
    def of(cls, scenario: Scenario) -> Likeness:
        """That of a scenario with a model."""
        assert scenario.model is not None
        model = scenario.model.network
        experts = any(isinstance(one, Gemm) and one.expert for layer in model.layers for one in layer.operations)
        return cls(
            scenario.cluster.kinds[0].gpu.name.partition("-")[0],
            PRECISIONS.get(scenario.precision, scenario.precision),
            "experts" if experts else "dense",
            scenario.fsdp,
            scenario.parallel.tensor > 1,
            model.parameters,
            scenario.parallel.ranks,
        )

    @property
    def words(self) -> str:
        """In words, without sizes."""
        return ", ".join([self.gpu, self.precision, self.kind, *(["sharded layers"] if self.sharded else [])])

    def distance(self, other: Likeness) -> float:
        """Between the sizes of two runs, in decades."""
        return abs(log10(self.parameters / other.parameters)) + abs(log10(self.gpus / other.gpus))

    def unlike(self, other: Likeness) -> float:
        """How many of the five characteristics differ, and by how much the size does."""
        return sum(one != its for one, its in zip(self[:5], other[:5], strict=True)) + DECADE * self.distance(other)


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


COLUMNS = ("corpus", *Likeness._fields, "fitted", "ratio", "date", "commit")


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
            Likeness(row["gpu"], row["precision"], row["kind"], row["sharded"] == "yes", row["divided"] == "yes",
                     int(row["parameters"]), int(row["gpus"])),
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
        how = ["yes" if each else "no" for each in (run.like.sharded, run.like.divided)]
        writer.writerow(
            [run.corpus, *run.like[:3], *how, *run.like[5:], run.fitted, f"{run.ratio:.5f}", run.date, run.commit]
        )
    return file.getvalue()
