"""Experts: their gradients and weights travel among those ranks that hold the same ones."""

import numpy as np
import pytest
from support.sharded import MIXTURE, gpt

from hybrid_des import load
from hybrid_des.planning.planner import parts_of
from hybrid_des.shortcuts.run import run


def mixture(expert, data=4, tensor=1, **sections):
    return load({
        "model": MIXTURE,
        "parallel": {"expert": expert, "data": data, "tensor": tensor, "pipeline": 2},
        "cluster": {"gpus_per_node": 2 * data * tensor},
        "schedule": {"kind": "1f1b", "microbatches": 2},
        **sections,
    })  # fmt: skip


@pytest.mark.parametrize("sharding", ["none", "zero-1"])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("expert", [1, 2, 4])
def test_experts_gradients_are_reduced_among_their_own_holders(expert, tensor, sharding):
    chosen = mixture(expert, tensor=tensor, sharding=sharding)
    costs = parts_of(chosen).costs
    dense, experts = sum(costs.parameters), sum(costs.experts)
    assert experts > dense > 0
    passes = 1 if sharding == "zero-1" else 2
    result = run(chosen)
    assert result.bytes_gradients == tensor * passes * 4 * ((4 - 1) * dense + expert * (4 // expert - 1) * experts)
    gathered = tensor * 2 * ((4 - 1) * dense + expert * (4 // expert - 1) * experts)
    assert result.bytes_parameters == (gathered if sharding == "zero-1" else 0)


def test_every_nth_rank_holds_the_same_experts():
    channels = run(mixture(2, gradients={"algorithm": "ring"})).timeline.channels
    pairs = {(one.sender, one.receiver) for one in channels if one.kind == "ring" and one.sender < 4}
    around = {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert pairs == around | {(0, 2), (2, 0), (1, 3), (3, 1)}


@pytest.mark.parametrize("algorithm", ["hierarchical", "parameter-server", "double-binary-tree", "auto"])
def test_experts_are_reduced_by_every_algorithm(algorithm):
    result = run(mixture(2, gradients={"algorithm": algorithm, "overlap": True, "bucket": "100 kB"}))
    rows = result.timeline.reductions
    assert np.all(rows["end"] > rows["start"])
    assert set(zip(rows["rank"].tolist(), rows["stage"].tolist(), strict=True)) == {
        (rank, rank // 4) for rank in range(8)
    }


def test_layers_of_experts_are_gathered_among_their_holders():
    result = run(gpt(model=MIXTURE, parallel={"expert": 2}))
    costs = parts_of(gpt(model=MIXTURE, parallel={"expert": 2})).costs
    regular, experts = sum(costs.parameters), sum(costs.experts)
    assert result.bytes_gradients == 2 * 4 * (3 * regular + 2 * experts)
    assert result.bytes_parameters == 2 * 2 * 2 * (3 * regular + 2 * experts)
