"""Remove the roof: with all shortcuts refused, every figure is what it was; and each of them was taken."""

from collections import Counter
from random import Random

import pytest
from support.campaigns import TIMES, thinned
from support.foldings import scenario_values
from support.hot_experts import hot_experts
from support.paths import SCENARIOS
from support.plain_runs import compared
from support.rings_alone import ring_values
from support.stretches import stretched_values

from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.shortcuts.stretches import Stretches

FOLD, RINGS, LAYERS = "ranks that repeat others", "rings", "collectives of layers"  # in `Run.left_out`
STRETCHES = "stretches"
DRAWN = {  # kind of random scenario → how to draw one, and what is left out of so many in ten at least
    "folds": (lambda rng: scenario_from({**scenario_values(rng), "record": "compute"}), FOLD, 2),
    "rings": (lambda rng: scenario_from(ring_values(rng)), RINGS, 4),
    "layers": (hot_experts, LAYERS, 2),
    "stretches": (lambda rng: scenario_from({**stretched_values(rng), "record": "compute"}), STRETCHES, 3),
}
BATCHES, EACH = 8 * TIMES, 20
SMALL = [
    "a100_8x", "h100_2x8", "slow_gpu_h100_2x8", "contention_slower", "prototype_12gpu", "resnet50_4stages", "first",
    "llama3.1-8b_8", "dgx1_cube_mesh", "jitter_64", "vit-l_8", "experiments/base",
]  # fmt: skip
LARGER = {  # with what is left out
    "llama3.1-70b_128": FOLD, "mixtral-8x7b_64": FOLD, "gpt3-175b_1024": FOLD, "documents/sft_8b": "",
    "deepseek-v3_256": RINGS,
}  # fmt: skip


@pytest.fixture
def stretched(monkeypatch):
    """The programs that were run in stretches."""
    found, of = [], Stretches.of

    def noted(self, program, communicators):
        shorter = of(self, program, communicators)
        found.extend([program] if shorter else [])
        return shorter

    monkeypatch.setattr(Stretches, "of", noted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("batch", thinned(range(BATCHES), slow=range(1, BATCHES)))
@pytest.mark.parametrize("kind", DRAWN)
def test_random_runs_are_the_same_without_shortcuts(kind, batch, stretched, monkeypatch):
    draw, wanted, in_ten = DRAWN[kind]
    reached = Counter()
    for seed in range(batch * EACH, (batch + 1) * EACH):
        try:
            scenario = draw(Random(seed))
            run(scenario, fold_from=2)
        except HybridDesError:
            continue
        stretched.clear()
        left_out = compared(scenario, monkeypatch).left_out
        reached[wanted in (left_out + STRETCHES if stretched else left_out)] += 1
    assert reached[True] >= EACH * in_ten // 10


@pytest.mark.parametrize("name", thinned([*SMALL, *LARGER], slow=[*LARGER]))
def test_shipped_scenarios_are_the_same_without_shortcuts(name, monkeypatch):
    made = compared(load(SCENARIOS / f"{name}.yaml", ["record=compute"]), monkeypatch)
    assert LARGER.get(name, "") in made.left_out
