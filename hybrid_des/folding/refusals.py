"""Exact folding: ranks that do the same at the same time are simulated once.

    replicas         0   1   2   3   4   5   6   7      k = 2: two are simulated, each for four
    representative   0   1   0   1   0   1   0   1      image g of replica r is (r + g·k) mod 8, or r xor g·k

A message to a rank that is not simulated goes to its representative, the simulated rank that stands for it, over links
that stand for all of their images. That is exact if every image of a route is a route over the images of its links, and
if no outcome depends on an order that the images do not share: `symmetry` is the group of images, `folded_transport`
checks routes and, with `lineage_mailboxes`, finds orders that are not shared, by the lineage of events.
"""

from hybrid_des.errors import Refusal


class FoldRefusal(Refusal):
    """Ranks cannot be folded onto each other; the message names the difference."""


class TooManyMessagesError(Refusal):
    """The simulation would be too large; the message says in what respect."""


class DisturbedError(Exception):
    """Collectives cannot be taken at once; the message says why."""


class TieError(Exception):
    """Two messages reach a link in the same moment."""
