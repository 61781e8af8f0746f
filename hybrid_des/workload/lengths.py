"""Lengths of documents, each kind a function that registers itself.

    @lengths("lognormal", summary="…", options=Lognormal)
    def lognormal(request: LengthRequest, options: Lognormal) -> Draw: ...

| name      | length in tokens, before it is limited to least … most                               |
|-----------|--------------------------------------------------------------------------------------|
| lognormal | exp(µ + σZ) with µ = ln mean − σ²/2, rounded down, as NVIDIA/Megatron-LM draws mock   |
|           | lengths (megatron/core/datasets/varlen_dataset.py): `mean` is that of the whole curve |
| uniform   | every whole number from least to most                                                |
| fixed     | the same for all                                                                     |
| histogram | `values` with `weights`, or the columns length and count of a file                   |
| file      | those of a file, each once, in random order or as given, then each once more         |

Z is a standard normal number. Numbers come from one stream per seed (`draws.stream`).
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from hybrid_des.errors import UsageError, one_line
from hybrid_des.files import read_text
from hybrid_des.options import (
    LONGEST,
    Factor,
    NamesFile,
    Number,
    Options,
    TokenCount,
    choice,
    describe_type,
    table_file,
)
from hybrid_des.registry import Registry, called
from hybrid_des.workload.distributions import Sigma

BLOCK = 256  # lengths drawn at a time
Draw = Callable[["np.random.Generator"], Iterator[NDArray[Any]]]  # generator → lengths, unlimited, in blocks


class LengthRequest(NamedTuple):
    """What a kind of lengths is asked for.

    Attributes:
        least, most: tokens of the shortest and of the longest document.
        sequence: tokens of a sample of the model.
    """

    least: int
    most: int
    sequence: int


_REGISTRY: Registry[Callable[..., Draw]] = Registry("kind of lengths", "hybrid_des.workload.lengths")
names = _REGISTRY.names
find = _REGISTRY.__getitem__


def lengths(
    name: str, *, summary: str, options: type[Options] | None = None, drawn: bool = True
) -> Callable[[Callable[..., Draw]], Callable[..., Draw]]:
    """Register a kind of lengths under its name in a scenario's `data.lengths.kind`.

    Args:
        name: value of the key.
        summary: one-line description.
        options: class of its options; an instance is the function's last argument.
        drawn: whether lengths differ, so that another seed gives others.
    """
    return _REGISTRY(name, options, summary=summary, drawn=drawn)


def endless(block: Callable[[np.random.Generator], NDArray[Any]]) -> Draw:
    """Blocks of lengths without end, each as a function of the generator gives it."""
    return lambda generator: map(block, repeat(generator))


class LengthTable:
    """Lengths in a file, with the number of documents of each; equal tables are equal objects for all that depends.

    Attributes:
        source: the path.
        values, counts: the lengths in the order of the file, and how many documents have each.
    """

    def __init__(self, source: str, values: Sequence[int], counts: Sequence[int]) -> None:
        self.source = source
        self.values, self.counts = np.array(values, dtype=np.int64), np.array(counts, dtype=np.int64)

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.values.tobytes() + b"/" + self.counts.tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LengthTable) and (self.source, self._digest) == (other.source, other._digest)

    def __hash__(self) -> int:
        return hash((self.source, self._digest))

    def __repr__(self) -> str:
        return f"LengthTable({self.source!r}, {self._digest})"


LENGTHS, COUNTS = ("length", "lengths", "tokens", "seq_len", "sequence_length"), ("count", "counts", "documents")


def read_lengths(path: str | Path) -> LengthTable:
    """Read a CSV file of lengths: one per line, or a column `length` and perhaps one `count`.

    Raises:
        UsageError: it cannot be read.
        ValueError: it holds no lengths; one line with the file and the line in it.
    """
    text = read_text(path, "lengths of documents")
    rows = [(number, cells) for number, cells in enumerate(csv.reader(text.splitlines()), 1) if any(cells)]
    if not rows:
        raise ValueError(f"{path}: no lengths; expected a number of tokens per line")
    places, rows = _columns(rows, path)
    if not rows:
        raise ValueError(f"{path}: a table without lengths")
    columns = [[_cell(cells, column, f"{path}:{number}") for number, cells in rows] for column in places]
    values, counts = columns if len(columns) == len(("length", "count")) else (columns[0], [1] * len(rows))
    if not any(counts):
        raise ValueError(f"{path}: counts of 0 documents only")
    return LengthTable(str(path), values, counts)


def _columns(rows: list[tuple[int, list[str]]], path: str | Path) -> tuple[list[int], list[tuple[int, list[str]]]]:
    """The places of the lengths and of the counts, if there are any, and the rows below the heading."""
    first = [cell.strip().lower() for cell in rows[0][1]]
    if len(first) == 1:
        return [0], rows if first[0].lstrip("-").isdecimal() else rows[1:]
    named = [next((first.index(name) for name in among if name in first), None) for among in (LENGTHS, COUNTS)]
    if named[0] is None:
        raise ValueError(f"{path}:{rows[0][0]}: expected a column called length, or one number per line")
    return [column for column in named if column is not None], rows[1:]


def _cell(cells: Sequence[str], column: int, where: str) -> int:
    text = cells[column].strip() if column < len(cells) else ""
    if not text.isdecimal() or not int(text) <= LONGEST:
        raise ValueError(f'{where}: expected a whole number from 0 to {LONGEST}, found "{one_line(text)}"')
    return int(text)


LengthFile = Annotated[LengthTable, table_file(read_lengths, LengthTable), NamesFile()]


class Lognormal(Options):
    """Lengths of which few are many times the mean."""

    mean: Factor
    """Mean of the lengths before they are limited, in tokens."""
    sigma: Sigma
    """Standard deviation of their logarithm."""


class Fixed(Options):
    """Lengths that are all the same."""

    length: TokenCount | None = None
    """Tokens of every document. Default: the model's `sequence`."""


