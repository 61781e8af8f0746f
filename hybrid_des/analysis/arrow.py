"""The timeline as Arrow tables, made without pandas, which reads them back as the DataFrame of `analysis.table`.

A long run is converted in small pieces; importing pandas would take much more memory than they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.planning.program_table import NONE
from hybrid_des.simulation.timeline import Timeline

if TYPE_CHECKING:
    import pyarrow
from hybrid_des.analysis.table import COLUMNS, COUNTED, EXACT, PLACES, SECONDS, RowNames, pieces, seconds, source

ALL = (*COLUMNS, *EXACT)


def arrow_tables(timeline: Timeline) -> Iterator[pyarrow.Table]:
    """Make the table with picoseconds, piece by piece."""
    import pyarrow

    names = RowNames.of(timeline)
    schema, words = _schema(names), {name: _texts(words) for name, words in names.words.items()}
    for columns in pieces(timeline, names):
        arrays = []
        for name in ALL:
            values = columns[source(name)]
            if name in words:
                arrays.append(words[name].take(_array(values)))
            elif name in SECONDS:
                arrays.append(_array(seconds(values)))
            else:
                arrays.append(_array(values, missing=_nullable(name, names)))
        yield pyarrow.table(arrays, schema=schema)


def _array(values: NDArray[Any], *, missing: bool = False) -> pyarrow.Array:
    """An array that shares memory with `values`, optionally with missing ones; `pyarrow.array` would import pandas."""
    import pyarrow

    valid = pyarrow.py_buffer(np.packbits(values != NONE, bitorder="little")) if missing else None
    kind = pyarrow.from_numpy_dtype(values.dtype)
    return pyarrow.Array.from_buffers(kind, len(values), [valid, pyarrow.py_buffer(values)])


def _texts(words: Sequence[str]) -> pyarrow.Array:
    import pyarrow

    coded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, coded)]).astype(np.int32)
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(coded))]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(coded), buffers)


def _nullable(name: str, names: RowNames) -> bool:
    whole = name in COUNTED or name in EXACT or name in SECONDS or name in names.words
    return names.servers if name in PLACES else not whole


def _schema(names: RowNames) -> pyarrow.Schema:
    """Types of the columns, and the metadata that pandas expects.

    Source: pandas developer guide, "Storing pandas DataFrame objects in Apache Parquet format".
    """
    import pyarrow

    types = {name: "string" if name in names.words else "float64" if name in SECONDS else "int64" for name in ALL}
    told = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": {"string": "unicode"}.get(kind, kind),
            "numpy_type": "Int64" if _nullable(name, names) else {"string": "object"}.get(kind, kind),
            "metadata": None,
        }
        for name, kind in types.items()
    ]
    metadata = {"index_columns": [], "column_indexes": [], "columns": told, "pandas_version": "2.0.0"}
    fields = [(name, pyarrow.type_for_alias(kind)) for name, kind in types.items()]
    return pyarrow.schema(fields, {"pandas": json.dumps(metadata)})
