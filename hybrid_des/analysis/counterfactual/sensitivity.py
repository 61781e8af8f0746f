"""How the step shrinks as one class gets quicker, simulated at several speeds (causal profiling, Coz, SOSP 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from hybrid_des.analysis.counterfactual.change_text import of_kind, of_ranks
from hybrid_des.analysis.counterfactual.ladder import Gain, link_kind
from hybrid_des.analysis.counterfactual.variant import Variant, name_of_place, ranks_at, scaled_ops
from hybrid_des.simulation.run import Run

QUICKER = (Fraction(1, 2), Fraction(1, 4), Fraction(3, 4), Fraction(1, 8))  # saved shares of its time, by priority
EACH = 2  # classes of each sort
EVENTS = 4_000_000  # approximate total over all simulations


class Curve(NamedTuple):
    """A class, and the end of the run with it quicker: (share of its time saved, picoseconds), from (0, as it is)."""

    name: str
    points: Sequence[tuple[float, int]]


def curves(base: Run, gains: Sequence[Gain]) -> list[Curve]:
    """The classes that gain the most of each sort: pipeline ranks, kinds of ops, kinds of links."""
    helping = [gain for gain in gains if gain.duration < base.timeline.duration]
    chosen = [gain for sort in ("rank", "kind", "link") for gain in [one for one in helping if one.sort == sort][:EACH]]
    points = max(1, min(len(QUICKER), EVENTS // max(base.events, 1) // max(len(chosen), 1)))
    found = []
    for gain in chosen:
        ends = [(float(share), _with(base, gain, share).simulated().duration) for share in QUICKER[:points]]
        noun = {"rank": gain.name, "kind": f"{gain.name} ops", "link": f"{gain.name} links"}[gain.sort]
        found.append(Curve(noun, sorted([(0.0, base.timeline.duration), *ends])))
    return found


def _with(base: Run, gain: Gain, share: Fraction) -> Variant:
    """The run with a class quicker by a share of its time."""
    at, left = Variant.of(base), 1 - share
    if gain.sort == "kind":
        return at.with_retime(scaled_ops(left, of_kind(gain.name)))
    if gain.sort == "link":
        assert at.fabric is not None
        return at.with_links({name: 1 / left for name in at.fabric.links if link_kind(name) == gain.name})
    places = range(base.timeline.layout.sizes["pipeline"])
    place = next(place for place in places if name_of_place(at, place) == gain.name)
    return at.with_retime(scaled_ops(left, of_ranks(ranks_at(at, place))))
