"""Kinds of networks, one per file: a registered function from options to a `Model`."""

from hybrid_des.workload.models.kinds.registration import DEFAULT, Builder, ModelRefusal, find, kind, make_model, names

__all__ = [
    "DEFAULT", "Builder", "ModelRefusal", "find", "kind", "make_model", "names",
]  # fmt: skip
