"""Plug-in options: a schedule, topology or collective declares the options it reads as a small typed class.

    class LeafSpine(Options):
        leaf_size: Count = 1
        \"\"\"Nodes per leaf.\"\"\"

    @topology("leaf-spine", summary="…", options=LeafSpine)
    def leaf_spine(cluster: ClusterSpec, options: LeafSpine) -> Fabric: ...

In the scenario file, options share the section with its own keys (`cluster.leaf_size`); editors show a field's
docstring. This module holds the base class and the field types shared by plug-ins and the scenario. A reader function
maps a plain value to the checked one, or raises `ValueError` with one sentence.
"""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line, unknown
from hybrid_des.units import EXAMPLES, Dimension, parse_quantity

Mark = TypeVar("Mark")

MOST = 2**20 - 1  # largest value that fits into a field of a message's tag
LONGEST = 2**27  # tokens of a sample or a document: two thousand times what is usual, a hundred times what is trained
# Simulated time is an int64 in picoseconds (106 days), sizes are int64 bytes; anything larger is a typing error.
LARGEST = {
    "time": (Fraction(10**6), "1e6 s"),
    "span": (Fraction(10**13), "1e13 s"),  # mean times between failures exceed int64 picoseconds
    "size": (Fraction(10**15), "1 PB"),
    "bandwidth": (Fraction(10**15), "1 PB/s, or inf"),
    "compute": (Fraction(10**21), "1e21 FLOP/s"),
    "power": (Fraction(10**9), "1e9 W"),
    "number": (Fraction(10**15), "1e15"),
}


class Section(BaseModel):
    """Strictly validated, immutable named values; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON Schema, with docstrings of attributes as descriptions; only a schema needs the source parsed."""
        described = handler(schema)
        properties = handler.resolve_ref_schema(described).get("properties", {})
        for name, text in attribute_docstrings(cls).items():
            field = cls.model_fields.get(name)
            key = next((key for key in (field.alias, name) if key in properties), None) if field else None
            if not field or not key or field.description is not None:
                continue
            if "$ref" not in properties[key] or inspect.getdoc(field.annotation) != text:  # once is enough
                properties[key]["description"] = text
        return described

    @classmethod
    def known_keys(cls) -> dict[str, list[FieldInfo]]:
        """Each allowed key with its field, or with several fields if plug-ins share the name."""
        return {field.alias or name: [field] for name, field in cls.model_fields.items()}


def attribute_docstrings(kind: type[Section]) -> dict[str, str]:
    """The docstrings below the attributes of a class and its bases; none where the source is not available."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for name in inspect.get_annotations(base):
            texts.pop(name, None)  # declared again
        if issubclass(base, Section):
            texts |= _own_docstrings(base)
    return texts


def _own_docstrings(kind: type[Section]) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):  # such as a class typed into an interpreter
        return {}
    return {
        attribute.target.id: inspect.cleandoc(text.value.value)
        for attribute, text in pairwise(getattr(body, "body", ()))
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


class Options(Section):
    """Options of one plug-in, in addition to what every plug-in of its kind receives."""

    @cached_property
    def _hash(self) -> int:
        return hash(repr(self))  # values of a user's options, such as lists, may not be hashable

    def __hash__(self) -> int:
        return self._hash


class SharedOptions(Options):
    """Options for several plug-ins at once; each takes the ones it declares."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class OfRanks:
    """Marks a field that accepts a multiple of the pipeline size such as 2p; so may `default`."""

    default: str | None = None


@dataclass(frozen=True)
class Elsewhere:
    """Marks a field with the value implied by plug-ins without it; giving them that value is not an error."""

    value: Any


@dataclass(frozen=True)
class WrittenNone:
    """Marks a field whose None is written as a word in files, such as inf."""

    word: str


class NamesFile:
    """Marks a field that holds a file path, relative to the folder of the scenario file."""


def required_keys(kind: type[Options] | None) -> tuple[str, ...]:
    """Options without a default."""
    return tuple(name for name, field in kind.model_fields.items() if field.is_required()) if kind else ()


def mark_of(field: FieldInfo, kind: type[Mark]) -> Mark | None:
    """The mark of class `kind` on a field, if it has one."""
    marks = (one for one in _metadata(field.metadata, field.annotation) if isinstance(one, kind))
    return next(marks, None)


def _metadata(metadata: Any, annotation: Any) -> Iterator[Any]:
    yield from metadata
    for part in get_args(annotation):
        yield from _metadata(getattr(part, "__metadata__", ()), part)


@dataclass(frozen=True, eq=False)
class Reads:
    """A field's reader, which replaces pydantic's validation, and its JSON Schema."""

    read: Callable[[Any], Any]
    schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: self.read(plain(value)))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**self.schema}


@dataclass(frozen=True, eq=False)
class ReadsAs:
    """A field's reader, and the type that it has in files, of which only a JSON Schema builds anything."""

    read: Callable[[Any], Any]
    written: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(TypeAdapter(self.written).core_schema)


