"""What a search makes best: steps over weeks with failures, and knobs that are tuned afterwards."""

import builtins
import json
from types import SimpleNamespace

import pytest
from support import spaces

from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.studies.goodput.states import Steps
from hybrid_des.studies.goodput.summary import goodput_columns
from hybrid_des.studies.plan_search import tuning
from hybrid_des.studies.plan_search.best_plan import explore, search
from hybrid_des.studies.plan_search.branch import SIMULATED
from hybrid_des.studies.plan_search.space import plans_in

FAULTS = {
    "horizon": "20 min",
    "replications": 2,
    "classes": [{"what": "node", "mtbf": "40 min"}],
    "detect": "1 s",
    "restart": {"time": "30 s"},
    "checkpoint": {"every": "2 min", "cost": "5 s"},
}
AXES = [{"schedule.kind": ["gpipe", "1f1b", "zb-h1"]}, {"sharding": ["none"]}]


def with_faults(**block):
    return {**spaces.of_workload(), "faults": FAULTS, "search": {"objective": "goodput", "axes": AXES, **block}}


def test_the_best_goodput_takes_least_wall_time_per_useful_step():
    found = search(with_faults(top=3))
    for one in found.ranked[:2]:
        steps = Steps(found.scenario(one))
        assert one.row["goodput"] == goodput_columns(steps)["goodput"] < 1
        assert one.least == pytest.approx(one.row["step_time_s"] / one.row["goodput"], rel=1e-12)
    assert [one.least for one in found.ranked] == sorted(one.least for one in found.ranked)
    table = found.table()
    assert table.iloc[0]["wall_per_useful_step_s_bound"] == found.best.least


def test_a_bound_on_steps_excludes_plans_with_failures():
    settings = spaces.settings({**spaces.of_workload(), "faults": FAULTS}, objective="goodput", axes=AXES, top=1)
    plans = plans_in(settings)
    found, everything = explore(settings, plans), search(with_faults(top=20))
    assert found.best.least == everything.best.least
    assert found.counts[SIMULATED] < everything.counts[SIMULATED]


def test_goodput_needs_failures():
    with pytest.raises(ScenarioError) as error:
        search({**spaces.of_workload(), "search": {"objective": "goodput"}})
    assert "search.objective: goodput needs `faults`" in str(error.value)


class Halving:
    """In the place of Optuna: draws the low end, the middle and the high end in turn, as often as asked."""

    def __init__(self):
        self.told, self.asked = [], 0

    def ask(self):
        self.asked += 1
        share = (self.asked - 1) % 3 / 2
        return SimpleNamespace(
            suggest_int=lambda path, low, high, log: low + int(share * (high - low)),
            suggest_float=lambda path, low, high: low + share * (high - low),
        )

    def tell(self, trial, value=None, state=None):
        self.told.append((value, state))


@pytest.fixture
def optuna(monkeypatch):
    """A stand-in, so that tuning is tested where Optuna is not installed."""
    study = Halving()
    module = SimpleNamespace(
        create_study=lambda sampler: study,
        logging=SimpleNamespace(set_verbosity=lambda level: None, ERROR=40),
        samplers=SimpleNamespace(TPESampler=lambda seed: seed),
        trial=SimpleNamespace(TrialState=SimpleNamespace(FAIL="failed")),
    )
    monkeypatch.setitem(__import__("sys").modules, "optuna", module)
    return study


def overlapped(**block):
    """A search of one plan whose gradients are reduced in buckets beside the pipeline."""
    values = spaces.of_workload(gradients={"overlap": True, "bucket_rule": "ddp"})
    values["cluster"]["nvlink"] = {"bandwidth": "5 GB/s"}
    axes = [{"schedule.kind": ["1f1b"]}, {"parallel.pipeline": [2]}, {"sharding": ["none"]}, {"recompute": ["none"]}]
    return {**values, "search": {"axes": [*axes, {"gradients.bucket": ["160 MB"]}], **block}}


def test_tuning_finds_a_better_bucket(optuna):
    found = search(overlapped(tune={"gradients.bucket": ["4 MB", "160 MB"]}))
    plan, values = tuning.tune(found, found.best, 3)
    assert len(optuna.told) == 3
    costs = [value for value, _ in optuna.told]
    assert plan.least == min(costs) < found.best.least
    assert plan.case["gradients.bucket"] == values["gradients.bucket"]
    assert found.scenario(plan).gradients.bucket == values["gradients.bucket"]


def test_what_a_tuned_plan_cannot_be_is_left_out(optuna):
    found = search(overlapped(tune={"workload.forward": [-1.0, 1.0]}))
    tuned = tuning.tune(found, found.best, 1)
    assert optuna.told == [(None, "failed")]
    assert tuned == (found.best, {})


def test_tuning_says_what_it_lacks(monkeypatch):
    found = search(overlapped())
    with pytest.raises(UsageError, match=r"--tune needs search\.tune"):
        tuning.tune(found, found.best, 1)
    honest = builtins.__import__

    def without(name, *more):
        if name == "optuna":
            raise ImportError(name)
        return honest(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    found = search(overlapped(tune={"gradients.bucket": ["4 MB", "160 MB"]}))
    with pytest.raises(UsageError, match=r"--tune needs the tune extra: pip install .*\[tune\]"):
        tuning.tune(found, found.best, 1)


def test_the_tuned_plan_is_written(ran, write, tmp_path, optuna):
    file = write(json.dumps(overlapped(tune={"gradients.bucket": ["4 MB", "160 MB"]})), "tuned.yaml")
    _, err = ran("search", file, "--jobs", 1, "--quiet", "--tune", 2, "--write", tmp_path / "best.yaml")
    assert any(line.startswith("tuned in 2 trials, without proof: gradients.bucket=") for line in err)
    assert "bucket: 4000000" in (tmp_path / "best.yaml").read_text()
