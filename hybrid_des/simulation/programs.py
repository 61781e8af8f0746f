"""The programs that ranks run, each at the pace of its rank; equal ranks share one."""

from fractions import Fraction

from hybrid_des.planning.pace import Pace
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.tasks import Program
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.changes import Retime, retimed
from hybrid_des.simulation.perturbing import Perturbation
from hybrid_des.simulation.varying import VaryingPace, in_parts


class Programs:
    """Lowers the programs of ranks when they are first requested.

    Args:
        scenario: the perturbations of ranks.
        parts: the parts that are lowered.
        retime: other durations of ops.
    """

    def __init__(self, scenario: Scenario, parts: Parts, retime: Retime | None = None) -> None:
        self._retime = retime
        self._lowering = parts.lowering
        self._alike: dict[tuple[int, int], Program] = {}
        self._known: dict[tuple[int, Pace, bool], Program] = {}
        self._perturbation = None
        if scenario.slow or scenario.jitter or parts.durations:
            self._perturbation = Perturbation(scenario, parts.plan, parts.costs, parts.durations)

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
        if self._retime is None:
            return self._lowered(place, usual, parted=varying is not None), varying
        program = retimed(self._lowered(place, usual), rank, self._retime)
        return program if varying is None else in_parts(program), varying

    def _lowered(self, place: int, pace: Pace, *, parted: bool = False) -> Program:
        """The program of all ranks of this place and pace, in parts where the pace varies."""
        key = place, pace, parted
        if key not in self._known:
            self._known[key] = in_parts(self._lowered(place, pace)) if parted else self._lowering.lower(place, pace)
        return self._known[key]
