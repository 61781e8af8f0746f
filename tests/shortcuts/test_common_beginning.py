"""What a run has in common with one whose gradients are reduced otherwise, and the end that follows from it."""

from collections import Counter
from random import Random

import pytest
from support.campaigns import TIMES, thinned
from support.folded_causes import KINDS
from support.scenarios import merged, values

from hybrid_des import collectives, explain
from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.common_beginning import in_common, least_of_changed
from hybrid_des.shortcuts.least_remaining import least_remaining
from hybrid_des.shortcuts.run import run

BATCHES = 8 * TIMES
SHARP = 5  # the batch that finds a beginning which lasts until the last rank sends gradients instead of the first
CHANGES = [
    {"overlap": True}, {"overlap": False}, {"bucket": "300 kB"}, {"overlap": True, "bucket": "100 kB"},
    {"codec": "fp32"}, {"algorithm": "ring"}, {"algorithm": collectives.AUTO},
]  # fmt: skip
SLOW_NETWORK = {"infiniband": {"bandwidth": "2 GB/s", "latency": "5 us"}}
LATE = merged(
    values("1f1b", 4, 8, 4, workload={"activation": "8 MB", "parameters": 1e6}),
    {"cluster": {"gpus_per_node": 4, "nodes": 4, **SLOW_NETWORK}, "sharding": "zero-1"},
)


def ends_of_ops(one) -> dict:
    """(Step, rank, op) → its end."""
    ops = one.timeline.ops
    keys = zip(*(ops[name].tolist() for name in ("step", "rank", "index")), strict=True)
    return dict(zip(keys, ops["end"].tolist(), strict=True))


def compared(drawn, change) -> tuple[int, int, int, int] | None:
    """The bound of a change, the end of its run, ops in common, and the bound without the known run; None: none."""
    try:
        base = traced_run(scenario_from(drawn), fold_from=2)
        variant = Variant(scenario_from(merged(drawn, {"gradients": change}))).timed_like(base)
        one, parts = variant.scenario, variant.parts
        whole = run(one, parts=parts, fold_from=2)
    except HybridDesError:
        return None
    if (known := least_remaining(one, parts)) is None:
        return None
    bounds = [known.run, least_of_changed(base, one, parts, known)]
    if (undecided := variant._undecided(base)) is not None:
        bounds.append(least_of_changed(base, one, undecided, least_remaining(one, undecided, chosen=False)))
    done = 0
    if any(bounds[1:]):
        common = in_common(base, parts)
        mine, its = ends_of_ops(base), ends_of_ops(whole)
        same = {key for key in mine.keys() & its.keys() if min(mine[key], its[key]) <= common.until}
        assert all(mine[key] == its[key] for key in same)
        done = len(same)
    return max(bounds), int(whole.timeline.steps["end"].max()), done, known.run


@pytest.mark.slow
@pytest.mark.parametrize("batch", thinned(range(BATCHES), slow={*range(BATCHES)} - {SHARP}))
def test_no_changed_run_ends_before_what_is_known(batch):
    random, reached = Random(batch), Counter()
    for kind, draw in KINDS.items():
        for seed in (batch, BATCHES + batch):
            drawn, change = draw(Random(seed)), random.choice(CHANGES)
            found = compared(drawn, change)
            if found is not None:
                bound, end, done, _ = found
                assert bound <= end, (kind, seed, change)
                reached[kind] += done > 0
    assert reached.total()


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_late_change_is_bounded_by_the_known_run(sharing, change):
    drawn = merged(LATE, {"cluster": {"sharing": sharing}})
    bound, end, done, alone = compared(drawn, change)
    assert alone <= bound <= end
    assert bound > alone or change == {"overlap": True, "bucket": "100 kB"}
    assert done >= 50


def test_late_changes_are_neither_planned_nor_simulated(monkeypatch):
    """Where gradients take little of the step, what ranks do before them shows that no algorithm is worth it."""

    def never(*of, **how):
        raise AssertionError("not needed")

    monkeypatch.setattr(CollectiveTimes, "fastest", never)
    found = explain({**LATE, "gradients": {"algorithm": "ring", "codec": "bf16"}})
    assert found.network > 0
