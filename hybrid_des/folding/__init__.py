"""Exact folding: ranks that do the same at the same time are simulated once.

    replicas       0   1   2   3   4   5   6   7        k = 2: two are simulated, each for four
    picture        0   1   0   1   0   1   0   1        image g of replica r is (r + g·k) mod 8, or r xor g·k

A message to a rank that is not simulated goes to its picture, over links that stand for all of their images. That is
exact if every image of a route is a route of the same links, and if no outcome depends on an order that the images do
not share: `orbits` is the group of images, `courses` checks routes, and `lineage_mailboxes` and `lineage_flows` find
orders that are not shared, by the lineage of events (`engine.lineage`).
"""

from hybrid_des.errors import Refusal


class FoldRefusal(Refusal):
    """Ranks cannot be folded on each other; the message names what tells them apart."""


class UnwieldyError(Refusal):
    """More would have to be simulated than can be; the message says of what."""
