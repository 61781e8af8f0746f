"""What an op, a chunk, a direction and idle time look like and are called: one rule for every picture of a schedule.

    colour    by kind of op (`ACTIVITIES`) or by cause of idle time (`CAUSES`)
    shade     by chunk, from dark to light; the two directions of a two-way pipeline are its two chunks
    text      the micro-batch, of a fused pair both (`3+5`); in all ops of a picture or in none

Matplotlib, the script of pages and the live page draw what is said here; pages get it as data. Colours of ops are the
colour-blind-safe palette of Okabe and Ito (https://jfly.uni-koeln.de/color/); those of idle time are translucent, and
the pipeline bubble is grey. On pages, idle time is also hatched by its cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.analysis import idle
from hybrid_des.cluster.purposes import ACTIVATION, CONTEXT, PARAMETERS, PURPOSES, REDUCTION, TENSOR

if TYPE_CHECKING:
    from hybrid_des.pipeline.plan import Plan

BLACK, WHITE = "#000000", "#FFFFFF"
LIGHTEST = 0.55  # share of white in the shade of the last chunk
OPACITY = "80"  # of idle time, from 00 to FF
MESSAGE = "pipeline message: "  # begins the names of parts of the wait for one
BUBBLE = "bubble"


class Activity(NamedTuple):
    """One kind of activity of a GPU: label in legends, letter in text output, colour of its bars on white."""

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
    "exchange": Activity("collectives inside ops", "≈", TENSOR.colour),
    "idle": Activity("idle", "·", WHITE),
}


class Cause(NamedTuple):
    """A cause of idle time: its label, its colour without `OPACITY`, and one of `HATCHES`, as in Matplotlib."""

    label: str
    colour: str
    hatch: str = ""


HATCHES = ("", "/", "//", "\\", "-", "|", "+", "x", ".", "o")  # tell causes apart in print and to the colour-blind
OF_PURPOSES = {ACTIVATION.cause: "-", REDUCTION.cause: "|", PARAMETERS.cause: "+"}  # others: "x"

_WARM_UP, _DEPENDENCY, _DRAIN = (
    Cause(f"{BUBBLE}: {phase}", *look)
    for phase, look in (
        (idle.WARM_UP, ("#C4C4C4", "/")), (idle.DEPENDENCY, ("#8A8A8A", "")), (idle.DRAIN, ("#66789C", "\\"))
    )
)  # fmt: skip
_BARRIER, _REPLICA = Cause(idle.BARRIER, "#F0E442", "o"), Cause(idle.REPLICA, "#AA4499", "//")
CAUSES = {  # by the names of `analysis.idle`: causes, phases of the pipeline, and reasons
    **{
        purpose.cause: Cause(
            purpose.cause.replace("_", " "), purpose.colour, OF_PURPOSES.get(purpose.cause, "x")
        )
        for purpose in PURPOSES
    },
    ACTIVATION.cause: Cause("waiting for a pipeline message", ACTIVATION.colour, "-"),
    CONTEXT.cause: Cause("waiting for the document's other ranks", CONTEXT.colour, "x"),
    idle.DEPENDENCY: Cause(BUBBLE, _DEPENDENCY.colour),  # all phases together
    idle.WARM_UP: _WARM_UP, idle.STEADY: _DEPENDENCY, idle.DRAIN: _DRAIN,
    "slower_replica": _REPLICA, idle.REPLICA: _REPLICA, idle.END_OF_STEP: _BARRIER, idle.BARRIER: _BARRIER,
    idle.TRANSFER: Cause(idle.TRANSFER, ACTIVATION.colour, "-"), idle.LATENCY: Cause(idle.LATENCY, "#44AA99", "+"),
    idle.QUEUEING: Cause(idle.QUEUEING, "#CC6677", "x"), idle.OTHERS: Cause(idle.OTHERS, "#117733", "|"),
    idle.HOST: Cause(idle.HOST, "#DDCC77", "."),
}  # fmt: skip


def cause_name(cause: str) -> str:
    """A cause of idle time, or a part of the wait for a message, in words; others as they are."""
    if cause.startswith(MESSAGE):
        return cause
    return CAUSES[cause].label if cause in CAUSES else cause.replace("_", " ")


def cause_colour(cause: str) -> str:
    """The colour of a cause of idle time as #RRGGBBAA."""
    return CAUSES[cause.removeprefix(MESSAGE)].colour + OPACITY


def hatch(cause: str) -> str:
    """The hatch of a cause of idle time, by its name or by its label."""
    known = CAUSES.get(cause.removeprefix(MESSAGE))
    return known.hatch if known else next((one.hatch for one in CAUSES.values() if one.label == cause), "")


def idle_label(cause: str) -> str:
    """A cause of idle time in a legend beside those of ops."""
    name = cause_name(cause)
    return name if name.startswith(BUBBLE) else f"idle: {name}"


def shades(colour: str, parts: int) -> list[str]:
    """The colour #RRGGBB itself for the first chunk, and lighter shades for later ones."""
    channels = _channels(colour)
    colours = []
    for part in range(parts):
        light = LIGHTEST * part / max(parts - 1, 1)
        colours.append("#" + "".join(f"{round(one + (255 - one) * light):02X}" for one in channels))
    return colours


def ink(colour: str) -> str:
    """The colour of text on a colour #RRGGBB: white if its luminance (ITU-R BT.601) is below a half, else black."""
    red, green, blue = _channels(colour)
    return WHITE if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 * 255 else BLACK


def number(microbatch: int, second: int) -> str:
    """The text in a bar: the micro-batch, of a fused pair also that of its backward; empty for other bars."""
    return "" if microbatch < 0 else f"{microbatch}" if second < 0 else f"{microbatch}+{second}"


def chunk_label(chunks: int, two_way: bool) -> str:
    """What the shades from dark to light stand for; empty if there is only one."""
    if chunks < 2:
        return ""
    if two_way:
        return "from the first rank, from the last rank"
    return f"chunks 0 to {chunks - 1}, dark to light"


def is_two_way(plan: Plan) -> bool:
    """Whether micro-batches pass the ranks in both directions, each in a chunk of its own, as in DualPipe."""
    ways = [[rank for rank, _ in path] for path in plan.paths]
    held = [{chunk for _, chunk in path} for path in plan.paths]
    return len(ways) == 2 and ways[0] == ways[1][::-1] and len(held[0]) == len(held[1]) == 1 and held[0] != held[1]


def key(kinds: Sequence[tuple[str, str]], chunks: int, two_way: bool) -> list[tuple[str, list[str]]]:
    """The legend: label and colours of each kind of bar drawn, and the shades of chunks on the first kind.

    Args:
        kinds: label and colour #RRGGBB, in the order of the legend.
        chunks: that are told apart by shades.
        two_way: whether they are directions.
    """
    entries = [(label, [colour]) for label, colour in kinds]
    if kinds and (label := chunk_label(chunks, two_way)):
        entries.append((label, shades(kinds[0][1], chunks)))
    return entries


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
