"""On random scenarios no line of advice is contradicted by its own run."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
import yaml
from support.advice import scenario_values
from support.campaigns import TIMES
from support.followed_lines import followed, in_order
from support.megatron_jobs import megatron_job
from support.own_runs import simulated
from support.spaces import CUSTOM, EFFICIENCY

from hybrid_des import advise, load
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import document_of
from hybrid_des.studies.plan_search.evaluation import STEPS, evaluate
from hybrid_des.studies.plan_search.terms import settings_of

QUICK = 1
BATCHES = 10
MANY = 6 * TIMES  # of each batch


def drawn(seed) -> Iterator:
    """Random scenarios that run, as mappings: small ones of any kind, and jobs of Megatron-LM with little memory."""
    rng = Random(seed)
    while True:
        values = scenario_values(rng) if rng.random() < 0.5 else megatron_job(rng)
        if isinstance(values["cluster"]["gpu"], str) and rng.random() < 0.7:
            memory = f"{rng.choice((400, 800, 1600, 3200))} MB"
            values["cluster"]["gpu"] = {**CUSTOM, "peak": "100 TFLOP/s", "bandwidth": "1 TB/s", "memory": memory}
            values["efficiency"] = EFFICIENCY
        try:
            simulated(load(values))
        except HybridDesError:  # the draw is impossible, such as a schedule that needs more micro-batches
            continue
        yield values


def lines_followed(values, file):
    """The lines of advice on a scenario file, after each was followed."""
    file.write_text(yaml.safe_dump(values))
    advice = advise(file)
    followed(file, advice)
    in_order(advice)
    bounded(file, advice)
    return len(advice.lines)


def bounded(file, advice):
    """Each step of the evaluation is a bound on the next, where all ops take what they cost."""
    document = document_of(file)
    if "slow" in document.value:
        return
    settings = settings_of(document)
    for line in advice.lines:
        least = [evaluate(settings, step, line.settings).least for step in STEPS]
        assert least == sorted(least) and least[0] > 0, line.change
        assert least[-1] == line.step_s, line.change


@pytest.mark.slow
def test_no_run_contradicts_advice_on_random_scenarios(tmp_path):
    followed_lines = [lines_followed(values, tmp_path / "drawn.yaml") for values in islice(drawn(0), QUICK)]
    assert sum(followed_lines) > QUICK


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(1, BATCHES + 1))
def test_no_run_contradicts_advice_on_many_scenarios(batch, tmp_path):
    followed_lines = [lines_followed(values, tmp_path / "drawn.yaml") for values in islice(drawn(batch), MANY)]
    print(len(followed_lines), "scenarios,", sum(followed_lines), "lines")  # with -s, or if it fails
    assert sum(followed_lines) > MANY
