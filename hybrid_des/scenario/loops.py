"""Files with `rl`: a loop of engines, queue and trainer, whose training step is the rest of the file."""

from __future__ import annotations

from hybrid_des.scenario.strict_yaml import Document

ALONE = "rl is left out: this is the training step alone, with all samples as long as they may be"


def has_loop(document: Document) -> bool:
    """Whether a document describes a loop of reinforcement learning."""
    return isinstance(document.value, dict) and document.value.get("rl") not in (None, "none")
