"""The key `fold`: the number of replicas to simulate where they behave identically."""

from collections.abc import Iterator
from typing import Annotated, Any

from hybrid_des.options import MOST, Reads, choice, whole
from hybrid_des.scenario.problem import Problem

FROM = 129  # number of GPUs from which `auto` folds replicas; up to 128, all of them are shown


def _read(value: Any) -> int | str:
    if isinstance(value, str | bool):
        word: str = choice("auto", "off", beside="a number of replicas").read(value)
        return word
    number: int = whole(1, MOST).read(value)
    return number


_NUMBER = {"type": "integer", "minimum": 1, "maximum": MOST}
Fold = Annotated[int | str, Reads(_read, {"anyOf": [{"enum": ["auto", "off"]}, _NUMBER]})]


def fold_fits(scenario: Any) -> Iterator[Problem]:
    """A fold must divide the replicas, and they must not each train on their own samples."""
    fold, replicas = scenario.fold, scenario.parallel.data
    if not isinstance(fold, int):
        return
    if replicas % fold:
        message = f"{replicas} replicas cannot be folded to {fold}; expected a divisor"
        yield Problem(("fold",), message, (("fold",), ("parallel", "data")))
    elif scenario.numerics is not None and fold < replicas:
        message = "with `numerics` every replica trains on its own samples; expected off"
        yield Problem(("fold",), message, (("fold",), ("numerics",)))
