"""The engine's share of the speed that it is simulated with, from what a run took: one number, by bisection."""

from collections.abc import Callable

LOWEST, HIGHEST = 1 / 16, 4.0
CLOSE = 1e-3  # relative error of the time at which a share is near enough
MOST_RUNS = 24


def reached(measured_s: float, simulated: Callable[[float], float]) -> float | None:
    """The value of `rl.rollout.efficiency.reached` with which a simulation takes as long as the run.

    Args:
        measured_s: what the run took, in seconds.
        simulated: seconds of the same phase with a given value; it falls, or stays, as the value grows.

    Returns:
        None if the time is out of reach: no value between 1/16 and 4 has it, as where the trainer alone takes longer.
    """
    low, high = LOWEST, HIGHEST
    if not simulated(high) <= measured_s <= simulated(low):
        return None
    middle = 1.0
    for _ in range(MOST_RUNS):
        time = simulated(middle)
        if abs(time - measured_s) <= CLOSE * measured_s:
            break
        low, high = (middle, high) if time > measured_s else (low, middle)
        middle = (low * high) ** 0.5
    return middle
