"""A run with shortcuts beside the plain one, in which all ranks are simulated and every message is a message."""

from typing import NamedTuple

import numpy as np
import pytest

from hybrid_des.analysis.metrics import summary
from hybrid_des.scenario.definition import Scenario
from hybrid_des.shortcuts.expansion import of_all_ranks
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from support.runs import totals

ABOUT_ITSELF = ("ranks_simulated", "wall_s", "events", "shortcuts")  # keys of a summary
TABLES = ("ops", "steps", "reductions", "memory", "gathers", "waits", "exchanges")


class Figures(NamedTuple):
    """What users see of a run, with the rows of all ranks, in one order."""

    summary: dict[str, object]
    totals: dict[str, object]
    rows: list[np.ndarray]

    @classmethod
    def of(cls, made: Run) -> "Figures":
        """Those of a run."""
        facts = {key: value for key, value in summary(made).items() if key not in ABOUT_ITSELF}
        whole = made if made.fold is None else of_all_ranks(made)
        tables = [getattr(whole.timeline, name) for name in TABLES]
        rows = [np.array([table[name] for name in sorted(table)]) for table in tables]
        return cls(facts, totals(whole), [table[:, np.lexsort(table)] for table in rows])


def compared(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run, folded however small it is, that is figure by figure the plain one."""
    made = run(scenario, fold_from=2)
    with monkeypatch.context() as patch:
        patch.setenv("HYBRID_DES_PLAIN", "1")
        plain = run(scenario, fold_from=2)
    assert plain.left_out == ""
    mine, its = Figures.of(made), Figures.of(plain)
    assert mine[:2] == its[:2]
    assert all(np.array_equal(one, other) for one, other in zip(mine.rows, its.rows, strict=True))
    return made
