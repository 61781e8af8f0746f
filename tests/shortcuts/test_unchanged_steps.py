"""Around one ring, and with times that are given, a step takes what it took before channels and slowed computation.

Golden: picoseconds of runs, and the sum of the ends of their ops modulo 10¹⁵, as commit b9874cf computed them.
"""

import json

import pytest
from support.paths import GOLDEN, SCENARIOS

from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run

ROWS = [json.loads(line) for line in (GOLDEN / "one_ring.jsonl").read_text().splitlines()]
ONE_RING = ["gradients.algorithm=ring", "gradients.channels=1"]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_one_ring_takes_the_same_picoseconds(row):
    given = row["scenario"]
    scenario = load(SCENARIOS / f"{given}.yaml", ONE_RING) if isinstance(given, str) else scenario_from(given)
    found = run(scenario)
    assert (found.duration, int(found.timeline.ops["end"].sum()) % 10**15) == (row["picoseconds"], row["ends"])
