"""The shipped scenarios of published models: close to the runs whose recipes they follow."""

import pytest
from support.paths import SCENARIOS

from hybrid_des import load, simulate


@pytest.mark.parametrize(
    ("name", "change", "measured"),
    [
        ("llama3.1-8b_8", [], 12.27),
        ("llama3.1-70b_128", [], 14.73),
        ("gpt3-175b_1024", ["parallel.data=1"], 13.75),
    ],
)
def test_a_shipped_model_is_close_to_its_published_run(name, change, measured):
    scenario = load(SCENARIOS / f"{name}.yaml", ["record=none", *change])
    assert simulate(scenario).summary["step_time_s"] == pytest.approx(measured, rel=0.1)
