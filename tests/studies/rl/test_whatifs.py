"""Changes of a loop: which are tried, and that each is simulated with the same draws."""

from fractions import Fraction

import pytest
import yaml
from support.small_loop import TEXT

from hybrid_des import simulate_rl
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.studies.rl.explained import explain_loop
from hybrid_des.studies.rl.few_steps import FewTimes, Loops
from hybrid_des.studies.rl.trainer import KnownStep, UpdateTime, sums_of, trainer_step


@pytest.fixture(scope="module")
def small():
    return simulate_rl(yaml.safe_load(TEXT))


def loop(overrides: Overrides = ()):
    return simulate_rl(yaml.safe_load(TEXT), overrides)


def kinds(result):
    return {change.kind for change in result.changes}


def test_every_kind_of_change_is_tried(small):
    assert kinds(small) == {"split", "ahead", "cap", "engine", "sync", "tail"}
    assert kinds(loop({"rl.barrier": True, "rl.ahead": 1})) >= {"barrier"}
    assert kinds(loop({"rl.lend": {"below": 0.4, "to_rollout": "1 s", "to_trainer": "1 s"}})) >= {"lend"}


def test_colocated_engines_have_neither_split_nor_allowance():
    colocated = loop({"rl.rollout": {"on": "trainer", "tensor": 4}, "rl.ahead": 0})
    assert kinds(colocated) == {"cap", "engine", "sync", "tail"}


def test_a_what_if_is_the_loop_with_its_settings(small):
    for what_if in small.all_what_ifs:
        if what_if.change.flags:
            changed = loop(what_if.change.flags)
            assert what_if.cycle == changed.figures.cycle
            assert what_if.age == changed.figures.ages.mean


def test_changes_have_the_same_draws(small):
    faster = loop({"rl.rollout.efficiency.reached": 2})
    ours, theirs = ({s.group: s.response for s in one.record.samples} for one in (small, faster))
    both = ours.keys() & theirs.keys()
    assert len(both) > 200
    assert all(ours[group] == theirs[group] for group in both)


def test_splits_keep_all_gpus_and_scale_a_measured_time(small):
    splits = [change for change in small.changes if change.kind == "split"]
    assert [change.words for change in splits] == [
        "24 instead of 16 GPUs for generation",
        "8 instead of 16 GPUs for generation",
    ]
    more, fewer = splits
    assert (more.settings["parallel.data"], more.settings["rl.rollout.nodes"]) == (8, "1-3")
    assert more.settings["rl.trainer.time"] == 10
    assert (fewer.settings["parallel.data"], fewer.settings["rl.rollout.nodes"]) == (24, "3-3")  # of 64 samples
    assert fewer.settings["rl.trainer.time"] == Fraction(10, 3)


def test_a_simulated_trainer_has_only_possible_splits():
    simulated = loop({"rl.trainer": "simulated", "steps": 1, "rl.updates": 1})
    splits = [change.settings for change in simulated.changes if change.kind == "split"]
    assert splits == [{"parallel.data": 8, "rl.rollout.nodes": "1-3"}]


def test_half_the_cap_cuts_the_same_responses(small):
    (cap,) = [change for change in small.changes if change.kind == "cap"]
    lengths = small.figures.columns["response"]
    assert cap.settings["rl.response.max"] == 1000
    assert cap.settings["rl.response.mean"] == round(lengths.clip(max=1000).mean())


def test_bounds_are_not_flags(small):
    for what_if in small.all_what_ifs:
        if what_if.change.kind in ("engine", "sync", "tail"):
            assert what_if.change.flags == []


def test_free_syncs_shorten_the_cycle_by_themselves(small):
    (free,) = [what_if for what_if in small.all_what_ifs if what_if.change.kind == "sync"]
    assert 0 < small.figures.cycle - free.cycle <= 1.05


def test_what_ifs_are_ordered_by_cycle(small):
    cycles = [float(f"{what_if.cycle:.4g}") for what_if in small.all_what_ifs]
    assert cycles == sorted(cycles)


def test_a_change_that_was_asked_for_is_simulated(small):
    (asked,) = explain_loop(small, ["rl.ahead=2, rl.samples=8"]).asked
    assert asked.cycle == loop(["rl.ahead=2", "rl.samples=8"]).figures.cycle


def test_known_steps_are_not_simulated_again(small):
    lengths = [400] * 64
    known = FewTimes(small.scenario, [KnownStep(*sums_of(lengths), UpdateTime(500, 7000))])
    assert known.take([lengths, [405] * 64]) == [(500, 7000), (506, 7087)]


@pytest.mark.slow
def test_other_steps_are_simulated_and_then_estimated(small):
    few = FewTimes(small.scenario, [])
    first = [[tokens] * 64 for tokens in (100, 200, 400, 800)]
    assert [step for _, step in few.take(first)] == [trainer_step(small.scenario, lengths) for lengths in first]
    ((_, last),) = few.take([[1600] * 64])
    assert last == 2 * trainer_step(small.scenario, first[-1])


def test_loops_share_steps_only_of_the_same_trainer():
    loops = Loops()
    scenario = loop({"rl.trainer": "simulated", "steps": 1, "rl.updates": 1}).scenario
    first = loops(scenario)
    assert loops(scenario).end == first.end
    assert len(loops.steps) == 1
    other = scenario.model_copy(update={"recompute": "full"})
    assert loops(other).end > first.end
