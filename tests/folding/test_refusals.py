"""What tells replicas apart is named, and a fold that ignored it would have been wrong."""

import pytest
from support.foldings import differences, run_of
from support.scenarios import merged

from hybrid_des.errors import DeadlockError
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.courses import Courses
from hybrid_des.folding.lineage_flows import LineageLink
from hybrid_des.scenario import folded
from hybrid_des.simulation import folds
from hybrid_des.simulation.folds import Replicas

SIXTEEN = {
    "cluster": {"nodes": 2, "nvlink": {"latency": "1 us"}, "infiniband": {"latency": "2 us"}},
    "parallel": {"data": 16},
    "schedule": {"kind": "1f1b", "microbatches": 2},
    "workload": {"forward": "1 us", "backward": "2 us", "parameters": 9600, "activation": "1 kB"},
}
RAILS = {
    "topology": "rails",
    "cross_rail": "spine",
    "oversubscription": 4,
    "gpus_per_node": 2,
    "nodes": 8,
    "infiniband": {"nics_per_node": 2, "bandwidth": "1 GB/s"},
}
LEAVES = {
    "topology": "leaf-spine",
    "leaf_size": 2,
    "oversubscription": 4,
    "gpus_per_node": 2,
    "infiniband": {"nics_per_node": 2, "bandwidth": "1 GB/s"},
}
TIE = {  # the ranks of two nodes send to a third at the same time, where an adapter serves two ranks
    "cluster": {
        "nodes": 8,
        "gpus_per_node": 2,
        "nvlink": {"bandwidth": "1 GB/s", "latency": 0},
        "infiniband": {"bandwidth": "1 GB/s", "latency": "1 us", "nics_per_node": 1},
    },
    "parallel": {"pipeline": 4, "data": 4, "order": ["tensor", "pipeline", "data"]},
    "schedule": {"kind": "1f1b", "microbatches": 4},
    "workload": {"forward": "1 us", "backward": "1 us", "activation": 1000, "parameters": 2000},
    "gradients": {"algorithm": "hierarchical", "overlap": True, "bucket": 4000},
}
CASES = {
    "placement": (1, {}, "ranks 0 and 7 share a node, their images 1 and 8 do not"),
    "speed": (8, {"cluster": {"nodes": [{}, {"speed": 0.5}]}}, "rank 0 runs at 1 times the speed, rank 8 at 0.5"),
    "kind": (
        8,
        {"cluster": {"nodes": [{}, {"nvlink": {"bandwidth": "1 GB/s"}}]}},
        "the nodes of ranks 0 and 8 differ in their GPUs, their links, or their number of ranks",
    ),
    "size": (
        8,
        {"workload": {"parameters": 9601}},
        r"ranks 0 and 8: the 16 pieces of 9,601 gradients differ in size \(gradients.pad makes them equal\)",
    ),
    "role": (
        8,
        {"gradients": {"algorithm": "parameter-server", "servers": 4}},
        "ranks 0 and 8: servers stand for the whole group",
    ),
    "tree": (
        8,
        {"gradients": {"algorithm": "double-binary-tree"}},
        "ranks 0 and 8: the members of double-binary-tree do not all do the same",
    ),
    "guest": (
        8,
        {"parallel": {"data": 24}, "cluster": {"nodes": 3}, "gradients": {"algorithm": "recursive-doubling"}},
        "ranks 0 and 8: of 24 members, no power of two, some have a guest",
    ),
    "spine": (
        2,
        {"cluster": RAILS, "parallel": {"data": 4, "pipeline": 4, "order": ["tensor", "pipeline", "data"]}},
        "link rail1/up carries the messages of all replicas",
    ),
    "leaf": (
        2,
        {"cluster": {**LEAVES, "nodes": 4}, "parallel": {"data": 4, "pipeline": 2}},
        "link leaf0/up carries the messages of several replicas",
    ),
    "bandwidth": (
        1,
        {
            "cluster": {
                "nodes": 4, "gpus_per_node": 1, "topology": "links",
                "links": [{"between": [f"gpu{gpu}", "hub"], "bandwidth": f"{1 + gpu // 3} GB/s", "latency": "1 us"}
                          for gpu in range(4)],
            },
            "parallel": {"data": 4},
        },
        "link gpu3/to/hub has a different bandwidth from link gpu0/to/hub",
    ),
    "memory": (
        8,
        {"cluster": {"nodes": [{}, {"gpu": {"memory": "1 kB"}}]}},
        "the nodes of ranks 0 and 8 differ in their GPUs, their links, or their number of ranks",
    ),
    "jitter": (
        8,
        {"jitter": {"distribution": "uniform", "spread": 0.5}},
        "with `jitter` every rank has its own durations",
    ),
    "slow": (8, {"slow": [{"gpu": 3, "factor": 0.5}]}, "gpu 3 is slow"),
    "slow link": (8, {"slow": [{"nic": "node0/nic0", "factor": 0.1}]}, "nic node0/nic0 is slow"),
    "route": (
        1,
        {
            "cluster": {
                "nodes": 4, "gpus_per_node": 1, "topology": "links",
                "links": [{"between": [f"gpu{gpu}", "hub"], "bandwidth": "1 GB/s", "latency": f"{1 + gpu // 3} us"}
                          for gpu in range(4)],
            },
            "parallel": {"data": 4},
        },
        "the routes from rank 0 to 1 and from rank 2 to 3 have other links or latencies",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_tells_replicas_apart_is_named(name):
    keep, changes, said = CASES[name]
    with pytest.raises(FoldRefusal, match=f"^fold: {keep}: {said}$"):
        run_of(merged(SIXTEEN, changes), keep)


@pytest.mark.parametrize("name", [*CASES, "tie"])
def test_a_fold_that_ignored_it_would_be_wrong(name, monkeypatch):
    keep, changes = (1, TIE) if name == "tie" else CASES[name][:2]
    values = merged(SIXTEEN, changes)
    whole = run_of(values, "off")
    monkeypatch.setattr(folds, "check", lambda *_: None)
    monkeypatch.setattr(Replicas, "differ", "")
    monkeypatch.setattr(LineageLink, "meet", lambda *_: None)
    monkeypatch.setattr(Courses, "_blockwise", (False,))
    monkeypatch.setattr(Courses, "_by_images", blindly)
    try:
        run = run_of(values, keep)
    except DeadlockError:
        return  # some wait for members with another role, which are not there
    assert differences(run, whole)


def blindly(courses, route, sender, receiver):
    """Take links for images of each other whatever they are."""
    fold, known = courses._fold, courses._known
    found = []
    for hop, first in enumerate(route.links):
        for element in fold.elements():
            links = courses._fabric.route(fold.move(sender, element), fold.move(receiver, element)).links
            known.setdefault(links[min(hop, len(links) - 1)], (first, element))
        found.append(known[first])
    return found


def test_a_tie_that_differs_between_replicas_is_named():
    said = r"fold: 1: messages of ranks \d+ and \d+ reach link \S+ at the same time, and which comes first differs"
    with pytest.raises(FoldRefusal, match=said):
        run_of(merged(SIXTEEN, TIE), 1)


def test_a_fold_of_numerics_would_train_other_weights(monkeypatch):
    pairs = {"gradients": {"algorithm": "recursive-doubling"}, "numerics": {"layers": 2}}
    values = merged(SIXTEEN, {"cluster": {"nodes": 1}, "parallel": {"data": 4}, **pairs})
    whole = run_of(values, "off")
    assert run_of(values, "auto").run.fold is None
    monkeypatch.setattr(folded, "FROM", 2)
    assert run_of(values, "auto").run.unfolded == "with `numerics` every replica trains on its own samples"
    monkeypatch.setattr(Replicas, "differ", "")
    run = run_of(values, "auto")
    assert run.run.fold is not None
    assert run.summary["loss"] != whole.summary["loss"]
