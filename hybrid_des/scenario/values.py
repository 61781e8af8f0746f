"""The kinds of value that a scenario holds: how each is read, strictly, and what the JSON Schema says of it.

A reader takes a plain value and gives the checked one, or raises `ValueError` with one sentence; where several
things are wrong at once it raises `Problems`.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from hybrid_des.registry import unknown
from hybrid_des.scenario.availability import PLANNED
from hybrid_des.scenario.problem import Problem, Problems
from hybrid_des.units import EXAMPLES, Dimension, parse_quantity

# Simulated time is counted in int64 picoseconds (106 days), sizes in int64 bytes; what is larger is a slip of the pen.
LARGEST = {
    "time": (Fraction(10**6), "1e6 s"),
    "size": (Fraction(10**15), "1 PB"),
    "bandwidth": (Fraction(10**15), "1 PB/s; inf is free"),
    "compute": (Fraction(10**21), "1e21 FLOP/s"),
    "number": (Fraction(10**15), "1e15"),
}


MULTIPLE = {"type": "string", "pattern": r"^\s*\d*\.?\d*\s*p\s*$"}


@dataclass(frozen=True)
class Reads:
    """Tells pydantic how a field is read and described."""

    read: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Read the value with our own function and nothing else."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe the value for editors."""
        return self.schema()