def given(section: type[Section], written: Any = None, *, none: bool = False) -> ReadsAs:
    """A section that few files have: its checks are built when one has it, not at every start.

    Args:
        section: its class.
        written: its type in files, if another.
        none: whether `none` is written for None.
    """

    def read(value: Any) -> Section | None:
        return None if value is None or (none and value == "none") else section.model_validate(value)

    return ReadsAs(read, section | None if written is None else written)


def table_file(read: Callable[[str | Path], Any], *known: type) -> Reads:
    """The path of a CSV file, which is read when it is named; a table of a known class stays as it is."""

    def read_named(value: Any) -> Any:
        if isinstance(value, known):
            return value
        if not isinstance(value, str | Path):
            raise ValueError(f"expected the path of a CSV file, found {describe(value)}")
        try:
            return read(value)
        except UsageError as error:
            raise ValueError(str(error)) from None

    return Reads(read_named, {"type": "string"})


def plain(value: Any) -> Any:
    """A copy of nested values in which NumPy's scalars and arrays are Python's numbers, strings and lists."""
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        items = [plain(one) for one in value]
        return tuple(items) if isinstance(value, tuple) else items
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):  # without importing NumPy for it
        plain_value = value.tolist()
        return plain(plain_value) if isinstance(plain_value, list) else plain_value
    return value


