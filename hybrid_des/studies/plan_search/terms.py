"""The `search:` block of a scenario: axes, objective, and the memory that a plan may use.

search:
  axes: [{schedule.kind: [1f1b, zb-h1]}, parallel]                    # a name alone: its values are those of `space`
  objective: step_time_s
  reserve: 5 %                                                        # of each GPU's memory
  top: 10
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from hybrid_des.errors import ScenarioError
from hybrid_des.options import Bytes, Count, Flag, Reads, Section, choice, describe, read_bytes
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.known_sections import KnownSections
from hybrid_des.scenario.loading import misnamed, scenario_of
from hybrid_des.scenario.problem import problems_in
from hybrid_des.scenario.sections.cluster import GpuKind
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.studies.plan_search import default_axes, splits
from hybrid_des.studies.sweep.axes import Case, axes_of

if TYPE_CHECKING:
    from optuna.trial import Trial
from hybrid_des.studies.plan_search.objectives import CYCLE, OBJECTIVES, OF_LOOPS, Objective, objective_of

VARIED = (
    "parallel.pipeline", "parallel.data", "parallel.tensor", "parallel.context", "parallel.expert",
    "schedule.microbatch_size", "schedule.kind", "schedule.chunks", "recompute", "sharding", "gradients.bucket",
)  # fmt: skip


PACKING = "data.packing"  # varies only by name: documents may have to stay where a data loader puts them


ONLY_NAMED = ("shards.ranks", "shards.reshard", "optimizer.kind")  # vary only where an axis names them
NAMES = ("parallel", *VARIED, PACKING, *ONLY_NAMED)  # that an axis may be without values


_PERCENT = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*")


def _reserve(value: Any) -> int | Fraction:
    """Bytes, or a share of the memory."""
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is None:
        return read_bytes(value)
    if (share := Fraction(percent.group(1)) / 100) >= 1:
        raise ValueError(f"must be less than 100 %, not {describe(value)}")
    return share


class SearchBlock(Section):
    """The keys of the block."""

    axes: Any = None
    """Axes as in `sweep`, or names of keys that vary over their usual values."""
    objective: Annotated[str, choice(*OBJECTIVES)] = "step_time_s"
    """The summary key that is optimized; with `rl` cycle_s."""
    memory: Bytes | None = None
    """Memory of a GPU, instead of the scenario's."""
    reserve: Annotated[int | Fraction, Reads(_reserve, {"type": ["string", "number"]})] = 0
    """Memory to be left free: bytes, or a share such as 5 %."""
    top: Count = 10
    """How many of the best plans are found, and proved to be the best."""
    front: Flag = False
    """Whether to find the Pareto front too: every plan that less memory would make the best."""
    tune: dict[str, Any] = Field(default_factory=dict)
    """Continuous keys of the best plan, each with the range in which it is tuned."""


@dataclass(frozen=True)
class Settings:
    """A search, read and checked.

    Attributes:
        document: the scenario, without its `search`.
        axes: the axes that are given with values.
        names: the axes that are given by name.
        block: the rest of the block.
        imports: user-defined plug-in files that every worker imports first.
        tunables: the keys to tune.
        bounding: whether plans that do not fit are evaluated further, only their excess is counted.
        known: sections of plans that were validated before.
    """

    document: Document
    axes: tuple[tuple[Case, ...], ...]
    names: tuple[str, ...]
    block: SearchBlock
    imports: tuple[str, ...] = ()
    tunables: tuple[Tunable, ...] = ()
    bounding: bool = False
    known: KnownSections = field(default_factory=KnownSections, repr=False, compare=False)

    @property
    def by_default(self) -> bool:
        """Whether no axes are given."""
        return self.block.axes is None

    @property
    def objective(self) -> Objective:
        """The objective of the search."""
        return objective_of(self.block.objective, self.written, whole_front=self.block.front)

    @cached_property
    def written(self) -> Scenario:
        """The plan that the file itself describes."""
        return scenario_of(self.document)

    @cached_property
    def digest(self) -> str:
        """A hash of the scenario."""
        return hashlib.sha256(repr(self.document.value).encode()).hexdigest()

    def allowed(self, gpu: GpuKind) -> int:
        """Bytes that a plan may use on a GPU."""
        memory, reserve = self.block.memory or gpu.memory, self.block.reserve
        return int(memory - (memory * reserve if isinstance(reserve, Fraction) else reserve))