class Histogram(Options):
    """Lengths and how often each occurs."""

    values: tuple[TokenCount, ...] = ()
    """Lengths, in tokens."""
    weights: tuple[Number, ...] = ()
    """How often each occurs, relative to the others. Default: equally often."""
    file: LengthFile | None = None
    """Instead of both: a CSV file with the columns length and count."""

    @model_validator(mode="after")
    def _complete(self) -> Histogram:
        if not self.values and self.file is None:
            raise ValueError("a histogram needs values and weights, or a file")
        if self.file is not None and (self.values or self.weights):
            raise ValueError("a file replaces values and weights; give one or the other")
        if self.weights and (len(self.weights) != len(self.values) or not any(self.weights)):
            expected = f"expected a weight for each of {len(self.values)} values, not all of them 0"
            raise ValueError(f"{expected}, found {len(self.weights)}")
        return self


class Listed(Options):
    """Lengths of the documents of a data set."""

    file: LengthFile
    """A CSV file with one length per line, or in a column `length`."""
    order: Annotated[Literal["random", "given"], choice("random", "given")] = "random"
    """In which order documents come: `given`, as in the file."""


@lengths("lognormal", summary="log-normal: few documents are many times as long as most", options=Lognormal)
def lognormal(request: LengthRequest, options: Lognormal) -> Draw:
    """Lengths exp(µ + σZ)."""
    sigma = float(options.sigma)
    middle = np.log(float(options.mean)) - sigma**2 / 2
    return endless(lambda generator: np.exp(middle + sigma * generator.standard_normal(BLOCK)))


@lengths("uniform", summary="every length from least to most equally often")
def uniform(request: LengthRequest) -> Draw:
    """Lengths from least to most."""
    return endless(lambda generator: generator.integers(request.least, request.most + 1, BLOCK))


@lengths("fixed", summary="all documents have the same length", options=Fixed, drawn=False)
def fixed(request: LengthRequest, options: Fixed) -> Draw:
    """The same length again and again."""
    block = np.full(BLOCK, options.length or request.sequence)
    return endless(lambda generator: block)


@lengths("histogram", summary="given lengths, each as often as its weight says", options=Histogram)
def histogram(request: LengthRequest, options: Histogram) -> Draw:
    """Lengths with probabilities."""
    table, values = options.file, options.values
    weights = options.weights or (1,) * len(values)
    numbers = np.array(values, dtype=np.int64) if table is None else table.values
    shares = np.array([float(weight) for weight in weights]) if table is None else table.counts.astype(float)
    return endless(lambda generator: generator.choice(numbers, BLOCK, p=shares / shares.sum()))


@lengths("file", summary="those of a file, in random order or as given", options=Listed)
def listed(request: LengthRequest, options: Listed) -> Draw:
    """The lengths of the file in random order, then in another one; or as given, again and again."""
    every = np.repeat(options.file.values, options.file.counts)
    return endless(lambda generator: every if options.order == "given" else generator.permutation(every))


class Documents:
    """The lengths of successive documents, whole and limited.

    Attributes:
        truncated: how many of those taken so far were longer than the most.
    """

    def __init__(self, draw: Draw, request: LengthRequest, generator: np.random.Generator) -> None:
        self._blocks, self._request = self._drawn(draw, generator), request
        self._next: list[int] = []
        self._long: list[bool] = []
        self.truncated = 0

    def peek(self) -> int:
        """The length of the next document, which is not taken."""
        if not self._next:
            block, request = self._block(), self._request
            self._next = np.clip(block, request.least, request.most).astype(np.int64).tolist()[::-1]
            self._long = (block >= request.most + 1).tolist()[::-1]
        return self._next[-1]

    @staticmethod
    def _drawn(draw: Draw, generator: np.random.Generator) -> Iterator[NDArray[Any]]:
        """The blocks of a user's kind of lengths, if it is a function that yields them."""
        if not callable(draw):
            raise UsageError(f"lengths of documents: expected a function of a generator, found {describe_type(draw)}")
        blocks = called("lengths of documents: what was returned", draw, (generator,), ", a generator")
        if not isinstance(blocks, Iterator):
            raise UsageError(f"lengths of documents: expected blocks that are yielded, found {describe_type(blocks)}")
        return blocks

    def _block(self) -> NDArray[Any]:
        """The next lengths."""
        block = next(self._blocks, None)
        if block is None:
            raise UsageError("lengths of documents end; expected blocks without end")
        if not isinstance(block, np.ndarray) or block.ndim != 1 or not block.size or block.dtype.kind not in "iuf":
            expected = "expected an array of at least one number"
            raise UsageError(f"lengths of documents: {expected}, found {describe_type(block)}")
        if not (block > -np.inf).all():
            raise UsageError("lengths of documents: expected numbers, found nan")
        return block

    def take(self) -> int:
        """The length of the next document."""
        self.peek()
        self.truncated += self._long.pop()
        return self._next.pop()
