"""Objectives of a search: each turns the time of a step into a cost, the lower the better."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from hybrid_des.analysis.bill import days_and_cost, tokens_per_step
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.rl.bounds import allowed_age, least_cycle
from hybrid_des.units import format_number, format_seconds


@dataclass(frozen=True)
class Against:
    """What plans are weighed against besides the cost, the lower the better.

    Attributes:
        key: its name in tables and files.
        axis: its axis label in plots.
        text: value → its text in a sentence.
        least: (scenario, seconds of a step) → the value, or a lower bound where only a run knows it; it never decreases
            with the seconds.
        summed_up: what a frontier of it and the cost is, in one line.
    """

    key: str
    axis: str
    text: Callable[[float], str]
    least: Callable[[Scenario, float], float]
    summed_up: str

    @property
    def heading(self) -> str:
        """Its column in a table for readers."""
        return self.key.replace("_", " ")


@dataclass(frozen=True)
class Objective:
    """One way to compare plans.

    Attributes:
        name: its name in `search.objective` and in the summary.
        shown: value → its text.
        key: the name of the value in tables and files.
        axis: its axis label in plots.
        cost: (scenario, seconds of a step) → the cost to minimize; it never decreases with the seconds.
        value: cost → the figure that is shown under `key`.
        lacking: what a scenario lacks for it; empty if nothing.
        weeks: whether the seconds are wall time per useful step, over weeks with failures, if the scenario has any.
        against: what plans are weighed against besides the cost; None: nothing.
        beside: keys of a simulated plan's row that tables have too.
    """

    name: str
    shown: Callable[[float], str]
    key: str
    axis: str
    cost: Callable[[Scenario, float], float] = lambda scenario, seconds: seconds
    value: Callable[[float], float] = lambda cost: cost
    lacking: Callable[[Scenario], str] = lambda scenario: ""
    weeks: bool = False
    against: Against | None = None
    beside: tuple[str, ...] = ()

    def text(self, cost: float) -> str:
        """A cost as it is shown."""
        return self.shown(self.value(cost))


def _seconds_per_token_and_gpu(scenario: Scenario, seconds: float) -> float:
    """GPU-seconds per token; the batch and the number of GPUs may differ from plan to plan."""
    tokens = tokens_per_step(scenario)
    assert tokens is not None  # see `_no_tokens`
    return seconds * scenario.parallel.ranks / tokens


def _no_tokens(scenario: Scenario) -> str:
    known = scenario.model is not None and scenario.model.network.sample == "sequence"
    return "" if known else "needs a `model` of token sequences"


STEP_TIME = Objective("step_time_s", format_seconds, "step_time_s", "step time (s)")


TOKENS = Objective(
    "tokens_per_gpu_s",
    lambda value: f"{value:.4g} tokens/s",
    "tokens_per_gpu_s",
    "tokens per GPU and second",
    cost=_seconds_per_token_and_gpu,
    value=lambda cost: 1 / cost if cost else 0.0,
    lacking=_no_tokens,
)


GOODPUT = Objective(
    "goodput",
    lambda value: f"{format_seconds(value)} per useful step",
    "wall_per_useful_step_s",
    "wall time per useful step (s)",
    lacking=lambda scenario: "" if scenario.faults is not None else "needs `faults`",
    weeks=True,
)


def _spares(scenario: Scenario) -> int:
    return scenario.faults.spares.nodes if scenario.faults is not None and scenario.faults.spares is not None else 0


DAYS = Against(
    "days",
    "days of training",
    lambda days: f"in {format_number(days)} days",
    lambda scenario, seconds: float(days_and_cost(scenario, Fraction(seconds))[0]),
    "days against money: of these, none is cheaper and none sooner than another",
)


COST = Objective(
    "cost",
    format_number,
    "cost",
    "money for the training",
    cost=lambda scenario, seconds: float(days_and_cost(scenario, Fraction(seconds), _spares(scenario))[1]),
    lacking=lambda scenario: "needs `price` and `train`" if None in (scenario.train, scenario.price) else "",
    weeks=True,
    against=DAYS,
)


AGE = Against(
    "mean_age",
    "mean age of samples (weight syncs)",
    lambda age: f"at a mean age of {format_number(age)}",
    lambda scenario, seconds: allowed_age(scenario),
    "time against mean age: of these, none has a shorter cycle and younger samples than another",
)


CYCLE = Objective(
    "cycle_s",
    format_seconds,
    "cycle_s",
    "time of a cycle (s)",
    cost=lambda scenario, seconds: least_cycle(scenario),
    lacking=lambda scenario: "" if scenario.rl is not None else "needs `rl`",
    against=AGE,
    beside=("samples_per_s",),
)


OF_LOOPS = (STEP_TIME.name, CYCLE.name)  # the first, which is the default of all searches, stands for the second


def objective_of(name: str, scenario: Scenario, *, whole_front: bool = False) -> Objective:
    """The objective of a search in a scenario; money is shown in its currency.

    Args:
        name: that of the file; a step's time stands for that of a cycle where there is a loop.
        scenario: of the file.
        whole_front: whether plans of a loop may have any mean age until they are simulated, so that none of the
            frontier is excluded; else as old as they allow.
    """
    if scenario.rl is not None and name in OF_LOOPS:
        return replace(CYCLE, against=replace(AGE, least=lambda scenario, seconds: 0.0)) if whole_front else CYCLE
    objective = OBJECTIVES[name]
    if objective is not COST or scenario.price is None:
        return objective
    currency = scenario.price.currency
    axis = f"{objective.axis} ({currency})"
    return replace(objective, shown=lambda value: f"{format_number(value)} {currency}", axis=axis)


OBJECTIVES: Mapping[str, Objective] = {one.name: one for one in (STEP_TIME, TOKENS, GOODPUT, COST, CYCLE)}
