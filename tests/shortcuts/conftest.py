"""What tests of collectives that are taken alone have in common."""

from collections import Counter

import pytest

from hybrid_des.shortcuts.collectives_alone import AroundRings, OfLayers


@pytest.fixture
def seen(monkeypatch):
    """How many collectives were taken, and how many of them were simulated alone."""
    counts = Counter()
    for kind in (OfLayers, AroundRings):
        for name, event in (("_outcome", "taken"), ("_alone", "alone")):
            method = getattr(kind, name)

            def counted(self, method=method, event=event):
                counts[event] += 1
                return method(self)

            monkeypatch.setattr(kind, name, counted)
    return counts
