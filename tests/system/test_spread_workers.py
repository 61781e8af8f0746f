"""Runs over seeds on worker processes."""

from support import scenarios

from hybrid_des import spread


def test_the_table_is_the_same_on_any_number_of_processes():
    scenario = scenarios.scenario("1f1b", 2, 4, 2, jitter={"distribution": "exponential", "share": 0.1}, seed=3)
    alone, together = (spread(scenario, 12, jobs=jobs) for jobs in (1, 2))
    assert alone.equals(together)
    assert alone.step_time_s.nunique() == 12
