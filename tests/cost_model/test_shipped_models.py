"""The shipped scenarios of published models: close to the runs whose recipes they follow."""

import pytest
from support.paths import SCENARIOS
from support.tables import from_table

from hybrid_des import load, simulate


@from_table
def test_a_shipped_model_is_close_to_its_published_run(name, change, measured):
    scenario = load(SCENARIOS / f"{name}.yaml", ["record=none", *change])
    assert simulate(scenario).summary["step_time_s"] == pytest.approx(measured, rel=0.1)
