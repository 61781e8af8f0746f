"""What the host launches in a ring of context ranks: each further block of keys has kernels and a send of its own."""

import numpy as np
import pytest

from hybrid_des.scenario.loading import scenario_from
from hybrid_des.simulation.planning.planner import parts_of
from hybrid_des.simulation.run import run

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


# Megatron-LM, examples/dynamic_context_parallel/README.md, 9 June 2026: GPUs → milliseconds with a context of four, and
# with dynamic context parallelism; trimmed means of 20 steps. Nodes have four GPUs, as those of GB200.
PUBLISHED = {4: (195.269, 151.906), 16: (226.775, 187.125), 64: (271.988, 181.912)}
MODEL = {"layers": 12, "hidden": 2048, "ffn": 8192, "heads": 16, "vocab": 131072, "sequence": 8192, "norm": "layer",
         "positions": "learned", "tied": True, "bias": True}  # fmt: skip
LENGTHS = {"kind": "lognormal", "mean": 1024, "sigma": 1.5, "min": 128, "max": 8192}


def trimmed_mean(gpus, packing, launch):
    """Seconds per step of the published run."""
    values = {
        "cluster": {"gpu": "gb200", "gpus_per_node": gpus},
        "model": MODEL,
        "parallel": {"context": 4, "data": gpus // 4},
        "batch": 8 * gpus // 4,
        "data": {"lengths": LENGTHS, **packing},
        "gradients": {"fused": False},
        "efficiency": {"launch": launch},
        "steps": 20,
        "record": "none",
    }
    steps = run(scenario_from(values)).timeline.steps
    ends = [int(steps["end"][steps["step"] == step].max()) for step in range(20)]
    return float(np.mean(sorted(np.diff([0, *ends]))[2:-2]))


@pytest.mark.slow
def test_launches_explain_much_of_what_short_documents_save():
    """With 0.1 ms per launch, as other runs without graphs need; not all of it: see docs/background/limits.md."""
    packings = {"packing": "greedy", "tokens": 8192}, {"packing": "dynamic-context", "tokens_per_rank": 2048}
    errors = {}
    for launch in (0, "100 us"):
        ratios = {gpus: np.divide(*(trimmed_mean(gpus, packing, launch) for packing in packings)) for gpus in PUBLISHED}
        errors[launch] = [abs(ratios[gpus] * dynamic / fixed - 1) for gpus, (fixed, dynamic) in PUBLISHED.items()]
    assert np.mean(errors["100 us"]) < 0.6 * np.mean(errors[0])
    assert max(errors["100 us"]) < 0.25
