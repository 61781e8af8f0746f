"""A small model on eight ranks that share its experts, which are wanted unequally."""

from hybrid_des import load

MIXTURE = {
    "kind": "transformer", "layers": 3, "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 512, "sequence": 512,
    "experts": {"count": 16, "active": 2, "ffn": 512, "dense_layers": 1},
}  # fmt: skip


def scenario_with(experts, **sections):
    """The scenario with this section `experts`, and these in place of its own."""
    return load({
        "model": MIXTURE, "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 4},
        "parallel": {"data": 8, "expert": 8}, "schedule": {"kind": "1f1b", "microbatches": 2}, "experts": experts,
        **sections,
    })  # fmt: skip
