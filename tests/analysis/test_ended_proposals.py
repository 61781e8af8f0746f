"""Proposals that are ended early: the list is that of proposals simulated to their end."""

from fractions import Fraction
from random import Random

import pytest
from support.campaigns import thinned
from support.foldings import scenario_values
from support.layered_foldings import spanning_values
from support.scenarios import scenario, values

from hybrid_des.analysis.counterfactual import what_if
from hybrid_des.analysis.counterfactual.ladder import Idealisation
from hybrid_des.analysis.counterfactual.proposals import WORTH, Trials, trials_of
from hybrid_des.analysis.counterfactual.what_if import Variant, builder_of, variant_of
from hybrid_des.analysis.explanation import explain
from hybrid_des.engine import clock
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.watch import TooLateError, Watch

KINDS = {"folding": scenario_values, "spanning": spanning_values}
QUICK = ("folding", 0)
CASES = [QUICK, *((kind, seed) for kind in KINDS for seed in range(12) if (kind, seed) != QUICK)]


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Runs of a few events are looked at, too."""
    monkeypatch.setattr(clock, "BEAT", 16)


def all_trials(base: Run) -> Trials:
    """What would be tried if both the network and the bubble cost the whole step."""
    rungs = (("no latency", 0), ("all ranks at the mean", base.duration), ("work / ranks", 0))
    return trials_of(base, [Idealisation(*rung) for rung in rungs], None, builder_of(base.scenario), own=True)


def proposed(base: Run) -> list:
    trials = all_trials(base)
    return trials.proposals([task() for task in trials.tasks], [])


@pytest.mark.parametrize(("kind", "seed"), thinned(CASES, slow=CASES[1:]))
def test_proposals_are_those_of_whole_runs(monkeypatch, kind, seed):
    try:
        base = run(scenario_from(KINDS[kind](Random(seed))), fold_from=2)
    except HybridDesError:
        pytest.skip("no possible scenario")
    ended = proposed(base)
    simulated = Variant.simulated
    monkeypatch.setattr(Variant, "simulated", lambda self, latest=None, **how: simulated(self, **how))
    assert ended == proposed(base)


def test_most_changes_that_are_not_worth_it_are_ended(monkeypatch):
    late, simulated = [], Variant.simulated

    def told(self, latest=None, **how):
        try:
            return simulated(self, latest, **how)
        except TooLateError:
            late.append(self)
            raise

    monkeypatch.setattr(Variant, "simulated", told)
    base = run(scenario_from(scenario_values(Random(8))), fold_from=2)
    assert proposed(base)
    assert len(late) >= 3


def test_small_buckets_end_long_before_the_step_does(monkeypatch):
    """A step that one large bucket ends is made longer by many: that is known when the first ones take long."""
    network = {"infiniband": {"bandwidth": "10 GB/s", "latency": "20 us"}}
    workload = {"parameters": 1e9, "activation": "1 MiB", "forward": "10 ms", "backward": "20 ms"}
    base = run(
        scenario("1f1b", 2, 4, 4, cluster={"gpus_per_node": 1, "nodes": 8, **network}, workload=workload,
                 gradients={"overlap": True})
    )  # fmt: skip
    least, changes = what_if.least_remaining, "gradients.bucket=2 MB"
    variant = variant_of(changes, Variant.of(base), builder_of(base.scenario))
    whole = variant.simulated(detailed=False)

    def looks(known) -> int:
        monkeypatch.setattr(what_if, "least_remaining", known)
        counted = []
        monkeypatch.setattr(Watch, "look", lambda self, *done: counted.append(done))
        with pytest.raises(TooLateError):
            variant.simulated(Fraction(whole.duration * 999, 1000), detailed=False)
        return len(counted)

    by_clock = looks(lambda *of: None)
    assert by_clock > 0.9 * whole.events / clock.BEAT
    assert looks(least) < by_clock / 4


def test_a_run_has_to_end_before_its_latest_time():
    one = scenario("1f1b", 4, 8)
    end = run(one).duration
    assert run(one, watch=Watch(latest=end + 1)).duration == end
    with pytest.raises(TooLateError):
        run(one, watch=Watch(latest=Fraction(end, 3)))


def test_explanations_have_only_proposals_that_are_worth_it():
    found = explain(values("gpipe", 2, 4, 2, workload={"parameters": 1e8, "activation": "8 MiB"}))
    assert found.proposals
    assert all(one.gain > WORTH for one in found.proposals)
