"""Codecs: how the elements of gradients are encoded in messages."""

from hybrid_des.collectives.codecs.registration import (
    Array,
    Codec,
    Payload,
    Rounded,
    codec,
    find,
    names,
    narrow,
    require,
)

__all__ = ["Array", "Codec", "Payload", "Rounded", "codec", "find", "names", "narrow", "require"]