def describe(value: Any) -> str:
    """Name a value that is not what was expected."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Fraction):
        return _decimal(value)
    return f'"{value}"' if isinstance(value, str) else str(value)


def _decimal(value: Fraction) -> str:
    try:
        return f"{float(value):g}"
    except OverflowError:
        return f"about 1e{len(str(abs(int(value)))) - 1}"


def _quantity(value: Any, dimension: Dimension) -> Fraction:
    if value is None or isinstance(value, dict | list | tuple):
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


def quantity(dimension: Dimension) -> Reads:
    """One quantity, as an exact fraction in SI base units."""
    return Reads(lambda value: _quantity(value, dimension), lambda: _quantity_schema(dimension))


def _quantity_schema(dimension: Dimension) -> dict[str, Any]:
    text = {"type": "string", "pattern": r"^\s*\+?(\d|\.\d)[0-9.eE+-]*\s*[A-Za-zµμ/]*\s*$"}
    return {"anyOf": [{"type": "number", "minimum": 0}, text], "examples": [EXAMPLES[dimension].rpartition(" as ")[2]]}


def per_rank(dimension: Dimension) -> Reads:
    """One quantity for all pipeline ranks, or a list with one for each."""

    def read(value: Any) -> Fraction | tuple[Fraction, ...]:
        if not isinstance(value, list | tuple):
            return _quantity(value, dimension)
        numbers, problems = [], []
        for index, item in enumerate(value):
            try:
                numbers.append(_quantity(item, dimension))
            except ValueError as error:
                problems.append(Problem((index,), str(error)))
        if problems:
            raise Problems(problems)
        return tuple(numbers)

    def schema() -> dict[str, Any]:
        one = _quantity_schema(dimension)
        return {"anyOf": [*one["anyOf"], {"type": "array", "items": one}], "examples": one["examples"]}

    return Reads(read, schema)


def _bandwidth(value: Any) -> Fraction | None:
    if value == "inf" or (isinstance(value, float) and value == math.inf):
        return None
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(f"expected {EXAMPLES['bandwidth']}, or inf")
    number = _quantity(value, "bandwidth")
    if number == 0:
        raise ValueError(f"a bandwidth of 0 never ends; expected {EXAMPLES['bandwidth']}, or inf for a free link")
    return number


def _bandwidth_schema() -> dict[str, Any]:
    return {"anyOf": [{"const": "inf"}, *_quantity_schema("bandwidth")["anyOf"]], "examples": ["25 GB/s", "inf"]}


def _bytes(value: Any) -> int:
    size = _quantity(value, "size")
    if size.denominator != 1:
        raise ValueError(f"{describe(value)} is not a whole number of bytes")
    return int(size)


def _bucket(value: Any) -> int | None:
    if value is None or value == "none":
        return None
    size = _bytes(value)
    if size == 0:
        raise ValueError("a bucket of 0 bytes holds nothing; expected none, or a size such as 25 MiB")
    return size


def _bucket_schema() -> dict[str, Any]:
    return {"anyOf": [{"const": "none"}, *_quantity_schema("size")["anyOf"]], "examples": ["none", "25 MiB"]}


def whole(minimum: int, maximum: int, multiple: bool = False) -> Reads:
    """A whole number from `minimum` to `maximum`; a multiple of p is resolved before it comes here."""

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
    return Reads(read, lambda: {"anyOf": [number, MULTIPLE]} if multiple else number)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {describe(value)}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {describe(value)}; put it in quotes if it is meant as one")
    return value


def _path(value: Any) -> Path | None:
    if value is None or isinstance(value, Path):
        return value
    return Path(_text(value))


def choice(*names: str) -> Reads:
    """One of a few words."""

    def read(value: Any) -> str:
        text = _text(value)
        if text not in names:
            raise ValueError(unknown(text, names))
        return text

    return Reads(read, lambda: {"enum": list(names)})


def registered(room: str, which: str = "names") -> Reads:
    """A name that a file of the package `hybrid_des.<room>`, or a user's own file, has registered.

    `which` is the package's function that gives them.
    """

    def known() -> list[str]:
        names: list[str] = getattr(importlib.import_module(f"hybrid_des.{room}"), which)()
        return names

    def read(value: Any) -> str:
        text = _text(value)
        if text in known():
            return text
        if text in PLANNED.get(room, ()):
            raise ValueError(f'"{text}" is not available in this version, which has {", ".join(known())}')
        raise ValueError(unknown(text, known()))

    return Reads(read, lambda: {"enum": known()})


def _order(value: Any) -> tuple[str, ...]:
    axes = ("tensor", "data", "pipeline")
    if not isinstance(value, list | tuple) or sorted(map(str, value)) != sorted(axes):
        raise ValueError(f"expected the three axes {', '.join(axes)} in some order, each once")
    return tuple(value)


def _order_schema() -> dict[str, Any]:
    axis = {"enum": ["tensor", "data", "pipeline"]}
    return {"type": "array", "items": axis, "minItems": 3, "maxItems": 3, "uniqueItems": True}


def _limit(value: Any) -> Fraction | None:
    if value is None:
        return None
    if isinstance(value, str) and not re.fullmatch(r"[\d.eE+-]+", value):
        raise ValueError(
            f"expected a number, or a multiple of the pipeline's ranks such as 2p, found {describe(value)}"
        )
    number = _quantity(value, "number")
    if number == 0:
        raise ValueError("must be more than 0, since a rank holds at least one micro-batch")
    return number


def share(value: Any) -> None:
    """Refuse what is not from 0 to 1."""
    for number in value if isinstance(value, tuple) else (value,):
        if number > 1:
            raise ValueError(f"must be from 0 to 1, not {_decimal(number)}")


def _shares(value: Any) -> Fraction | tuple[Fraction, ...]:
    numbers: Fraction | tuple[Fraction, ...] = per_rank("number").read(value)
    share(numbers)
    return numbers


def _factor(value: Any) -> Fraction:
    number = _quantity(value, "number")
    if number == 0:
        raise ValueError("must be more than 0")
    return number


Time = Annotated[Fraction, quantity("time")]
Compute = Annotated[Fraction, quantity("compute")]
Number = Annotated[Fraction, quantity("number")]
Factor = Annotated[Fraction, Reads(_factor, lambda: {"type": "number", "exclusiveMinimum": 0})]
Bytes = Annotated[int, Reads(_bytes, lambda: _quantity_schema("size"))]
Bandwidth = Annotated[Fraction | None, Reads(_bandwidth, _bandwidth_schema)]
Bucket = Annotated[int | None, Reads(_bucket, _bucket_schema)]
Times = Annotated[Fraction | tuple[Fraction, ...], per_rank("time")]
Sizes = Annotated[Fraction | tuple[Fraction, ...], per_rank("size")]
Numbers = Annotated[Fraction | tuple[Fraction, ...], per_rank("number")]
Shares = Annotated[Fraction | tuple[Fraction, ...], Reads(_shares, per_rank("number").schema)]
Limit = Annotated[
    Fraction | None,
    Reads(_limit, lambda: {"anyOf": [{"type": "number"}, MULTIPLE]}),
]
Flag = Annotated[bool, Reads(_flag, lambda: {"type": "boolean"})]
Text = Annotated[str, Reads(_text, lambda: {"type": "string"})]
File = Annotated[Path | None, Reads(_path, lambda: {"type": "string"})]
Order = Annotated[tuple[str, ...], Reads(_order, _order_schema)]
