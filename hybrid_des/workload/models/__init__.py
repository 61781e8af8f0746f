"""Networks as lists of layers: published ones by name, and kinds of networks to build others."""

from hybrid_des.workload.models.amounts import Kept, Parameters
from hybrid_des.workload.models.catalogue import expanded, merged, model, names
from hybrid_des.workload.models.layer import Layer, Model, Part, layer_of
from hybrid_des.workload.models.operations import Attention, Elementwise, Gemm, Kernel

__all__ = [
    "Attention", "Elementwise", "Gemm", "Kept", "Kernel", "Layer", "Model", "Parameters", "Part", "expanded",
    "layer_of", "merged", "model", "names",
]  # fmt: skip
