"""What a whole training takes: days, GPU-hours, money and energy, worked out from the time of a step.

    steps        train.steps, or train.tokens / tokens of a step, rounded up
    seconds      steps · time of a step
    GPU-hours    GPUs of the job · seconds / 3600
    money        sum over GPUs of hours · price
    energy       pue · seconds · (sum over GPUs of busy watts · (share + idle · (1 - share)) + nodes · node watts)

The share of the time for which GPUs are busy is the mean over ranks (`busy_ratio`). Without `train`, the bill is that
of a day. Sums are exact until they are shown.
Of weeks with failures, the time of a step is the wall time per useful one, and spare nodes are held for all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.bill import Power
from hybrid_des.scenario.sections.cluster import GpuKind
from hybrid_des.units import format_share

JOULES_PER_MWH = 3600 * 10**6


def samples_per_step(scenario: Scenario) -> int:
    """Samples of a step; with `data`, places for them."""
    return scenario.schedule.microbatches * scenario.schedule.microbatch_size * scenario.parallel.data


def tokens_per_step(scenario: Scenario) -> int | None:
    """Tokens of all samples of a step, with `data` on average; None where samples are not sequences."""
    if scenario.model is None or scenario.model.network.sample != "sequence":
        return None
    if (packed := packed_steps(scenario)) is not None:
        return packed.tokens // len(packed.steps)
    return samples_per_step(scenario) * scenario.model.network.tokens


def steps_of(scenario: Scenario) -> int:
    """The number of steps of the whole training."""
    train = scenario.train
    assert train is not None
    if train.steps is not None:
        return train.steps
    each = tokens_per_step(scenario)
    assert each is not None and train.tokens is not None
    return -(-train.tokens // each)


STEADY = "every step takes as long as the simulated ones; no failures, restarts or evaluations"


def bill(
    scenario: Scenario, step: Fraction, busy: Fraction, *, spares: int = 0, assumes: Sequence[str] = (STEADY,)
) -> dict[str, Any]:
    """The bill by its public keys; empty without `train`.

    Args:
        scenario: what is trained, where, and for how long.
        step: seconds per step.
        busy: the share of it for which GPUs compute.
        spares: nodes, of the first kind, that are held without computing.
        assumes: a sentence for each assumption about time.
    """
    if scenario.train is None:
        return {}
    steps, each = steps_of(scenario), tokens_per_step(scenario)
    seconds = steps * step
    tokens = None if each is None else steps * each
    gpus, idle = Counter(gpu.name for gpu in _of_ranks(scenario)), _of_spares(scenario, spares)
    facts: dict[str, Any] = {
        "steps": steps,
        **({} if tokens is None else {"tokens": tokens}),
        "days": float(seconds / 86400),
        **_amounts(scenario, seconds, tokens, (gpus, idle), busy, spares),
    }
    return facts | {"assumes": [*assumes, *_assumptions(scenario, gpus + idle, spares)]}


def bill_per_day(scenario: Scenario, step: Fraction, busy: Fraction) -> dict[str, Any]:
    """What a day of steps takes by the keys of `bill`; empty with `train`, and where neither price nor power is given.

    Args:
        scenario: what is trained, and where.
        step: seconds per step.
        busy: the share of it for which GPUs compute.
    """
    if scenario.train is not None or (scenario.price is None and scenario.power is None):
        return {}
    day, each, gpus = Fraction(86400), tokens_per_step(scenario), Counter(gpu.name for gpu in _of_ranks(scenario))
    tokens = None if each is None or not step else each * day / step
    facts = {"tokens": float(tokens)} if tokens else {}
    return {
        **facts,
        **_amounts(scenario, day, tokens, (gpus, Counter()), busy, 0),
        "assumes": [STEADY, *_assumptions(scenario, gpus, 0)],
    }


def _amounts(
    scenario: Scenario,
    seconds: Fraction,
    tokens: int | Fraction | None,
    held: tuple[Counter[str], Counter[str]],
    busy: Fraction,
    spares: int,
) -> dict[str, Any]:
    """GPU-hours, money and energy of so many seconds; `held` are the GPUs of ranks and of spare nodes."""
    whole = held[0] + held[1]
    facts: dict[str, Any] = {"gpu_hours": float(whole.total() * seconds / 3600)}
    if scenario.price is not None:
        cost = cost_per_hour(scenario, whole) * seconds / 3600
        facts |= {"cost": float(cost), "currency": scenario.price.currency}
        facts |= {} if tokens is None else {"cost_per_million_tokens": float(cost * 10**6 / tokens)}
    if scenario.power is not None:
        energy = seconds * _watts(scenario, scenario.power, held, busy, spares) / JOULES_PER_MWH
        facts["energy_mwh"] = float(energy)
        facts |= {} if tokens is None else {"energy_mwh_per_million_tokens": float(energy * 10**6 / tokens)}
    return facts


def days_and_cost(scenario: Scenario, step: Fraction, spares: int = 0) -> tuple[Fraction, Fraction]:
    """Days of the whole training and its money, for a time of a step in seconds; exact."""
    seconds = steps_of(scenario) * step
    held = Counter(gpu.name for gpu in _of_ranks(scenario)) + _of_spares(scenario, spares)
    return seconds / 86400, cost_per_hour(scenario, held) * seconds / 3600


def cost_per_hour(scenario: Scenario, gpus: Counter[str]) -> Fraction:
    """Money for an hour of so many GPUs of each name."""
    price = scenario.price
    assert price is not None
    return sum((number * price.of(name)[0] for name, number in gpus.items()), Fraction(0))


def _of_ranks(scenario: Scenario) -> Sequence[GpuKind]:
    return scenario.cluster.gpus_of(range(scenario.parallel.ranks))


def _of_spares(scenario: Scenario, nodes: int) -> Counter[str]:
    """GPUs by name on spare nodes."""
    kind = scenario.cluster.kinds[0]
    return Counter({kind.gpu.name: nodes * kind.gpus_per_node}) if nodes else Counter()


def _watts(
    scenario: Scenario, power: Power, held: tuple[Counter[str], Counter[str]], busy: Fraction, spares: int
) -> Fraction:
    """What nodes draw on average, with the data centre's share; `held` are the GPUs of ranks and of spares."""
    shares = busy + power.idle * (1 - busy), power.idle
    each = ((name, share * number) for gpus, share in zip(held, shares, strict=True) for name, number in gpus.items())
    gpus = sum((number * (power.of(name) or 0) for name, number in each), Fraction(0))
    return power.pue * (gpus + (len(_nodes(scenario)) + spares) * power.node)


def _nodes(scenario: Scenario) -> set[int]:
    return {scenario.cluster.node_of(rank) for rank in range(scenario.parallel.ranks)}


def _assumptions(scenario: Scenario, gpus: Counter[str], spares: int) -> list[str]:
    """What the bill takes for granted about money and energy, a sentence each."""
    said = []
    price, power = scenario.price, scenario.power
    if price is not None:
        each = {name: " ".join(map(str, (float(price.of(name)[0]), price.of(name)[1]))) for name in gpus}
        texts = [f"{number:,} {name} at {each[name]} per hour" for name, number in gpus.items()]
        said.append(f"{', '.join(texts)}; {'other ' if spares else ''}GPUs without a rank cost nothing")
    if power is not None:
        source = "as given" if power.busy is not None else "by its data sheet"
        texts = [f"{name} {float(power.of(name) or 0):g} W {source}" for name in gpus]
        waiting = f"{format_share(power.idle, 0)} of that while waiting"
        nodes = len(_nodes(scenario)) + spares
        node = f"the rest of {nodes:,} {'node' if nodes == 1 else 'nodes'} {float(power.node):g} W each"
        said.append(f"{', '.join(texts)}, {waiting}; {node}; PUE {float(power.pue):g}")
    return said
