"""Rows of parametrized tests that stand beside them, in `tables.yaml`."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml


@cache
def _tables(file: Path) -> dict[str, Any]:
    return yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def from_table(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with every row that stands under its name; the first row names its arguments, `slow:` marks a row."""
    names, *rows = _tables(Path(test.__code__.co_filename).with_name("tables.yaml"))[test.__name__]
    return pytest.mark.parametrize(names, [_case(row) for row in rows])(test)


def _case(row: list[Any] | dict[str, list[Any]]) -> Any:
    if isinstance(row, dict):
        return pytest.param(*row["slow"], marks=pytest.mark.slow)
    return pytest.param(*row)
