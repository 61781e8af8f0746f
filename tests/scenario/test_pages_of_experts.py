"""The figures of the page on experts are those of its commands."""

import re

import pytest
from support.paths import ROOT, SCENARIOS

from hybrid_des import load, simulate

PAGE = (ROOT / "docs" / "how-to" / "experts.md").read_text(encoding="utf-8")
CHANGES = {
    "static": {},
    "balanced": {"experts.placement": "balanced"},
    "redundant": {"experts.placement": "redundant", "experts.copies": 32},
}


@pytest.mark.slow
@pytest.mark.parametrize("placement", CHANGES)
def test_steps_and_memory_of_placements_are_as_printed(placement):
    scenario = load(SCENARIOS / "experts" / "qwen3_power_law.yaml", CHANGES[placement])
    summary = simulate(scenario).summary
    step, memory = re.search(rf"\| `{placement}`:[^|]*\| ([\d.]+) s \|[^|]*\| ([\d.]+) GB \|", PAGE).groups()
    assert f"{summary['step_time_s']:.3f}" == step
    assert f"{max(summary['peak_memory_bytes']) / 1e9:.2f}" == memory
