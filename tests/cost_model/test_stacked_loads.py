"""The costs of many loads at once, as arrays: bit for bit those of each by itself."""

from fractions import Fraction

import numpy as np
import pytest

from hybrid_des.cost_model import elementwise
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import Costing
from hybrid_des.cost_model.documents import Load
from hybrid_des.cost_model.pipeline_ranks import costs_per_rank
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.scenario.loading import scenario_from

EXPERTS = {"base": "mixtral-8x7b", "layers": 4}
GIVEN = {
    "dense": {},
    "tied": {"model": {"base": "gpt2-medium"}},
    "experts": {"model": EXPERTS},
    "unequally wanted experts": {"model": EXPERTS, "experts": {"loads": [8, 1, 1, 1, 1, 1, 1, 2]}},
    "latent attention": {"model": {"base": "deepseek-v2", "layers": 4}},
    "fp8": {"precision": "fp8-current"},
    "modules": {"recompute": ["core_attn", "mlp"], "efficiency": {"kept": 1.15}},
    "full": {"recompute": "full"},
    "split": {"schedule": {"kind": "zb-h1", "microbatches": 4}},
    "launches": {"efficiency": {"launch": "100 us"}},
}


def random_loads(generator, count=200):
    """Loads of one to eight documents."""
    for _ in range(count):
        lengths = generator.integers(1, 4096, generator.integers(1, 9)).tolist()
        yield Load.of(lengths, 1, padded=False)


@pytest.mark.parametrize("name", GIVEN)
def test_arrays_cost_what_each_load_costs(name, monkeypatch):
    values = {
        "cluster": {"gpu": "h100", "gpus_per_node": 4},
        "model": {"base": "llama3.1-8b", "layers": 4},
        "parallel": {"pipeline": 4},
        "schedule": {"kind": "1f1b", "microbatches": 4},
        "data": {"lengths": {"kind": "lognormal", "mean": 1000, "sigma": 1}},
    }
    scenario = scenario_from(values | GIVEN[name])
    ranks = costs_per_rank(CostBasis.of(scenario), times_of(scenario, fabric_of(scenario)))
    loads = list(random_loads(np.random.default_rng(1)))
    at_once = ranks.loaded(loads, 4, False)
    monkeypatch.setattr(Costing, "stacks", lambda costing, load: False)
    alone = ranks.loaded(loads, 4, False)
    assert all(stage.layers for stages in alone for stage in stages)
    for stages, expected in zip(at_once, alone, strict=True):
        for stage, other in zip(stages, expected, strict=True):
            assert vars(stage) == vars(other) | {"layers": ()}


def test_arrays_are_rounded_as_single_numbers_are():
    numbers = [0.5, 1.5, 2.5, 1e15 + 0.5, 3.0, 0.49999999999999994]
    for do in (elementwise.rounded, elementwise.rounded_up):
        assert do(np.array(numbers)).tolist() == [do(number) for number in numbers]


def test_whole_amounts_do_not_overflow():
    amounts, share = [2**40 + 1, 3], Fraction(10**9 + 7, 10**9)
    assert elementwise.times_up(np.array(amounts), share).tolist() == [-(-amount * share // 1) for amount in amounts]
    over, under = np.array([2**40 + 1]), np.array([3])
    factor = Fraction(2**50 + 1, 7)
    assert elementwise.quotients(over, under, factor).tolist() == [float(factor * (2**40 + 1) / 3)]
