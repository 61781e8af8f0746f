"""Random scenarios of ranks that compute unequally, whose experts exchange tokens by messages."""

from random import Random

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import load
from support.paths import SCENARIOS

DRIFT = SCENARIOS / "experts/drift.yaml"


def hot_experts(rng: Random) -> Scenario:
    """A random scenario of 2 to 16 GPUs, with exchanges among all or some of them."""
    nodes, width = rng.choice((1, 1, 2)), rng.choice((2, 4, 8))
    ranks = nodes * width
    changes = {
        "cluster.nodes": nodes, "cluster.gpus_per_node": width, "parallel.data": ranks,
        "parallel.expert": rng.choice([size for size in (2, 4, 8, 16) if ranks % size == 0]),
        "batch": ranks * rng.choice((1, 2)), "model.layers": rng.choice((1, 2, 3)),
        "model.sequence": rng.choice((64, 512, 4096)), "experts.workload": f"W{rng.randint(1, 7)}",
        "experts.replan": rng.choice((1, 2)), "steps": rng.choice((1, 2, 4)),
        "barrier": rng.choice(("true", "true", "false")), "gradients.overlap": rng.choice(("true", "false")),
    }  # fmt: skip
    return load(DRIFT, [*(f"{key}={value}" for key, value in changes.items()), "fold=off", "record=compute"])
