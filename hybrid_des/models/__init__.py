"""Networks as lists of layers: published ones by name, and kinds of networks to build others.

What a user-defined kind needs is importable from here:

    from hybrid_des.models import Elementwise, Gemm, Kept, Layer, Model, Parameters
    from hybrid_des.models.kinds import kind

Nothing here knows times: a layer states its operations, parameters and activations per token, and what divides them.
"""

from hybrid_des.models.layer import Attention, Elementwise, Gemm, Kept, Kernel, Layer, Model, Parameters, Part, layer_of

__all__ = ["Attention", "Elementwise", "Gemm", "Kept", "Kernel", "Layer", "Model", "Parameters", "Part", "layer_of"]
