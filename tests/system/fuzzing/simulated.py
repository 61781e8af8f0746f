"""A job for a worker: a random scenario, simulated by the package and recounted without it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system.fuzzing.recount import differences
from system.fuzzing.worker import SECONDS, OutOfTimeError, out_of_time

ALGORITHM = "refused: "
MAY_REFUSE = ("in-switch: ", "hierarchical: ")  # which groups they take depends on the nodes


@dataclass(frozen=True)
class Simulated:
    """A scenario as a mapping; running it gives what is wrong, or that the package refuses it."""

    values: Mapping[str, Any]

    def run(self, folder: Path) -> list[str]:
        """Simulate and recount."""
        from hybrid_des import load, simulate
        from hybrid_des.errors import HybridDesError
        from hybrid_des.pipeline.order_csv import write_order

        try:
            with out_of_time(SECONDS):
                result = simulate(load(self.values))
                timeline = result.timeline.to_csv(index=False)
                order, summary = write_order(result.plan), result.summary
        except HybridDesError as error:
            return [f"{ALGORITHM}{error}"]
        except OutOfTimeError:
            return ["slow"]
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return [f"traceback: {type(error).__name__} in {Path(place.filename).name} {place.name}"]
        return differences(self.values, order, timeline, summary)


def refused(found: Sequence[str]) -> bool:
    """Whether an algorithm does not take the groups of a scenario, which is no failure."""
    return bool(found) and found[0].startswith(tuple(ALGORITHM + name for name in MAY_REFUSE))


def gist(difference: str) -> str:
    """A difference without its numbers, so that those of one kind read alike."""
    return re.sub(r"-?\d[\d./e+-]*", "…", difference)[:90]
