"""How long a block of instructions computes by itself, from one wait to the next."""

from __future__ import annotations

from functools import cached_property

from hybrid_des.cluster.endpoint import Endpoint
from hybrid_des.cluster.traced_transport import TracedTransport
from hybrid_des.collectives.communicator import OnStream, Stream
from hybrid_des.engine.causes import COMPUTED, Causes, TracedEnvironment, traced
from hybrid_des.engine.recorder import Recorder
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.computation import Computation
from hybrid_des.simulation.gpu import Gpu, RunContext
from hybrid_des.simulation.jobs import links_of
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.simulation.planning.program import COMPUTE, Block, Call, Compute, Join, Program, Start


class ComputationAlone:
    """One GPU that computes nothing else, and whose collectives on streams disturb nobody.

    Args:
        scenario, parts: what is simulated.
    """

    def __init__(self, scenario: Scenario, parts: Parts) -> None:
        self._scenario, self._parts = scenario, parts

    @cached_property
    def _streams(self) -> frozenset[str]:
        return frozenset(self._parts.traffic.streams)

    def pieces(self, block: Block) -> tuple[int, ...]:
        """Picoseconds from one wait to the next; those of collectives on streams that it waits for are pieces, too."""
        starts = [one for one in block.every(Start) if one.group[0] in self._streams]
        if not starts:
            return tuple(one.duration for one in block.every(Compute) if one.duration)
        trace = Causes()
        env = TracedEnvironment(trace)
        computation = None if self._parts.slowdown is None else Computation(env)
        streams = {axis: Stream(env, computation) for axis in self._streams}
        recorder = traced(Recorder(None, detailed=False), trace)
        transport = TracedTransport(links_of(self._scenario, self._parts.fabric, env), recorder, self._parts.fabric)
        mine = tuple(one for one in block.instructions if isinstance(one, Compute | Start | Join))
        program = Program({COMPUTE: (Call(Block(block.stages, mine)),)})
        groups = {one.group: OnStream(env, streams[one.group[0]], None) for one in starts}
        Gpu(RunContext(env, recorder, 1), Endpoint(transport, 0, ()), program, groups, computation=computation)
        env.run()
        points = trace.columns()["points"]
        lags: list[int] = points["lag"][points["kind"] == COMPUTED].tolist()
        return tuple(lags)
