"""The perturbations of a run, in a line of text: slow parts, jitter, noise."""

from collections.abc import Iterator
from fractions import Fraction

from hybrid_des.scenario import Scenario
from hybrid_des.scenario.sections.perturbations import Jitter, Slow
from hybrid_des.units import format_seconds

LEVELS = {"op": "per op", "rank-step": "per rank and step", "rank": "per rank"}


def perturbations_of(scenario: Scenario, ends_s: float) -> str:
    """Everything that perturbs a run which ends at this time; empty if nothing does."""
    found = [_slow(one, ends_s) for one in scenario.slow]
    found += [text for one in scenario.jitter for text in _random(one)]
    if scenario.jitter:
        found.append(f"seed {scenario.seed}")
    return "; ".join(found)


def _slow(one: Slow, ends_s: float) -> str:
    kind, name = one.target
    if one.flap is not None:
        what = f"down for {_time(one.flap)}"
    else:
        speed = [] if one.factor is None else [f"at {float(one.factor):.4g}×"]
        what = " and ".join([*speed, *([f"{_time(one.latency)} late"] if one.latency else [])])
    begin = f" from {_time(one.from_)}" if one.from_ else ""
    end = "" if one.until is None else f" until {_time(one.until)}"
    unseen = " (after the end of this run)" if one.from_ and one.from_ >= ends_s else ""
    return f"{kind} {name} {what}{begin}{end}{unseen}"


def _random(one: Jitter) -> Iterator[str]:
    if one.distribution is not None:
        options = ", ".join(f"{key} {float(value):.4g}" for key, value in one.options or ())
        yield f"{one.distribution} jitter {LEVELS[one.level]} ({options})"
    if one.noise is not None:
        yield f"noise of {_time(one.noise.detour)} every {_time(one.noise.period)}"


def _time(seconds: Fraction) -> str:
    return f"{float(seconds / 3600):.4g} h" if seconds >= 3600 else format_seconds(float(seconds))
