"""Remove the roof: with all shortcuts refused, every figure is what it was."""

from random import Random

import numpy as np
import pytest
from support.campaigns import TIMES, thinned
from support.foldings import scenario_values
from support.paths import SCENARIOS
from support.runs import totals

from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.expansion import of_all_ranks
from hybrid_des.shortcuts.run import run

ABOUT_ITSELF = ("ranks_simulated", "wall_s", "events", "shortcuts")  # keys of a summary
TABLES = ("ops", "steps", "reductions", "memory", "gathers", "waits", "exchanges")
SMALL = [
    "a100_8x", "h100_2x8", "slow_gpu_h100_2x8", "contention_slower", "prototype_12gpu", "resnet50_4stages", "first",
    "llama3.1-8b_8", "dgx1_cube_mesh", "jitter_64", "vit-l_8", "experiments/base",
]  # fmt: skip
LARGER = ["llama3.1-70b_128", "mixtral-8x7b_64", "gpt3-175b_1024", "documents/sft_8b", "deepseek-v3_256"]


def figures(scenario):
    """What users see of a run, with the rows of all ranks, in one order."""
    made = run(scenario, fold_from=2)
    facts = {key: value for key, value in summary(made).items() if key not in ABOUT_ITSELF}
    whole = made if made.fold is None else of_all_ranks(made)
    tables = [getattr(whole.timeline, name) for name in TABLES]
    rows = [np.array([table[name] for name in sorted(table)]) for table in tables]
    ordered = [table[:, np.lexsort(table)] for table in rows]
    return facts, totals(whole), made.left_out, ordered


def compared(scenario, monkeypatch):
    """What a run left out that is, figure by figure, the run in which every message of all ranks is simulated."""
    facts, sums, left_out, rows = figures(scenario)
    with monkeypatch.context() as patch:
        patch.setenv("HYBRID_DES_PLAIN", "1")
        its_facts, its_sums, nothing, its_rows = figures(scenario)
    assert nothing == ""
    assert (facts, sums) == (its_facts, its_sums)
    assert all(np.array_equal(mine, its) for mine, its in zip(rows, its_rows, strict=True))
    return left_out


def left_out_of(seed, monkeypatch):
    """What is left out of a random run; None if it is impossible."""
    try:
        scenario = scenario_from({**scenario_values(Random(seed)), "record": "compute"})
        run(scenario, fold_from=2)
    except HybridDesError:
        return None
    return compared(scenario, monkeypatch)


def test_random_runs_are_the_same_without_shortcuts(monkeypatch):
    assert sum(bool(left_out_of(seed, monkeypatch)) for seed in range(16)) > 4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(16, 316 * TIMES, 30))
def test_many_random_runs_are_the_same_without_shortcuts(first, monkeypatch):
    assert sum(bool(left_out_of(seed, monkeypatch)) for seed in range(first, first + 30)) > 5


@pytest.mark.parametrize("name", thinned([*SMALL, *LARGER], slow=LARGER))
def test_shipped_scenarios_are_the_same_without_shortcuts(name, monkeypatch):
    compared(load(SCENARIOS / f"{name}.yaml", ["record=compute"]), monkeypatch)
