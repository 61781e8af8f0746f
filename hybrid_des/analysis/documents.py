"""The documents of a run: how many, how they fill micro-batches, and how much replicas differ.

fill          tokens of documents over those of the longest micro-batch, mean over micro-batches
squares       Σ lengths² of a replica over the mean of all: attention goes with it

Where context ranks hold different documents, each counts as a replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cost_model.documents import PackedSteps, packed_steps
from hybrid_des.scenario.definition import Scenario

Amounts = NDArray[np.int64]  # step × replica × micro-batch, of all that hold different documents


class PackedAmounts(NamedTuple):
    """What micro-batches hold on the ranks of a replica.

    Attributes:
        tokens, squares: step × replica × micro-batch: over the replica's context ranks.
        longest: the longest document among them.
    """

    tokens: Amounts
    squares: Amounts
    longest: Amounts


def amounts_of(packed: PackedSteps) -> PackedAmounts:
    """The amounts of every micro-batch; of a document that several replicas share, each has its part."""
    replicas = packed.lanes // packed.context
    shape = len(packed.steps), replicas, packed.microbatches
    tokens, squares, longest = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    each = packed.lanes // replicas
    for step, microbatch, lane in product(*map(range, (len(packed.steps), packed.microbatches, packed.lanes))):
        at, load = (step, lane // each, microbatch), packed.load(step, microbatch, lane)
        tokens[at] += load.tokens // load.ranks
        squares[at] += load.squares // load.ranks
        longest[at] = max(longest[at], load.lengths[0] if load.lengths else 0)
    return PackedAmounts(tokens, squares, longest)


def document_figures(scenario: Scenario) -> Mapping[str, Any]:
    """The figures of the documents by their public keys; empty without `data`."""
    packed = packed_steps(scenario)
    if packed is None:
        return {}
    amounts, steps = amounts_of(packed), len(packed.steps)
    lengths = np.array([length for step in packed.steps for length in step.lengths])
    each = amounts.tokens[amounts.tokens > 0]
    of_replicas = amounts.squares.sum(axis=2)
    return {
        "documents": len(lengths) / steps,
        "tokens": packed.tokens / steps,
        "truncated": sum(step.truncated for step in packed.steps) / steps,
        "length": {"min": int(lengths.min()), "mean": float(lengths.mean()), "max": int(lengths.max())},
        "microbatches": packed.microbatches,
        "microbatch_tokens": {"min": int(each.min()), "mean": float(each.mean()), "max": int(each.max())},
        "padding": 1 - packed.tokens / int(each.sum()),
        "replica_squares_ratio": float((of_replicas.max(axis=1) / of_replicas.mean(axis=1)).mean()),
    }
