"""The programs that ranks run, each at the pace of its rank; equal ranks share one."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial

from hybrid_des.planning.pace import Pace
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import Call, Program
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.perturbing import Perturbation
from hybrid_des.simulation.varying import VaryingPace

Retime = Callable[[int, Call, int], int]  # other durations, which no scenario key can express, by global rank


class Programs:
    """Lowers the programs of ranks when they are first requested.

    Args:
        scenario: the perturbations of ranks.
        parts: the parts that are lowered.
        retime: other durations of ops.
    """

    def __init__(self, scenario: Scenario, parts: Parts, retime: Retime | None = None) -> None:
        self._retime = retime
        self._lowering = parts.programs
        self._alike: dict[tuple[int, int], Program] = {}
        self._known: dict[tuple[int, Pace], Program] = {}
        self._perturbation = None
        if scenario.slow or scenario.jitter or parts.durations:
            self._perturbation = Perturbation(scenario, parts.programs, parts.durations)

    def of(self, rank: int, place: int, speed: Fraction) -> tuple[Program, VaryingPace | None]:
        """The program of a rank on a GPU of this speed, and its varying pace, if it varies."""
        if self._perturbation is None and self._retime is None:
            alike = place, id(speed)  # the node's own fraction; hashing it would take longer than all else here
            if alike not in self._alike:
                self._alike[alike] = self._lowering.lower(place, Pace(speed))
            return self._alike[alike], None
        usual, varying = Pace(speed), None
        if self._perturbation is not None:
            usual, varying = Pace(speed * self._perturbation.speed(rank)), self._perturbation.pace(rank)
        key = place, usual
        if key not in self._known:
            self._known[key] = self._lowering.lower(place, usual)
        program = self._known[key]
        return program if self._retime is None else program.lasting(partial(self._retime, rank)), varying