def describe(value: Any) -> str:
    """Describe an unexpected value in an error message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Fraction):
        return decimal(value)
    return f'"{one_line(value, LONGEST_SHOWN)}"' if isinstance(value, str) else str(value)


def describe_type(value: object) -> str:
    """What kind of object was found, for messages."""
    if (shape := getattr(value, "shape", None)) is not None:
        return f"array of shape {shape}"
    return "nothing" if value is None else type(value).__name__


def decimal(value: Fraction) -> str:
    """Format a number for messages."""
    try:
        return f"{float(value):g}"
    except OverflowError:
        return f"about 1e{len(str(abs(int(value)))) - 1}"


def read_quantity(value: Any, dimension: Dimension) -> Fraction:
    """Read one quantity exactly, in SI base units.

    Raises:
        ValueError: it is not a quantity, is negative, or exceeds what can be simulated.
    """
    if not isinstance(value, str | int | float | Fraction):
        raise ValueError(f"expected {EXAMPLES[dimension]}, found {describe(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected {EXAMPLES[dimension]}; inf is allowed for a bandwidth only")
    if isinstance(value, Fraction) and value < 0:
        raise ValueError(f"{describe(value)} is negative; expected {EXAMPLES[dimension]}")
    number = parse_quantity(value, dimension)
    largest, written = LARGEST[dimension]
    if number > largest:
        raise ValueError(f"{describe(value)} is more than can be simulated (at most {written})")
    return number


def read_positive(value: Any, dimension: Dimension, otherwise: str = "must be more than 0") -> Fraction:
    """Read one quantity as `read_quantity` does, and refuse 0 with the message `otherwise`."""
    number = read_quantity(value, dimension)
    if number == 0:
        raise ValueError(otherwise)
    return number


def positive(dimension: Dimension) -> Reads:
    """One quantity more than 0."""
    return Reads(lambda value: read_positive(value, dimension), quantity_schema(dimension))


def within(least: float, most: float, said: str, why: str = "") -> Reads:
    """A number from `least` to `most`, which messages call as `said`; `why` follows what was found."""

    def read(value: Any) -> Fraction:
        number = read_quantity(value, "number")
        if not Fraction(str(least)) <= number <= most:
            raise ValueError(f"must be {said}, not {decimal(number)}{why}")
        return number

    return Reads(read, {"type": "number", "minimum": least, "maximum": most})


def quantity_schema(dimension: Dimension) -> dict[str, Any]:
    """The JSON Schema of a quantity."""
    text = {"type": "string", "pattern": r"^\s*\+?(\d|\.\d)[0-9.eE+-]*\s*[A-Za-zµμ/]*\s*$"}
    return {"anyOf": [{"type": "number", "minimum": 0}, text], "examples": [EXAMPLES[dimension].rpartition(" as ")[2]]}


def or_word_schema(word: str, dimension: Dimension, *examples: str) -> dict[str, Any]:
    """The JSON Schema of a quantity or a word."""
    return {"anyOf": [{"const": word}, *quantity_schema(dimension)["anyOf"]], "examples": [*examples]}


def quantity(dimension: Dimension) -> Reads:
    """One quantity, as an exact fraction in SI base units."""
    return Reads(lambda value: read_quantity(value, dimension), quantity_schema(dimension))


_MULTIPLE = re.compile(r"\s*(\d+\.?\d*|\.\d+|)\s*p\s*")


def of_ranks(value: Any, ranks: int) -> Any:
    """The value of a string such as 2p; any other value unchanged."""
    multiple = _MULTIPLE.fullmatch(value) if isinstance(value, str) else None
    return Fraction(multiple.group(1) or 1) * ranks if multiple else value


MULTIPLE = {"type": "string", "pattern": r"^\s*\d*\.?\d*\s*p\s*$"}


def whole(minimum: int, maximum: int, multiple: bool = False) -> Reads:
    """An integer from `minimum` to `maximum`; with `multiple` also a multiple of p, for a field marked `OfRanks`."""

    def read(value: Any) -> int:
        number = value if isinstance(value, int | Fraction) and not isinstance(value, bool) else None
        if isinstance(value, float) and value.is_integer():
            number = int(value)
        if number is None or int(number) != number:
            raise ValueError(f"expected a whole number, found {describe(value)}")
        if not minimum <= number <= maximum:
            bound = f"at least {minimum}" if number < minimum else f"at most {maximum}"
            raise ValueError(f"must be {bound}, not {describe(number)}")
        return int(number)

    number = {"type": "integer", "minimum": minimum, "maximum": maximum}
    return Reads(read, {"anyOf": [number, MULTIPLE]} if multiple else number)


def read_text(value: Any) -> str:
    """Read a string; numbers must be quoted."""
    if not isinstance(value, str):
        raise ValueError(f"expected a string, found {describe(value)}; quote it if it is meant as one")
    return value


def choice(*names: str, beside: str = "", meant: Mapping[str, str] = MappingProxyType({})) -> Reads:
    """One of a fixed set of words.

    Args:
        names: the words.
        beside: what the field takes besides, for messages.
        meant: words of others, for messages, each with that which means the same.
    """

    def read(value: Any) -> str:
        if not isinstance(value, str):
            offered = ", ".join(names) + (f", or {beside}" if beside else "")
            raise ValueError(f"expected {'' if beside else 'one of '}{offered}, found {describe(value)}")
        if same := meant.get(value.lower().replace("-", "_")):
            raise ValueError(f'unknown "{value}"; did you mean "{same}"?')
        if value not in names:
            raise ValueError(unknown(value, names))
        return value

    return Reads(read, {"enum": list(names)})


def word_or_count(*names: str, beside: str) -> Reads:
    """One of some words, or a number from 1, which messages call as `beside` says."""
    word, count = choice(*names, beside=beside), whole(1, MOST)

    def read(value: Any) -> int | str:
        number: int | str = (word if isinstance(value, str | bool) else count).read(value)
        return number

    return Reads(read, {"anyOf": [word.schema, count.schema]})


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {describe(value)}")
    return value


def _bandwidth(value: Any) -> Fraction | None:
    if value == "inf" or (isinstance(value, float) and value == math.inf):
        return None
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(f"expected {EXAMPLES['bandwidth']}, or inf")
    zero = f"a bandwidth of 0 delivers nothing; expected {EXAMPLES['bandwidth']}, or inf for a free link"
    return read_positive(value, "bandwidth", zero)


def read_bytes(value: Any) -> int:
    """Read a whole number of bytes."""
    size = read_quantity(value, "size")
    if size.denominator != 1:
        raise ValueError(f"{describe(value)} is not a whole number of bytes")
    return int(size)


def _limit(value: Any) -> Fraction | None:
    if value is None:
        return None
    if isinstance(value, str) and not re.fullmatch(r"[\d.eE+-]+", value):
        raise ValueError(f"expected a number, or a multiple of the pipeline size such as 2p, found {describe(value)}")
    return read_positive(value, "number", "must be more than 0, since a rank holds at least one micro-batch")


Time = Annotated[Fraction, quantity("time")]  # seconds
Span = Annotated[Fraction, quantity("span")]  # seconds, such as weeks
LastingSpan = Annotated[Fraction, positive("span")]  # more than 0 seconds
ComputeRate = Annotated[Fraction, quantity("compute")]  # FLOP/s
Number = Annotated[Fraction, quantity("number")]  # at least 0
Factor = Annotated[  # more than 0
    Fraction, Reads(lambda value: read_positive(value, "number"), {"type": "number", "exclusiveMinimum": 0})
]
Bytes = Annotated[int, Reads(read_bytes, quantity_schema("size"))]
LinkBandwidth = Annotated[  # bytes per second; None: infinite
    Fraction | None, Reads(_bandwidth, or_word_schema("inf", "bandwidth", "25 GB/s", "inf")), WrittenNone("inf")
]
Count = Annotated[int, whole(1, MOST)]
Natural = Annotated[int, whole(0, MOST)]
TokenCount = Annotated[int, whole(1, LONGEST)]
Limit = Annotated[Fraction | None, Reads(_limit, {"anyOf": [{"type": "number"}, MULTIPLE]})]
Flag = Annotated[bool, Reads(_flag, {"type": "boolean"})]
Text = Annotated[str, Reads(read_text, {"type": "string"})]
