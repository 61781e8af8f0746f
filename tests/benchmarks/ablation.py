"""What each shortcut saves on what people run: events and processor seconds.

`python tests/benchmarks/ablation.py` prints the table of docs/background/speed.md; events do not
depend on the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.paths import SCENARIOS

from hybrid_des.analysis import tasks
from hybrid_des.analysis.explanation import explain
from hybrid_des.result import simulate
from hybrid_des.scenario.jobs import load_jobs
from hybrid_des.simulation import run as plain
from hybrid_des.studies.jobs import neighbours


class Ablation(NamedTuple):
    """A shortcut, how it is taken out, and what it is for.

    Attributes:
        name: its name in the table.
        without: what takes its place, by the name that is looked up.
        command: what people run.
        scenario: of what.
    """

    name: str
    without: dict[str, Any]
    command: Callable[[Path], Any]
    scenario: str


class Count:
    """Events of all runs of a command in this process."""

    def __init__(self) -> None:
        self.events = 0


def _simulated(path: Path) -> Any:
    return simulate(path, overrides=["record=compute"])


def _explained(path: Path) -> Any:
    return explain(path, at_once=tasks.in_turn)


def _jobs(path: Path) -> Any:
    return neighbours.neighbours_of(load_jobs(path), folded=True)


def _nothing(*_: Any, **__: Any) -> tuple[()]:
    return ()


def _none(*_: Any, **__: Any) -> None:
    return None


ABLATIONS = (
    Ablation("folding", {"hybrid_des.shortcuts.run.folds_of": _nothing}, _explained, "llama3.1-70b_128"),
    Ablation(
        "collectives alone, around rings", {"hybrid_des.shortcuts.attempts.taken_in_fold": _none}, _explained,
        "deepseek-v3_256",
    ),
    Ablation(
        "collectives alone, of layers", {"hybrid_des.shortcuts.attempts.taken_of_all_ranks": _none}, _simulated,
        "experts/drift",
    ),
    Ablation(
        "stretches", {"hybrid_des.shortcuts.stretches.Stretches.of": lambda *_: {}}, _explained,
        "scale/deepseek-v3_1024",
    ),
    Ablation("watched links", {"hybrid_des.shortcuts.attempts.MOST_CHANNELS": 0}, _explained, "llama3.1-405b_512"),
    Ablation(
        "least remaining", {"hybrid_des.analysis.counterfactual.what_if.least_remaining": _none}, _explained,
        "llama3.1-405b_16k",
    ),
    Ablation(
        "common beginning", {"hybrid_des.analysis.counterfactual.what_if.least_of_changed": lambda *_: 0}, _explained,
        "scale/deepseek-v3_1024",
    ),
    Ablation("joint folds", {"hybrid_des.studies.jobs.neighbours._folded": _none}, _jobs, "jobs/two_jobs"),
)  # fmt: skip


@contextmanager
def counting() -> Iterator[Count]:
    """Count the events of all runs inside the `with` block."""
    count, carry_out = Count(), plain.carry_out

    def counted(env: Any, *given: Any) -> None:
        try:
            carry_out(env, *given)
        finally:
            count.events += env.events

    with patch.object(plain, "carry_out", counted):
        yield count


def measured(ablation: Ablation, *, without: bool) -> tuple[int, float]:
    """Events and processor seconds of a command, with a shortcut or without it."""
    with ExitStack() as changes, counting() as count:
        for name, instead in ablation.without.items() if without else ():
            changes.enter_context(patch(name, instead))
        began = time.process_time()
        ablation.command(SCENARIOS / f"{ablation.scenario}.yaml")
        return count.events, time.process_time() - began


def main() -> None:
    """Print the table."""
    print("| shortcut | command | events without → with | processor seconds without → with |\n|---|---|---:|---:|")
    for ablation in ABLATIONS:
        (events, seconds), (all_events, all_seconds) = (measured(ablation, without=out) for out in (False, True))
        verb = "explain" if ablation.command is _explained else "simulate"
        print(
            f"| {ablation.name} | `{verb}` of {ablation.scenario} | {all_events:,} → {events:,} | "
            f"{all_seconds:.1f} → {seconds:.1f} |"
        )


if __name__ == "__main__":
    main()
