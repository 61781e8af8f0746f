"""What a folded run of many GPUs accepts, refuses and never makes."""

import pytest

from hybrid_des.errors import Refusal
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load, scenario_from


def large(pipeline, data, **sections):
    return scenario_from(
        {
            "cluster": {"nodes": pipeline * data // 8},
            "parallel": {"pipeline": pipeline, "data": data},
            "schedule": {"kind": "1f1b", "microbatches": 2},
            "workload": {"forward": "1 ms", "backward": "2 ms", "activation": "1 MB", "parameters": 2**27},
            "record": "compute",
            **sections,
        }
    )


@pytest.mark.parametrize("replicas", [8192, 65536])
def test_a_million_gpus_are_accepted(replicas):
    assert large(16, replicas).parallel.ranks == 16 * replicas


def test_links_of_other_replicas_are_not_made():
    run = simulate(large(2, 512)).run
    assert (run.fold.order, len(run.ranks)) == (512, 2)
    assert len(run.fabric.links._made) == 6  # of 128 nodes: of each stage its own, the next and the one before
    assert run.messages == 512 * (2 * 2 + 8 * 2 * 2 * 511)  # on 8 channels


def test_what_does_not_fold_and_is_too_large_says_both():
    said = (
        "3.4e.08 messages are more than can be simulated .at most 2.68e.08.; replicas differ: "
        r"ranks 0 and 2304: the 4608 pieces of 999,983 gradients differ in size"
    )
    with pytest.raises(Refusal, match=said):
        simulate(large(1, 4608, workload={"forward": 0, "backward": 0, "parameters": 999_983}))


LEAVES = ["cluster.topology=leaf-spine", "cluster.leaf_size=8"]


@pytest.mark.parametrize(("changes", "replicas"), [([], 1), pytest.param(LEAVES, 4, marks=pytest.mark.slow)])
def test_shipped_replicas_fold_by_nodes_or_leaves(scenarios, changes, replicas):
    run = simulate(load(scenarios / "scale/rails_4096.yaml", changes))
    assert run.summary["ranks_simulated"] == 16 * replicas
