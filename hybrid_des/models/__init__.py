"""Networks as lists of layers: published ones by name, and kinds of networks to build others.

The names that a user-defined kind needs:

    from hybrid_des.models import Elementwise, Gemm, Kept, Layer, Model, Parameters
    from hybrid_des.models.kinds import kind

Nothing here depends on time: a layer states its operations, parameters and activations per token, and how they divide.
"""

from hybrid_des.models.layer import Attention, Elementwise, Gemm, Kept, Kernel, Layer, Model, Parameters, Part, layer_of

__all__ = ["Attention", "Elementwise", "Gemm", "Kept", "Kernel", "Layer", "Model", "Parameters", "Part", "layer_of"]