def settings_of(document: Document, imports: Sequence[str] = ()) -> Settings:
    """Separate the `search` of a document from its scenario, and check both.

    Raises:
        ScenarioError: one line per problem.
    """
    values = dict(document.value)
    given = values.pop("search", None)
    for key in ("sweep", "plot"):
        values.pop(key, None)
    block, problems = _block({} if given in (None, "none") else given, document)
    axes: tuple[tuple[Case, ...], ...] = ()
    loops = values.get("rl") not in (None, "none")
    if loops:
        values["rl"] = splits.of_one_kind(values["rl"])
    if block.axes is None and loops:
        block = block.model_copy(update={"axes": [*splits.USUAL]})
    if block.axes is not None:
        axes = axes_of(document, ("search", "axes"), block.axes, problems, (*NAMES, *(splits.NAMES if loops else ())))
    tunables = tuple(_tunables(document, block.tune, problems))
    files = tuple(str(Path(file).resolve()) for file in imports)  # workers may have other working folders
    given_axes = block.axes if isinstance(block.axes, list) else default_axes.NAMES if block.axes is None else ()
    names = tuple(name for name in given_axes if isinstance(name, str))
    settings = Settings(Document(values, document.source, document.places), axes, names, block, files, tunables)
    if PACKING in names and values.get("data") in (None, "none"):
        at = "search", "axes", block.axes.index(PACKING)
        problems.append(document.problem(at, f"{PACKING}: the scenario has no documents; expected `data` too"))
    if problems:
        raise ScenarioError(problems)
    if settings.written.rl is not None and block.objective not in OF_LOOPS:
        raise document.error(("search", "objective"), f"a loop has the objective {CYCLE.name}, not {block.objective}")
    if lacking := settings.objective.lacking(settings.written):
        raise document.error(("search", "objective"), f"{block.objective} {lacking}")
    return settings


def _block(given: Any, document: Document) -> tuple[SearchBlock, list[str]]:
    if not isinstance(given, dict):
        return SearchBlock(), [document.problem(("search",), f"expected keys such as axes, found {describe(given)}")]
    try:
        return SearchBlock.model_validate(given), []
    except ValidationError as error:
        problems = problems_in(error, SearchBlock)
        return SearchBlock(), [document.problem(("search", *one.path), one.message) for one in problems]


@dataclass(frozen=True)
class Tunable:
    """A key that is tuned, and its range; sizes are bytes."""

    path: str
    low: float
    high: float
    size: bool

    def drawn(self, trial: Trial) -> float:
        """The value of a trial."""
        if self.size:
            return float(trial.suggest_int(self.path, int(self.low), int(self.high), log=True))
        return float(trial.suggest_float(self.path, self.low, self.high))


def _tunables(document: Document, ranges: Mapping[str, Any], problems: list[str]) -> Iterator[Tunable]:
    """The keys of a `search.tune`; errors are appended to `problems`."""
    for path, ends in ranges.items():
        wrong = misnamed(path)
        if wrong is None and (tunable := _tunable(path, ends)):
            yield tunable
            continue
        form = "expected two numbers or sizes, the smaller one first, such as [1 MiB, 1 GiB]"
        problems.append(document.problem(("search", "tune", path), wrong or f"{form}, found {describe(ends)}"))


def _tunable(path: str, ends: Any) -> Tunable | None:
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    plain = all(isinstance(end, Real) and not isinstance(end, bool) for end in ends)
    try:
        low, high = map(float, ends) if plain else map(read_bytes, ends)
    except (TypeError, ValueError):
        return None
    if not low < high or (not plain and low < 1):
        return None
    return Tunable(path, low, high, size=not plain)
