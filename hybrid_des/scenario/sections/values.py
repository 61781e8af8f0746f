"""Field types used only by scenarios; those shared with plug-ins are in `hybrid_des.options`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo

from hybrid_des import jitter, models
from hybrid_des.collectives import algorithms, codecs
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.models import kinds
from hybrid_des.models.layer import MODULES
from hybrid_des.models.stages import RULES, stages_in
from hybrid_des.network import topologies
from hybrid_des.numerics import datasets
from hybrid_des.options import (
    MOST,
    Elsewhere,
    NamesFile,
    Options,
    Reads,
    Section,
    SharedOptions,
    WrittenNone,
    choice,
    decimal,
    describe,
    mark_of,
    of_ranks,
    or_word_schema,
    quantity_schema,
    read_bytes,
    read_quantity,
    read_text,
    required_keys,
    whole,
    word_or_count,
)
from hybrid_des.pipeline import schedules
from hybrid_des.registry import Entry
from hybrid_des.scenario.problem import Problem, Problems, misfit, problems_in, unknown_key
from hybrid_des.units import Dimension

AXES = ("tensor", "data", "pipeline")
LEVELS = ("none", "selective", "full")  # of recomputation
CONTEXT = "context"  # follows tensor if an order does not name it


def per_rank(dimension: Dimension) -> Reads:
    """One quantity for all pipeline ranks, or a list with one per rank."""

    def read(value: Any) -> Fraction | tuple[Fraction, ...]:
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

    one = quantity_schema(dimension)
    return Reads(read, {"anyOf": [*one["anyOf"], {"type": "array", "items": one}], "examples": one["examples"]})


def share(*, above_0: bool = False, below_1: bool = False) -> Reads:
    """A number from 0 to 1, without the ends that are excluded."""

    def read(value: Any) -> Fraction:
        number = read_quantity(value, "number")
        if number > 1:
            raise ValueError(f"must be from 0 to 1, not {decimal(number)}")
        if above_0 and number == 0:
            raise ValueError("must be more than 0")
        if below_1 and number == 1:
            raise ValueError("must be less than 1")
        return number

    least, most = "exclusiveMinimum" if above_0 else "minimum", "exclusiveMaximum" if below_1 else "maximum"
    return Reads(read, {"type": "number", least: 0, most: 1})


def _bucket(value: Any) -> int | None:
    if value is None or value == "none":
        return None
    if isinstance(value, bool):
        raise ValueError(f"expected none, or a size such as 25 MiB, found {describe(value)}")
    size = read_bytes(value)
    if size == 0:
        raise ValueError("a bucket cannot have 0 bytes; expected none, or a size such as 25 MiB")
    return size


def _path(value: Any) -> Path | None:
    if value is None or isinstance(value, Path):
        return value
    if "\0" in read_text(value):
        raise ValueError("a path cannot contain a null character")
    return Path(value)


def or_none(schema: Any) -> BeforeValidator:
    """A section that may be written as `none`; `schema` is the type in files."""
    return BeforeValidator(lambda value: None if value == "none" else value, json_schema_input_type=schema)


def _one_of(names: Callable[[], list[str]]) -> PlainValidator:
    """A name that is registered when the value is read, built in or user-defined."""
    return PlainValidator(lambda value: choice(*names()).read(value))


def _offer(names: Callable[[], list[str]]) -> Any:
    """List the currently registered names in the JSON Schema."""
    return Field(json_schema_extra=lambda schema: schema.update({"enum": [*names()]}))


def _order(value: Any) -> tuple[str, ...]:
    named = sorted(map(str, value)) if isinstance(value, list | tuple) else []
    if named not in (sorted(AXES), sorted((*AXES, CONTEXT))):
        raise ValueError(f"expected the three axes {', '.join(AXES)} in some order, each once")
    return tuple(value)


def _stages(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list | tuple):
        return tuple(whole(0, MOST).read(item) for item in value)
    if isinstance(value, str) and value.startswith("E"):
        return _laid_out(value)
    return choice(*RULES, beside="a list of layers per stage").read(value)  # type: ignore[no-any-return]


def _laid_out(layout: str) -> tuple[int, ...]:
    """Layers per stage of a layout such as Et|(tt|)*30mL."""
    try:
        stages = stages_in(layout)
    except Refusal as refusal:
        raise ValueError(str(refusal)) from None
    if any("m" in stage for stage in stages[:-1]):
        raise ValueError("modules of multi-token prediction are simulated in the last stage; expected m beside L")
    return tuple(stage.count("t") for stage in stages)


def _recompute(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple):
        if len(set(map(str, value))) < len(value):
            raise ValueError("expected names of modules, each once")
        return tuple(choice(*MODULES).read(item) for item in value) or "none"
    return choice(*LEVELS, beside="a list of modules").read(value)  # type: ignore[no-any-return]


def _shares(value: Any) -> Fraction | tuple[Fraction, ...]:
    numbers: Fraction | tuple[Fraction, ...] = per_rank("number").read(value)
    for number in numbers if isinstance(numbers, tuple) else (numbers,):
        if number > 1:
            raise ValueError(f"must be from 0 to 1, not {decimal(number)}")
    return numbers


Fold = Annotated[int | str, word_or_count("auto", "off", beside="a number of replicas")]
_COUNTS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_STAGES = {"anyOf": [{"enum": [*RULES]}, {"type": "string", "pattern": "^E"}, _COUNTS]}
Stages = Annotated[str | tuple[int, ...], Reads(_stages, _STAGES)]
_RECOMPUTE = {"anyOf": [{"enum": [*LEVELS]}, {"type": "array", "items": {"enum": [*MODULES]}}]}
Recompute = Annotated[str | tuple[str, ...], Reads(_recompute, _RECOMPUTE)]
TopologyName = Annotated[str, _one_of(topologies.names), _offer(topologies.names)]
ScheduleName = Annotated[str, _one_of(schedules.names), _offer(schedules.names)]
AlgorithmName = Annotated[str, _one_of(algorithms), _offer(algorithms)]
CodecName = Annotated[str, _one_of(codecs.names), _offer(codecs.names)]
ModelKindName = Annotated[str, _one_of(kinds.names), _offer(kinds.names)]
PublishedName = Annotated[str, _one_of(models.names), _offer(models.names)]
DistributionName = Annotated[str, _one_of(jitter.names), _offer(jitter.names)]
TaskName = Annotated[str, _one_of(datasets.names), _offer(datasets.names)]
BucketSize = Annotated[
    int | None, Reads(_bucket, or_word_schema("none", "size", "none", "25 MiB")), WrittenNone("none")
]
RankTimes = Annotated[Fraction | tuple[Fraction, ...], per_rank("time")]
RankSizes = Annotated[Fraction | tuple[Fraction, ...], per_rank("size")]
RankNumbers = Annotated[Fraction | tuple[Fraction, ...], per_rank("number")]
RankShares = Annotated[Fraction | tuple[Fraction, ...], Reads(_shares, per_rank("number").schema)]
File = Annotated[Path | None, Reads(_path, {"type": "string"}), NamesFile()]
ORDER_SCHEMA = {"type": "array", "items": {"enum": [*AXES, CONTEXT]}, "minItems": 3, "maxItems": 4, "uniqueItems": True}
Order = Annotated[tuple[str, ...], Reads(_order, ORDER_SCHEMA)]


_RANGE = re.compile(r"\s*(\d{1,8})\s*-\s*(\d{1,8})\s*")


def _numbers(value: Any) -> tuple[int, ...]:
    """Read numbers such as 3, 0-7 or [0-3, 8]."""
    found: list[int] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        match = _RANGE.fullmatch(item) if isinstance(item, str) else None
        if match:
            first, last = map(int, match.groups())
            if last < first or last > MOST:
                raise ValueError(f"expected a range such as 0-7, found {describe(item)}")
            found += range(first, last + 1)
        else:
            found.append(whole(0, MOST).read(item))
    if len(set(found)) < len(found):
        raise ValueError(f"{next(one for one in found if found.count(one) > 1)} is given twice")
    return tuple(found)


_NUMBERS = {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "array"}], "examples": ["0-7"]}
Numbers = Annotated[tuple[int, ...], Reads(_numbers, _NUMBERS)]


# Sections that select a plug-in, whose options share the section with its own keys.
#
#     cluster: {topology: leaf-spine, leaf_size: 2}        # an option of leaf-spine, held as cluster.options.leaf_size
#
# The plug-ins registered when a scenario is read determine the keys.


AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True)
class Plugins:
    """The plug-ins that a section selects from.

    Attributes:
        key: the key that names one.
        names, find: access to the registry.
        default: the name if none is given.
        besides: values of the key other than registered names, each with a name for messages and its options.
    """

    key: str
    names: Callable[[], list[str]]
    find: Callable[[str], Entry[Any]]
    default: str | None = None
    besides: Mapping[str | None, Entry[Any]] = field(default_factory=dict)

    def readers(self) -> dict[str, dict[str, FieldInfo]]:
        """For each option, the plug-ins that read it, by name, with their fields."""
        found: dict[str, dict[str, FieldInfo]] = {}
        for entry in map(self.find, self.names()):
            for key in entry.keys:
                found.setdefault(key, {})[entry.name] = entry.options.model_fields[key]  # type: ignore[union-attr]
        return found

    def chosen(self, values: Mapping[str, Any]) -> Entry[Any] | None:
        """The plug-in that plain values select; None if the name is unknown."""
        name = values.get(self.key, self.default)
        if name is not None and not isinstance(name, str):
            return None
        if name in self.besides:
            return self.besides[name]
        return self.find(name) if name is not None and name in self.names() else None

    def requiring(self, values: Mapping[str, Any]) -> list[str]:
        """The plug-ins with required options whose required options are all given."""
        given = {key for key, value in values.items() if value is not None}
        needs = {name: set(required_keys(self.find(name).options)) for name in self.names()}
        return [name for name, keys in needs.items() if keys and keys <= given]


class PluginSection(Section):
    """A section with its own keys and those of the plug-in it selects."""

    plugins: ClassVar[Plugins]
    options: Options | None = None
    """Options of the plug-in."""
    _unread: dict[str, Any] = PrivateAttr(default_factory=dict)
    _lacking: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    @cache
    def own_keys(cls) -> Mapping[str, FieldInfo]:
        """The section's own keys."""
        return {name: one for name, one in cls.model_fields.items() if name != "options"}

    @classmethod
    def known_keys(cls) -> dict[str, list[FieldInfo]]:
        """The section's own keys and the options of all plug-ins."""
        own = {name: [one] for name, one in cls.own_keys().items()}
        return own | {key: list(readers.values()) for key, readers in cls.plugins.readers().items()}

    @classmethod
    def keys_given(cls, values: Mapping[str, Any]) -> dict[str, FieldInfo]:
        """Every key read by the section or its plug-in, and given keys that only other plug-ins read.

        Raises:
            UsageError: an option of the plug-in has the name of one of the section's own keys.
        """
        own, chosen = cls.own_keys(), cls.plugins.chosen(values)
        known = dict(own)
        if chosen is not None and chosen.options is not None:
            options = chosen.options.model_fields
            for key in own.keys() & options.keys():
                raise UsageError(f'{chosen.name}: an option cannot be called "{key}": the section has that key')
            known |= options
        if values.keys() - known.keys():
            readers = cls.plugins.readers()
            known |= {key: next(iter(readers[key].values())) for key in values if key in readers and key not in known}
        return known

    @property
    def arguments(self) -> tuple[Options, ...]:
        """The last arguments of the plug-in: its options, or none for a plug-in without options."""
        return () if self.options is None else (self.options,)

    @property
    def unread(self) -> Mapping[str, Any]:
        """Options that were given but that the plug-in does not read."""
        return self._unread

    def misfits_of_options(self, path: str, ranks: int) -> Iterator[Problem]:
        """Required options that are not given, and options without effect unless they state the implied value.

        Args:
            path: that of the section.
            ranks: the pipeline size, of which values such as 2p are multiples.
        """
        chosen = self.plugins.chosen(dict(self))
        what, names = chosen.name if chosen else "", f"{path}.{self.plugins.key}"
        for key in self.lacking:
            yield misfit(f"is required by {what}", f"{path}.{key}", names)
        for key, value in self.unread.items():
            readers = self.plugins.readers()[key]
            mark = mark_of(next(iter(readers.values())), Elsewhere)
            if mark is None or value != of_ranks(mark.value, ranks):
                yield misfit(f"is not read by {what}; read by {', '.join(readers)}", f"{path}.{key}", names)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Required options of the plug-in that were not given."""
        return self._lacking

    @model_validator(mode="wrap")
    @classmethod
    def _with_options(cls, values: Any, handler: ModelWrapValidatorHandler[PluginSection]) -> PluginSection:
        if not isinstance(values, Mapping):
            return handler(values)
        known, chosen = cls.keys_given(values), cls.plugins.chosen(values)
        own = {key: value for key, value in values.items() if key in cls.own_keys()}
        rest = {key: value for key, value in values.items() if key not in own}
        problems = [Problem((key,), unknown_key(str(key), cls.known_keys())) for key in rest if key not in known]
        given = {key: value for key, value in rest.items() if key in known and value is not None}
        kind = chosen.options if chosen else None
        read = {key: given.pop(key) for key in list(given) if kind and key in kind.model_fields}
        wrong: list[Problem] = []
        unread = _alone(given, known, wrong) if given else {}
        options = None
        if kind is SharedOptions:
            options, unread = SharedOptions(**unread), {}
        elif kind is not None:
            options = _validated(kind, read, wrong)
        section = None
        try:
            section = handler({**own, "options": options})
        except ValidationError as error:
            problems += problems_in(error, cls)
        if section is None or problems or wrong:
            raise Problems([*problems, *wrong])
        section._unread = unread if chosen else {}  # without a plug-in, their reader is unknown
        section._lacking = tuple(key for key in required_keys(kind) if key not in read)
        return section


def _alone(given: Mapping[str, Any], known: Mapping[str, FieldInfo], problems: list[Problem]) -> dict[str, Any]:
    """The values of options that the plug-in does not read, each by the field of the first plug-in that has it."""
    fields: dict[str, Any] = {key: (known[key].annotation, known[key]) for key in given}
    alone: Section | None = _validated(create_model("Alone", __base__=Section, **fields), given, problems)
    return {} if alone is None else dict(alone)


def _validated(kind: type[AnySection], values: Mapping[str, Any], problems: list[Problem]) -> AnySection | None:
    """The validated values; None after adding the problems, except for missing keys, which `lacking` lists."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        missing = {(key,) for key in kind.model_fields.keys() - values.keys()}
        problems += [one for one in problems_in(error, kind) if one.path not in missing]
    return None
