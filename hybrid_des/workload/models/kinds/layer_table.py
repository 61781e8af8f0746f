"""Any network, as a table: a CSV file with one line per layer, all amounts per sample.

    name,flop,bytes,parameters,output_bytes,kept_bytes
    conv1,236027904,7626752,9408,1605632,1907328          FLOP of the forward (2 per multiply-add), bytes it moves,
    fc,4096000,4106000,2049000,0,4096                     bytes passed on, bytes kept for the backward

The backward takes the forward's FLOP and bytes for the gradient of the input, and again for that of the parameters, if
there are any. Every line is a separate layer for stages; nothing is divided by tensor parallelism. Lines that start
with # are comments; numbers may have units (1.6 MB).
"""

import csv
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from hybrid_des.files import read_text
from hybrid_des.options import NamesFile, Options, table_file
from hybrid_des.units import Dimension, parse_quantity
from hybrid_des.workload.models.amounts import Kept, Parameters
from hybrid_des.workload.models.kinds.registration import kind
from hybrid_des.workload.models.layer import Layer, Model
from hybrid_des.workload.models.operations import Kernel

COLUMNS = ("name", "flop", "bytes", "parameters", "output_bytes", "kept_bytes")
_LARGEST = 10**18  # of any amount; more is a typing error


def read_layers(path: str | Path) -> tuple[Layer, ...]:
    """Read a table.

    Raises:
        UsageError: it cannot be read.
        ValueError: it is not such a table; one line with the file and the line in it.
    """
    text = read_text(path, "a table of layers")
    rows = list(_rows(text, path))
    if not rows or tuple(cell.strip() for cell in rows[0][1]) != COLUMNS:
        where = f"{path}:{rows[0][0]}" if rows else path
        raise ValueError(f"{where}: expected the columns {','.join(COLUMNS)}")
    if not rows[1:]:
        raise ValueError(f"{path}: a table without layers")
    return tuple(_layer(cells, f"{path}:{number}") for number, cells in rows[1:])


def _rows(text: str, path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of every line that is not blank or a comment, with its number."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                yield number, next(csv.reader([line], strict=True))
            except csv.Error as error:
                raise ValueError(f"{path}:{number}: not a line of a CSV file: {error}") from None


def _layer(cells: Sequence[str], where: str) -> Layer:
    if len(cells) != len(COLUMNS):
        raise ValueError(f"{where}: expected {len(COLUMNS)} values, found {len(cells)}")
    name = cells[0].strip()
    if not name:
        raise ValueError(f"{where}: name: expected the name of a layer")
    dimensions: tuple[Dimension, ...] = ("number", "size", "number", "size", "size")
    flop, moved, parameters, output, kept = (
        _amount(cell.strip(), dimension, f"{where}: {column}")
        for column, cell, dimension in zip(COLUMNS[1:], cells[1:], dimensions, strict=True)
    )
    kernel = Kernel(name, Fraction(flop), moved, weights=parameters > 0)
    return Layer((kernel,), Parameters(replicated=parameters), Kept(sequence=kept), name=name, output=output)


def _amount(text: str, dimension: Dimension, where: str) -> int:
    try:
        number = parse_quantity(text, dimension)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if number.denominator != 1 or number > _LARGEST:
        raise ValueError(f'{where}: expected a whole number up to 1e18, found "{text}"')
    return int(number)


class LayerTable(Options):
    """A network from a file."""

    file: Annotated[tuple[Layer, ...], table_file(read_layers), NamesFile()]
    """A CSV file with the columns name, flop, bytes, parameters, output_bytes and kept_bytes per sample."""


@kind("layers", summary="any network, from a CSV file of layers", options=LayerTable)
def layer_table(options: LayerTable) -> Model:
    """The layers of the file."""
    return Model(1, options.file)
