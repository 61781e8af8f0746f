"""Networks as lists of layers: published ones by name, and kinds of networks to build others."""

from hybrid_des.workload.models.catalogue import expanded, merged, model, names
from hybrid_des.workload.models.layer import (
    Attention,
    Elementwise,
    Gemm,
    Kept,
    Kernel,
    Layer,
    Model,
    Parameters,
    Part,
    layer_of,
)

__all__ = [
    "Attention", "Elementwise", "Gemm", "Kept", "Kernel", "Layer", "Model", "Parameters", "Part", "expanded",
    "layer_of", "merged", "model", "names",
]  # fmt: skip
