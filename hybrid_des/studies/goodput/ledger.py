"""The ledger of wall time: useful steps, and lost time by cause; whole picoseconds that sum to the wall time."""

from collections import Counter

from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.goodput.states import Step

USEFUL = "useful"


LOST = {
    "rework": "work repeated after a failure",
    "checkpoint": "stopped for checkpoints",
    "detection": "failure detection",
    "repair": "waiting for a node to be repaired",
    "swap": "swapping in a spare",
    "restart": "restarting",
    "flap": "stopped during a flap",
    "slow": "steps slowed by a part",
    "jitter": "jitter of steps",
    "fewer_replicas": "steps with fewer replicas",
}


class Ledger(Counter[str]):
    """Picoseconds by cause."""

    def book(self, steps: Counter[Step]) -> None:
        """Add steps whose work is kept."""
        for step, count in steps.items():
            self[USEFUL] += count * step.useful
            self["fewer_replicas"] += count * step.fewer
            self["slow"] += count * step.slow
            self["jitter"] += count * step.jitter


def unknown_causes(scenario: Scenario) -> dict[str, str]:
    """Causes of lost time that the scenario does not state, each with the key that would state it."""
    faults = scenario.faults
    assert faults is not None
    missing: dict[str, str] = {}
    if faults.checkpoint is None:
        missing |= {"rework": "faults.checkpoint", "checkpoint": "faults.checkpoint"}
    if faults.detect is None:
        missing["detection"] = "faults.detect"
    if faults.restart is None:
        missing["restart"] = "faults.restart"
    if faults.spares is None and any(one.domain != "none" and one.what != "job" for one in faults.classes):
        missing |= {"repair": "faults.spares", "swap": "faults.spares"}
    elif faults.spares is not None and faults.spares.swap is None:
        missing["swap"] = "faults.spares.swap"
    return missing
