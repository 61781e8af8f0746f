"""The sections `price`, `power` and `train`: what the whole training costs, worked out from the time of its steps.

They change nothing that is simulated. A price is kept as its text, such as "2.5 USD".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.options import Factor, Reads, Section, describe, given, positive, quantity, whole, within
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.training import PublishedOrOwn

EXAMPLE = "a price such as 2.5 USD"
MOST_STEPS = 10**12
_PRICE = re.compile(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*([A-Z]{3})\s*")
_PRICE_SCHEMA = {"type": "string", "pattern": r"^\s*\d{1,12}(\.\d{1,12})?\s*[A-Z]{3}\s*$", "examples": ["2.5 USD"]}


def money_of(price: str) -> tuple[Fraction, str]:
    """The amount and the currency of a price that was read."""
    number, currency = price.split()
    return Fraction(number), currency


def _price(value: Any) -> str:
    parts = _PRICE.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        raise ValueError(f"expected {EXAMPLE} (three capital letters name the currency), found {describe(value)}")
    return f"{parts.group(1)} {parts.group(2)}"


def _prices(value: Any) -> str | dict[str, str]:
    """One price, or one for each kind of GPU."""
    if not isinstance(value, Mapping):
        return _price(value)
    if not value:
        raise ValueError(f"expected {EXAMPLE}, or one per name of a GPU, found an empty mapping")
    prices = {str(name): _price(price) for name, price in value.items()}
    currencies = sorted({money_of(price)[1] for price in prices.values()})
    if len(currencies) > 1:
        raise ValueError(f"expected one currency, found {' and '.join(currencies)}")
    return prices


Watts = Annotated[Fraction, quantity("power")]


class Price(Section):
    """What a GPU costs."""

    gpu_hour: Annotated[
        str | dict[str, str],
        Reads(_prices, {"anyOf": [_PRICE_SCHEMA, {"type": "object", "additionalProperties": _PRICE_SCHEMA}]}),
    ]
    """One hour of one GPU, such as 2.5 USD; or a mapping from names of GPUs to that."""

    def of(self, gpu: str) -> tuple[Fraction, str]:
        """The amount and the currency for an hour of a kind of GPU."""
        return money_of(self.gpu_hour if isinstance(self.gpu_hour, str) else self.gpu_hour[gpu])

    @property
    def currency(self) -> str:
        """The currency of all prices."""
        given = self.gpu_hour if isinstance(self.gpu_hour, str) else next(iter(self.gpu_hour.values()))
        return money_of(given)[1]


class Power(Section):
    """What the machine draws."""

    busy: Annotated[Fraction | None, positive("power")] = None
    """A GPU that computes. Default: the most that its data sheet states."""
    idle: Annotated[Fraction, within(0, 1, "a share from 0 to 1")] = Fraction(1)
    """A GPU that waits, as a share of `busy`."""
    node: Watts = Fraction(0)
    """The rest of a node: CPUs, NICs, fans."""
    pue: Annotated[Fraction, within(1, 10, "from 1 to 10", ": all energy over that of the computers")] = Fraction(1)
    """Energy of the whole data centre over that of its computers."""

    def of(self, gpu: str) -> Fraction | None:
        """Watts of a GPU of this name that computes; None if unknown."""
        if self.busy is not None:
            return self.busy
        return catalogue.part(gpu).power if gpu in catalogue.names() else None


class Train(Section):
    """How long the training is."""

    tokens: Factor | None = None
    """Tokens in all, to the end of a step."""
    steps: Annotated[int, whole(1, MOST_STEPS)] | None = None
    """Instead of `tokens`: the number of steps."""


PriceOrNone = Annotated[Price | None, given(Price, none=True)]
PowerOrNone = Annotated[Power | None, given(Power, none=True)]
TrainOrNone = Annotated[Train | None, given(Train, none=True)]


def misfits_of_bill(
    price: Price | None, power: Power | None, train: Train | None, cluster: Cluster, model: PublishedOrOwn, every: int
) -> Iterator[Problem]:
    """A bill needs figures for every kind of GPU, and one length of the training, or none: then it is that of a day."""
    if train is not None and (train.tokens is None) == (train.steps is None):
        message = "expected either tokens or steps" + (", not both" if train.steps else "")
        yield misfit(message, "train")
    elif (
        train is not None
        and train.tokens is not None
        and (model is None or (not model.lacking and model.network.sample != "sequence"))
    ):
        yield misfit("is read with a `model` of tokens only; expected steps", "train.tokens", "model")
    if train is not None and every > 1:
        yield misfit("is not supported with `every` above 1: not all steps take as long", "train", "gradients.every")
    names = list(dict.fromkeys(kind.gpu.name for kind in cluster.kinds))
    if price is not None and not isinstance(price.gpu_hour, str):
        for name in names:
            if name not in price.gpu_hour:
                yield misfit(f"has no price of {name}, which the cluster has", "price.gpu_hour", "cluster.gpu")
    if power is not None:
        for name in names:
            if power.of(name) is None:
                yield misfit(f"is required: the catalogue has no figure for {name}", "power.busy", "cluster.gpu")
