"""What the host launches in a ring of context ranks: each further block of keys has kernels and a send of its own."""

import pytest

from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from

MS = 10**9  # picoseconds
LAYERS = 2


def computed(kind, context, **changes):
    """Picoseconds of an op without waiting, where launching takes longer than all else."""
    parallel = {"context": context, "context_method": changes.pop("context_method", "ring")}
    values = {
        "cluster": {"gpu": "h100", "gpus_per_node": 4},
        "model": {"base": "llama3.1-8b", "layers": LAYERS},
        "parallel": parallel,
        "schedule": {"kind": "1f1b", "microbatches": 1},
        "efficiency": {"launch": "1 s"},
    }
    cost = parts_of(scenario_from(values | changes)).costs.stages[0, 0]
    return cost.time(kind) - cost.waits(kind)


@pytest.mark.parametrize(("kind", "each"), [("F", 1 + 3), ("B", 1 + 5)])
@pytest.mark.parametrize("context", [2, 4])
def test_every_further_block_of_keys_is_launched(kind, each, context):
    """A send, attention (three kernels in the backward), and two that merge its results."""
    more = computed(kind, context) - computed(kind, 1)
    assert more == LAYERS * (context - 1) * each * 1000 * MS


def test_a_gather_of_keys_is_one_launch():
    ways = {context: computed("F", context, context_method="all-gather") for context in (1, 2, 4)}
    assert ways[4] == ways[2] == ways[1] + LAYERS * 1000 * MS


def test_graphs_launch_no_blocks_of_keys():
    graphs = {"cuda_graphs": "layers"}
    assert computed("F", 4, **graphs) == computed("F", 4, efficiency={"launch": 0}, **graphs)
