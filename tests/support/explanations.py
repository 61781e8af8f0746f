"""Explanations of shipped scenarios, each made once for all tests that read it."""

from functools import cache

from hybrid_des import explain
from hybrid_des.analysis.explanation import Explanation
from support.paths import SCENARIOS


@cache
def explained(name: str) -> Explanation:
    """Why a shipped scenario takes as long as it does; its advice is looked for when first asked for."""
    return explain(SCENARIOS / f"{name}.yaml")
