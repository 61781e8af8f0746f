"""How each activity of a GPU is shown: one label, letter and colour for the terminal, pictures and legends.

Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), which people with any kind of colour vision tell apart.
"""

from __future__ import annotations

from typing import NamedTuple

from hybrid_des.network.purpose import REDUCTION

BLACK = "#000000"


class Activity(NamedTuple):
    """One kind of activity.

    Attributes:
        label: what legends call it.
        letter: what stands for it where there are only characters.
        colour: of its bars, on white.
    """

    label: str
    letter: str
    colour: str


ACTIVITIES = {  # ops by `timeline.OP_KINDS`
    "F": Activity("forward", "F", "#0072B2"),
    "B": Activity("backward", "B", "#E69F00"),
    "W": Activity("weight gradient", "W", "#009E73"),
    "FB": Activity("forward with backward", "X", "#CC79A7"),
    "optimizer": Activity("optimizer", "o", BLACK),
    "reduction": Activity(REDUCTION.label, "~", REDUCTION.colour),
    "idle": Activity("idle", "·", "#FFFFFF"),
}
