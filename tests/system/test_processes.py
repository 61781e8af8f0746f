"""On worker processes there is the outcome of this process: of runs over seeds, weeks, searches, options."""

import json
import subprocess
import sys

import pytest
from support import scenarios, spaces, weeks
from support.readme import PLUGINS

from hybrid_des import goodput, spread
from hybrid_des.studies.plan_search.best_plan import explore
from hybrid_des.studies.plan_search.branch import MISFIT
from hybrid_des.studies.plan_search.space import plans_in

FAULTS = {"horizon": "20 d", "replications": 4, "classes": [{"what": "node", "mtbf": "100 h"}], "detect": "60 s"}
OPTIONS = """\
schedule: {kind: 1f1b, microbatches: 8}
workload: {forward: 1 ms, backward: 2 ms}
sweep:
  - {schedule.group: [1, 2, 0]}
  - {schedule.kind: [gpipe-in-groups, gpipe]}
"""


@pytest.mark.slow
def test_runs_over_seeds_are_the_same():
    scenario = scenarios.scenario("1f1b", 2, 4, 2, jitter={"distribution": "exponential", "share": 0.1}, seed=3)
    alone, together = (spread(scenario, 12, jobs=jobs) for jobs in (1, 2))
    assert alone.equals(together)
    assert alone.step_time_s.nunique() == 12


@pytest.mark.slow
def test_weeks_are_the_same():
    job = weeks.weeks(30, p=2, d=2, **FAULTS)
    alone, both = (goodput(job, jobs=jobs) for jobs in (1, 2))
    assert alone.summary == both.summary
    assert alone.failures.equals(both.failures)
    assert len(alone.failures) > 4


@pytest.mark.slow
def test_a_search_finds_the_same_best_plan():
    settings = spaces.settings(spaces.of_workload(), top=2)
    plans = plans_in(settings)
    one, two = explore(settings, plans), explore(settings, plans, jobs=2)
    assert one.ranked[0].least == two.ranked[0].least
    assert one.counts[MISFIT] == two.counts[MISFIT]


@pytest.mark.slow
def test_options_of_a_user_vary_in_sweeps(run, write, scratch):
    own = write(PLUGINS["my_schedule.py"], "my_schedule.py")
    file = write(OPTIONS)
    found = []
    for jobs in (1, 2):
        code, out, err = run(file, "--import", own, "--json", "--jobs", jobs)
        assert (code, err) == (0, [])
        found.append([{**row, "wall_s": None} for row in json.loads(out)])
    assert found[0] == found[1]
    assert ["error" in row for row in found[0]] == [False, True, False, True, True, True]


def test_simulating_does_not_import_what_explains():
    asked = "import hybrid_des, sys; hybrid_des.simulate; print('hybrid_des.analysis.counterfactual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
