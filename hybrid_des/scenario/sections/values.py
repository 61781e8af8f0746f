"""Field types used only by scenarios; those shared with plug-ins are in `hybrid_des.options`."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic.fields import FieldInfo

from hybrid_des.cluster import topologies
from hybrid_des.cluster.operator_table import OperatorTable, read_operator_table
from hybrid_des.collectives import codecs
from hybrid_des.collectives.registration import algorithms
from hybrid_des.errors import Refusal
from hybrid_des.options import (
    MOST,
    NamesFile,
    Reads,
    WrittenNone,
    choice,
    decimal,
    describe,
    or_word_schema,
    quantity_schema,
    read_bytes,
    read_quantity,
    read_text,
    table_file,
    whole,
    within,
    word_or_count,
)
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.problem import Problem, Problems
from hybrid_des.units import Dimension
from hybrid_des.workload import distributions, lengths, models, placements
from hybrid_des.workload.models import kinds
from hybrid_des.workload.models.layer import MODULES, OPS
from hybrid_des.workload.models.stages import RULES, stages_in
from hybrid_des.workload.numerics import datasets
from hybrid_des.workload.packing import registration as packing

AXES = ("tensor", "data", "pipeline")


LEVELS = ("none", "selective", "full")  # of recomputation


CONTEXT = "context"  # follows tensor if an order does not name it


def per_rank(dimension: Dimension) -> Reads:
    """One quantity for all pipeline ranks, or a list with one per rank."""

    def read(value: object) -> Fraction | tuple[Fraction, ...]:
        if not isinstance(value, list | tuple):
            return read_quantity(value, dimension)
        numbers, problems = [], []
        for index, item in enumerate(value):
            try:
                numbers.append(read_quantity(item, dimension))
            except ValueError as error:
                problems.append(Problem((index,), str(error)))
        if problems:
            raise Problems(problems)
        return tuple(numbers)

    schema = quantity_schema(dimension)
    return Reads(
        read, {"anyOf": [*schema["anyOf"], {"type": "array", "items": schema}], "examples": schema["examples"]}
    )


def share(*, above_0: bool = False, below_1: bool = False) -> Reads:
    """A number from 0 to 1, without the ends that are excluded."""
    whole_range = within(0, 1, "from 0 to 1")

    def read(value: object) -> Fraction:
        number: Fraction = whole_range.read(value)
        if above_0 and number == 0:
            raise ValueError("must be more than 0")
        if below_1 and number == 1:
            raise ValueError("must be less than 1")
        return number

    least, most = "exclusiveMinimum" if above_0 else "minimum", "exclusiveMaximum" if below_1 else "maximum"
    return Reads(read, {"type": "number", least: 0, most: 1})


def _bucket(value: object) -> int | None:
    if value is None or value == "none":
        return None
    if isinstance(value, bool):
        raise ValueError(f"expected none, or a size such as 25 MiB, found {describe(value)}")
    size = read_bytes(value)
    if size == 0:
        raise ValueError("a bucket cannot have 0 bytes; expected none, or a size such as 25 MiB")
    return size


def _path(value: object) -> Path | None:
    if value is None or isinstance(value, Path):
        return value
    text = read_text(value)
    if "\0" in text:
        raise ValueError("a path cannot contain a null character")
    return Path(text)


def or_none(schema: object) -> BeforeValidator:
    """A value that may be written as `none`; `schema` is the type in files."""
    return BeforeValidator(lambda value: None if value == "none" else value, json_schema_input_type=schema)


def _one_of(names: Callable[[], list[str]]) -> PlainValidator:
    """A name that is registered when the value is read, built in or user-defined."""
    return PlainValidator(lambda value: choice(*names()).read(value))


def _offer(names: Callable[[], list[str]]) -> FieldInfo:
    """List the currently registered names in the JSON Schema."""
    field: FieldInfo = Field(json_schema_extra=lambda schema: schema.update({"enum": [*names()]}))
    return field


def _order(value: object) -> tuple[str, ...]:
    named = tuple(map(str, value)) if isinstance(value, list | tuple) else ()
    if sorted(named) not in (sorted(AXES), sorted((*AXES, CONTEXT))):
        raise ValueError(f"expected the three axes {', '.join(AXES)} in some order, each once")
    return named


def _stages(value: object) -> str | tuple[int | str, ...]:
    if isinstance(value, list | tuple):
        return tuple(_stage(item) for item in value)
    if isinstance(value, str) and value.startswith("E"):
        return _laid_out(value)
    return choice(*RULES, beside="a list of layers per stage").read(value)  # type: ignore[no-any-return]


def _stage(value: object) -> int | str:
    """The number of layers of a stage, or its letters."""
    if not isinstance(value, str):
        return int(whole(0, MOST).read(value))
    if not re.fullmatch("t*m*L?", value) or not value:
        raise ValueError(f'expected a number of layers, or letters of a stage such as tm, m or L, found "{value}"')
    return value


def _laid_out(layout: str) -> tuple[int | str, ...]:
    """Layers per stage of a layout such as Et|(tt|)*30mL, and letters where predictions are not in the last."""
    try:
        stages = stages_in(layout)
    except Refusal as refusal:
        raise ValueError(str(refusal)) from None
    if any("m" in stage for stage in stages[:-1]):
        held = (stage.removeprefix("E") for stage in stages)
        return tuple(stage if "m" in stage or "L" in stage else len(stage) for stage in held)
    return tuple(stage.count("t") for stage in stages)


def _recompute(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple):
        if len(set(map(str, value))) < len(value):
            raise ValueError("expected names of modules, each once")
        named = tuple(choice(*MODULES, OPS).read(item) for item in value)
        if OPS in named and len(named) > 1:
            raise ValueError(f"{OPS} covers all operators of a block; expected it alone")
        return named or "none"
    return choice(*LEVELS, beside="a list of modules").read(value)  # type: ignore[no-any-return]


def _shares(value: object) -> Fraction | tuple[Fraction, ...]:
    numbers: Fraction | tuple[Fraction, ...] = per_rank("number").read(value)
    for number in numbers if isinstance(numbers, tuple) else (numbers,):
        if number > 1:
            raise ValueError(f"must be from 0 to 1, not {decimal(number)}")
    return numbers


Fold = Annotated[int | str, word_or_count("auto", "off", beside="a number of replicas")]


_LETTERS = {"type": "string", "pattern": "^t*m*L?$"}
_COUNTS = {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, _LETTERS]}}


_STAGES = {"anyOf": [{"enum": [*RULES]}, {"type": "string", "pattern": "^E"}, _COUNTS]}


Stages = Annotated[str | tuple[int | str, ...], Reads(_stages, _STAGES)]


_RECOMPUTE = {"anyOf": [{"enum": [*LEVELS]}, {"type": "array", "items": {"enum": [*MODULES, OPS]}}]}


Recompute = Annotated[str | tuple[str, ...], Reads(_recompute, _RECOMPUTE)]


TopologyName = Annotated[str, _one_of(topologies.names), _offer(topologies.names)]


ScheduleName = Annotated[str, _one_of(schedules.names), _offer(schedules.names)]


AlgorithmName = Annotated[str, _one_of(algorithms), _offer(algorithms)]


CodecName = Annotated[str, _one_of(codecs.names), _offer(codecs.names)]


ModelKindName = Annotated[str, _one_of(kinds.names), _offer(kinds.names)]


PublishedName = Annotated[str, _one_of(models.names), _offer(models.names)]


DistributionName = Annotated[str, _one_of(distributions.names), _offer(distributions.names)]


PlacementName = Annotated[str, _one_of(placements.names), _offer(placements.names)]


LengthsName = Annotated[str, _one_of(lengths.names), _offer(lengths.names)]


PackingName = Annotated[str, _one_of(packing.names), _offer(packing.names)]


TaskName = Annotated[str, _one_of(datasets.names), _offer(datasets.names)]


BucketSize = Annotated[
    int | None, Reads(_bucket, or_word_schema("none", "size", "none", "25 MiB")), WrittenNone("none")
]


RankTimes = Annotated[Fraction | tuple[Fraction, ...], per_rank("time")]


RankSizes = Annotated[Fraction | tuple[Fraction, ...], per_rank("size")]


RankNumbers = Annotated[Fraction | tuple[Fraction, ...], per_rank("number")]


RankShares = Annotated[Fraction | tuple[Fraction, ...], Reads(_shares, per_rank("number").schema)]


File = Annotated[Path | None, Reads(_path, {"type": "string"}), NamesFile()]


OperatorFile = Annotated[OperatorTable, table_file(read_operator_table, OperatorTable), NamesFile()]


ORDER_SCHEMA = {"type": "array", "items": {"enum": [*AXES, CONTEXT]}, "minItems": 3, "maxItems": 4, "uniqueItems": True}


Order = Annotated[tuple[str, ...], Reads(_order, ORDER_SCHEMA)]


MOST_ELEMENTS = 10**15  # of a tensor
_TENSOR = whole(1, MOST_ELEMENTS)


def read_tensors(value: object) -> tuple[tuple[int, ...], ...]:
    """Read the sizes of tensors: those of the only pipeline rank, or a list of them per rank."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(
            f"expected the parameters of each tensor, a list or a list per pipeline rank, found {describe(value)}"
        )
    per = value if isinstance(value[0], list | tuple) else (value,)
    read = []
    for sizes in per:
        if not isinstance(sizes, list | tuple) or not sizes:
            raise ValueError(f"expected a list of tensors for each pipeline rank, found {describe(sizes)}")
        read.append(tuple([int(_TENSOR.read(size)) for size in sizes]))
    return tuple(read)


_SIZES_SCHEMA = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}}
TENSORS_SCHEMA = {"anyOf": [_SIZES_SCHEMA, {"type": "array", "minItems": 1, "items": _SIZES_SCHEMA}]}


Tensors = Annotated[tuple[tuple[int, ...], ...], Reads(read_tensors, TENSORS_SCHEMA)]


_RANGE = re.compile(r"\s*(\d{1,8})\s*-\s*(\d{1,8})\s*")


def _numbers(value: object) -> tuple[int, ...]:
    """Read numbers such as 3, 0-7 or [0-3, 8]."""
    numbers: list[int] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        match = _RANGE.fullmatch(item) if isinstance(item, str) else None
        if match:
            first, last = map(int, match.groups())
            if last < first or last > MOST:
                raise ValueError(f"expected a range such as 0-7, found {describe(item)}")
            numbers += range(first, last + 1)
        else:
            numbers.append(whole(0, MOST).read(item))
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{next(one for one in numbers if numbers.count(one) > 1)} is given twice")
    return tuple(numbers)


_NUMBERS = {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "array"}], "examples": ["0-7"]}


Numbers = Annotated[tuple[int, ...], Reads(_numbers, _NUMBERS)]
