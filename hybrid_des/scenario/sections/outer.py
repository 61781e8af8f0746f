"""The exchange between groups of replicas that seldom exchange, as `gradients.outer` has it."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

from hybrid_des.collectives.registration import AUTO
from hybrid_des.options import MOST, Count, Number, Reads, Section, whole
from hybrid_des.scenario.sections.values import AlgorithmName, CodecName, share

Share = Annotated[Fraction, share()]


def _steps(value: object) -> int:
    """Read a number of steps such as 5, or "5 steps"."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d{1,7})\s*steps?\s*", value)):
        return int(match[1])
    return int(whole(0, MOST).read(value))


STEPS = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\s*\d+\s*steps?\s*$"}]}
Steps = Annotated[int, Reads(_steps, STEPS)]


class Outer(Section):
    """The exchange between groups of replicas that otherwise train by themselves (local SGD, DiLoCo).

    Every group's change since the last exchange is averaged over all groups, and an outer optimizer applies the mean:
    Douillard et al., arXiv 2311.08105; by fragments and overlapped with inner steps: arXiv 2501.18512.
    """

    groups: Count | None = None
    """Groups of replicas, each with weights of its own. Default: one per site or, without sites, per replica."""
    algorithm: AlgorithmName = AUTO
    """The all-reduce over all replicas; auto: the fastest on this cluster, or a ring where trying all is too large."""
    codec: CodecName = "fp32"
    """How the changes are encoded in messages."""
    fragments: Count = 1
    """Parts of the model that are exchanged one after the other, evenly over the steps between two exchanges."""
    overlap: Steps = 0
    """Inner steps that an exchange may take before the next one waits for it: 5, or `5 steps`."""
    learning_rate: Number = Fraction(7, 10)
    """With numerics: that of the outer optimizer, SGD with Nesterov momentum."""
    momentum: Share = Fraction(9, 10)
    """With numerics: its momentum."""
    mixing: Share = Fraction(1, 2)
    """With numerics and `overlap`: share of its own weights that a group keeps when an exchange arrives."""
