"""Codecs: how the elements of gradients are encoded in messages."""

from hybrid_des.collectives.codecs.floats import Bf16, Fp16, Fp32, Fp64
from hybrid_des.collectives.codecs.registration import (
    Array,
    Codec,
    Payload,
    Rounded,
    codec,
    describe_type,
    find,
    names,
    narrow,
    require,
)
from hybrid_des.collectives.codecs.scaled import BORDERS, LEVELS, SIGN, Fp4, Int8, Scaled
from hybrid_des.collectives.codecs.top_k import BYTES_KEPT, ONE_IN, TopK

__all__ = [
    "BORDERS",
    "BYTES_KEPT",
    "LEVELS",
    "ONE_IN",
    "SIGN",
    "Array",
    "Bf16",
    "Codec",
    "Fp4",
    "Fp16",
    "Fp32",
    "Fp64",
    "Int8",
    "Payload",
    "Rounded",
    "Scaled",
    "TopK",
    "codec",
    "describe_type",
    "find",
    "names",
    "narrow",
    "require",
]  # fmt: skip
