"""Tables of measured times, with times beyond the measured sizes by NCCL's laws where the machine is known."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from hybrid_des.cluster.gpus import NODE
from hybrid_des.cluster.time_table import MeasuredGroup
from hybrid_des.collectives import find
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.measured.calibration.nccl_tests import Measurement, NcclTests
from hybrid_des.measured.calibration.predicted import SIMULATED, Given, Predicted

SIZES = [2**power for power in range(10, 35, 2)]  # beyond the measured ones: 1 KiB to 16 GiB
LINE = "beyond the measured sizes, times go on in a straight line and not by NCCL's timing model"
SHIFT = "send-receive"


class Table(NamedTuple):
    """The times of one run, and beyond them.

    Attributes:
        run: what was measured.
        whole: that with the sizes beyond.
        law: the machine by whose laws these are; None: there are none.
        notes: what was assumed, one line each.
        nodes: on which the ranks are.
        on_node: that they are taken for one, which tables by group rest on; nothing if the log says it.
    """

    run: NcclTests
    whole: NcclTests
    law: str | None
    notes: tuple[str, ...]
    nodes: int | None
    on_node: str = ""

    @property
    def beyond(self) -> str:
        """Where times beyond the measured ones come from; nothing if there are none."""
        return "" if self.whole.extent is None else f"other sizes by NCCL's timing model for {self.law}"

    @property
    def group(self) -> MeasuredGroup:
        """The collective and shape of group in words of tables.

        Raises:
            UsageError: ranks or nodes are not known.
        """
        run = self.run
        if run.ranks is None or self.nodes is None:
            lacking, option = ("ranks", "--ranks") if run.ranks is None else ("nodes", "--gpus-per-node")
            raise UsageError(f"{run.source}: the number of {lacking} is not known; say {option} N")
        does = SHIFT if run.test == "sendrecv" else find(SIMULATED[run.test]).facts["does"]
        return MeasuredGroup(does, run.ranks, self.nodes)


ONE_NODE = "hosts are not listed; {} ranks are taken for one node (--gpus-per-node N says else)"


def extrapolated(run: NcclTests, given: Given) -> Table:
    """The table of a run, by NCCL's laws beyond its sizes if the log or `given` says where it ran.

    Raises:
        UsageError: the collective is not simulated, or what is given does not fit the log.
    """
    if run.test not in SIMULATED:
        raise UsageError(f"{run.source}: times of {run.test}, expected those of {', '.join(SIMULATED)}")
    try:
        predicted = Predicted(run, given)
        whole = _extended(run, predicted)
    except (UsageError, Refusal) as error:
        if given != Given(per_node=given.per_node):
            raise
        nodes = run.nodes or (given.per_node and run.ranks and -(-run.ranks // given.per_node))
        note, on_node = f"{LINE}: {str(error).removeprefix(f'{run.source}: ')}", ""
        if nodes is None and run.ranks and run.ranks <= NODE:
            nodes, on_node = 1, ONE_NODE.format(run.ranks)
        return Table(run, run, None, (note,), nodes, on_node)
    law = predicted.machine if whole.extent else None
    return Table(run, whole, law, tuple(predicted.assumed), run.nodes or predicted.nodes)


def _extended(run: NcclTests, predicted: Predicted) -> NcclTests:
    """The measured times, and beyond them, from 1 KiB to 16 GiB, as many times NCCL's law as at the nearest of them."""
    first, last = run.times[0], run.times[-1]

    def beyond(size: int, edge: Measurement) -> Measurement:
        return Measurement(size, round(Fraction(predicted.time(size) * edge.time, predicted.time(edge.size))))

    below = [beyond(size, first) for size in SIZES if size < first.size]
    above = [beyond(size, last) for size in SIZES if size > last.size]
    extent = (first.size, last.size) if below or above else None
    return run._replace(times=[*below, *run.times, *above], extent=extent)
