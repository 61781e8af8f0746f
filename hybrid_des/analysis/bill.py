"""What a whole training takes: days, GPU-hours, money and energy, worked out from the time of a step.

    steps        train.steps, or train.tokens / tokens of a step, rounded up
    seconds      steps · time of a step
    GPU-hours    GPUs of the job · seconds / 3600
    money        sum over GPUs of hours · price
    energy       pue · seconds · (sum over GPUs of busy watts · (share + idle · (1 - share)) + nodes · node watts)

The share of the time for which GPUs compute is the mean over ranks (`efficiency`). Sums are exact until they are shown.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from hybrid_des.scenario.definition import Scenario

JOULES_PER_MWH = 3600 * 10**6


def tokens_per_step(scenario: Scenario) -> int | None:
    """Tokens of all samples of a step; None where samples are not sequences."""
    if scenario.model is None or scenario.model.network.sample != "sequence":
        return None
    schedule = scenario.schedule
    samples = schedule.microbatches * schedule.microbatch_size * scenario.parallel.data
    return samples * scenario.model.network.tokens


def steps_of(scenario: Scenario) -> int:
    """The number of steps of the whole training."""
    train = scenario.train
    assert train is not None
    if train.steps is not None:
        return train.steps
    each = tokens_per_step(scenario)
    assert each is not None and train.tokens is not None
    return -(-train.tokens // each)


def bill(scenario: Scenario, step: Fraction, busy: Fraction) -> dict[str, Any]:
    """The bill by its public keys; empty without `train`.

    Args:
        scenario: what is trained, where, and for how long.
        step: seconds per step.
        busy: the share of it for which GPUs compute.
    """
    if scenario.train is None:
        return {}
    steps, each = steps_of(scenario), tokens_per_step(scenario)
    seconds = steps * step
    ranks = range(scenario.parallel.ranks)
    tokens = None if each is None else steps * each
    gpus = Counter(gpu.name for gpu in scenario.cluster.gpus_of(ranks))
    facts: dict[str, Any] = {
        "steps": steps,
        **({} if tokens is None else {"tokens": tokens}),
        "days": float(seconds / 86400),
        "gpu_hours": float(len(ranks) * seconds / 3600),
    }
    if scenario.price is not None:
        prices = {name: scenario.price.of(name) for name in gpus}
        cost = sum(number * prices[name][0] for name, number in gpus.items()) * seconds / 3600
        facts |= {"cost": float(cost), "currency": next(iter(prices.values()))[1]}
        facts |= {} if tokens is None else {"cost_per_million_tokens": float(cost * 10**6 / tokens)}
    if scenario.power is not None:
        energy = seconds * _watts(scenario, gpus, busy) / JOULES_PER_MWH
        facts["energy_mwh"] = float(energy)
        facts |= {} if tokens is None else {"energy_mwh_per_million_tokens": float(energy * 10**6 / tokens)}
    return facts | {"assumes": _assumptions(scenario, gpus)}


def _watts(scenario: Scenario, gpus: Counter[str], busy: Fraction) -> Fraction:
    """What the job's nodes draw on average, with the data centre's share."""
    power = scenario.power
    assert power is not None
    share = busy + power.idle * (1 - busy)
    computing = sum((number * (power.of(name) or 0) for name, number in gpus.items()), Fraction(0))
    return power.pue * (computing * share + len(_nodes(scenario)) * power.node)


def _nodes(scenario: Scenario) -> set[int]:
    return {scenario.cluster.node_of(rank) for rank in range(scenario.parallel.ranks)}


def _assumptions(scenario: Scenario, gpus: Counter[str]) -> list[str]:
    """What the bill takes for granted, a sentence each."""
    said = ["every step takes as long as the simulated ones; no failures, restarts or evaluations"]
    price, power = scenario.price, scenario.power
    if price is not None:
        each = {name: " ".join(map(str, (float(price.of(name)[0]), price.of(name)[1]))) for name in gpus}
        texts = [f"{number:,} {name} at {each[name]} per hour" for name, number in gpus.items()]
        said.append(f"{', '.join(texts)}; GPUs without a rank cost nothing")
    if power is not None:
        source = "as given" if power.busy is not None else "by its data sheet"
        texts = [f"{name} {float(power.of(name) or 0):g} W {source}" for name in gpus]
        waiting = f"{float(power.idle):.0%} of that while waiting"
        nodes = len(_nodes(scenario))
        node = f"the rest of {nodes:,} {'node' if nodes == 1 else 'nodes'} {float(power.node):g} W each"
        said.append(f"{', '.join(texts)}, {waiting}; {node}; PUE {float(power.pue):g}")
    return said
