"""Jobs that share links, folded together: the same times as with all of their ranks."""

from collections import Counter
from random import Random

import pytest
from support.campaigns import TIMES, thinned
from support.joint_foldings import both_of, jobs_values, planned, steps_of
from support.scenarios import merged

from hybrid_des.scenario.jobs import load_jobs
from hybrid_des.shortcuts import joint_folds as joint
from hybrid_des.shortcuts.joint_folds import joint_folds

CAMPAIGNS, EACH = 4 * TIMES, 12
TWO = {
    "cluster": {"nodes": 4, "gpus_per_node": 4, "topology": "leaf-spine", "leaf_size": 2, "oversubscription": 2,
                "infiniband": {"bandwidth": "10 GB/s", "latency": "2 us", "nics_per_node": 2}, "sharing": "fair",
                "nccl_algorithm": "Ring"},
    "jobs": {
        "deep": {"nodes": [0, 2], "parallel": {"pipeline": 2, "data": 4, "order": ["tensor", "pipeline", "data"]},
                 "schedule": {"kind": "1f1b", "microbatches": 4},
                 "workload": {"forward": "2 ms", "backward": "4 ms", "activation": "16 MB", "parameters": 5e7},
                 "gradients": {"algorithm": "ring"}},
        "wide": {"nodes": [1, 3], "parallel": {"data": 8}, "schedule": {"microbatches": 2},
                 "workload": {"forward": "3 ms", "backward": "5 ms", "parameters": 3e7},
                 "gradients": {"algorithm": "nccl", "overlap": True, "bucket": "20 MB"}},
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fold_however_few_messages(monkeypatch):
    monkeypatch.setattr(joint, "MESSAGES", 0)


def folds_of(change):
    """How the jobs are folded; None if they are not."""
    return joint_folds(planned(load_jobs(merged(TWO, change))))


@pytest.mark.parametrize("start", ["0 s", "7 ms"])
@pytest.mark.parametrize("sharing", ["fair", "priority-fair"])
def test_jobs_that_share_uplinks_fold_together(sharing, start):
    changes = {"cluster": {"sharing": sharing}, "jobs": {"wide": {"start": start, "priority": 1, "steps": 2}}}
    folds, folded, whole = both_of(merged(TWO, changes))
    assert [images.fold.order for images in folds] == [4, 4]  # both nodes, and both adapters of each
    assert [steps_of(run) for run in folded] == [steps_of(run) for run in whole]
    assert [len(run.ranks) for run in folded] == [2, 2]


def test_a_link_counts_the_images_of_a_message():
    """Both members of each node that send over its adapters meet at the one uplink of their leaf."""
    _, wide = folds_of({})
    sender, receiver = next((a, b) for a, b in sorted(wide.pairs) if a < 4 <= b)
    moved = [[wide.fold.move(rank, element) for rank in (sender, receiver)] for element in wide.fold.elements()]
    carried = Counter(link for pair in moved for link in wide.fabric.route(*pair).links)
    weights = wide.weights(sender, receiver)
    for link in wide.fabric.route(sender, receiver).links:
        assert weights[wide.orbits[link].first] == carried[link]
    assert weights["leaf0/up"] == 2


@pytest.mark.parametrize("campaign", thinned(range(CAMPAIGNS), slow=range(1, CAMPAIGNS)))
def test_jobs_folded_together_take_the_same_times(campaign):
    reached = Counter()
    for seed in range(campaign * EACH, (campaign + 1) * EACH):
        if (both := both_of(jobs_values(Random(seed)))) is None:
            continue
        folds, folded, whole = both
        assert [*map(steps_of, folded)] == [*map(steps_of, whole)], f"seed {seed}"
        reached[any(weight > 1 for one in folds for pair in one.pairs for weight in one.weights(*pair).values())] += 1
    assert reached[True] >= 2, "some messages must have several images on a link"


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": {"sharing": "fifo"}},
        {"cluster": {"sharing": "priority"}},
        {"jobs": {"deep": {"jitter": {"distribution": "normal", "sigma": 0.1}}}},
        {"jobs": {"deep": {"fold": "off"}}},
        {"slow": [{"node": 3, "factor": 2}]},
    ],
    ids=["fifo", "priority", "jitter", "off", "slow"],
)
def test_jobs_are_not_folded_where_ranks_may_differ(change):
    assert folds_of(change) is None


def test_an_image_of_one_job_only_moves_no_shared_link():
    """A pipeline from leaf to leaf has no image that exchanges the leaves, so the other job's members alone fold."""
    folds = folds_of({"jobs": {"deep": {"parallel": {"pipeline": 8, "data": 1}}}})
    assert [images.fold.order for images in folds] == [1, 2]
    wide = folds[1]
    uplinks = [link for link in wide.links if "leaf" in link]
    assert [wide.orbits[link][:2] for link in uplinks] == [(link, 1) for link in uplinks]


def test_an_element_maps_the_simulated_link_to_each_image():
    for images in folds_of({}):
        of_elements = dict(images.of_shared(images.links))
        assert all(of_elements[orbit.element][orbit.first] == link for link, orbit in images.orbits.items())
        sizes = Counter(orbit.first for orbit in images.orbits.values())
        assert all(sizes[orbit.first] == orbit.size for orbit in images.orbits.values()) and max(sizes.values()) > 1


def test_few_messages_are_not_folded(monkeypatch):
    monkeypatch.setattr(joint, "MESSAGES", 10**6)
    assert folds_of({}) is None
