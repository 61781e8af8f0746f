"""How many random cases a test draws, and which cases of a parametrisation only run with what is slow.

`HYBRID_DES_TIMES=N` draws N times as many.
"""

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

TIMES = int(os.environ.get("HYBRID_DES_TIMES", "1"))


def thinned(cases: Iterable[Any], slow: Collection[Any]) -> list[Any]:
    """Cases of a parametrisation, some of which are slow; the others hold the same law."""
    cases = list(cases)
    assert all(case in cases for case in slow), f"not among the cases: {[case for case in slow if case not in cases]}"
    return [pytest.param(*_values(case), marks=pytest.mark.slow) if case in slow else case for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
