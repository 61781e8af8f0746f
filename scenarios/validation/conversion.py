"""The command line of the scripts beside it: rows of a corpus from a file of published rows."""

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

Raw = Mapping[str, str]
Row = dict[str, object]


def rows_of(file: Path, converted: Callable[[Raw], Row | None]) -> Iterator[Row]:
    """The rows of a file as keys of scenarios, but those for which there is None.

    Raises:
        ValueError: a row has not the columns or values that `converted` expects; the message names file and line.
        OSError: the file cannot be read.
    """
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        for raw in reader:
            try:
                row = converted(raw)
            except KeyError as error:
                raise ValueError(f"{file}:{reader.line_num}: unknown value or missing column {error}") from None
            except (TypeError, ValueError) as error:
                raise ValueError(f"{file}:{reader.line_num}: {error}") from None
            if row is not None:
                yield row


def main(described: str | None, columns: Sequence[str], converted: Callable[[Raw], Row | None]) -> None:
    """Print the rows of the file on the command line as CSV, or one line on stderr."""
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", metavar="RAW.csv", type=Path, help="the published rows")
    file = parser.parse_args().raw
    try:
        rows = list(rows_of(file, converted))
    except OSError as error:
        parser.error(f"{file}: {error.strerror}")
    except ValueError as error:
        parser.error(str(error))
    out = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
