"""The `gradients` section of a scenario: how gradients are reduced over replicas."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from hybrid_des import collectives
from hybrid_des.options import Flag, SharedOptions, choice
from hybrid_des.scenario.plugins import Chosen, Plugins, PluginSection
from hybrid_des.scenario.values import AlgorithmName, BucketSize, CodecName

RING = "ring"


class Gradients(PluginSection):
    """How gradients are reduced over replicas."""

    plugins: ClassVar[Plugins] = Plugins(
        "algorithm",
        collectives.all_reduce_names,
        collectives.find,
        RING,
        {collectives.AUTO: Chosen(collectives.AUTO, SharedOptions)},
    )
    algorithm: AlgorithmName = RING
    """The all-reduce algorithm; auto: the fastest on this cluster, found by simulating each one once."""
    codec: CodecName = "fp32"
    """How gradients are encoded in messages."""
    bucket: BucketSize = None
    """Bucket size; none: one bucket per stage. Default none, or that of the bucket rule."""
    bucket_rule: Annotated[Literal["stage", "ddp", "megatron"], choice("stage", "ddp", "megatron")] = "stage"
    """stage: buckets are sent when the op that fills them ends; ddp, megatron: during the op, as in that framework.

    Default sizes: ddp 25 MiB; megatron 40 million gradients, or one million per replica if that is more."""
    overlap: Flag = False
    """Whether a bucket is reduced as soon as its last weight gradient is ready."""
    error_feedback: Flag = False
    """With numerics: whether the error of a lossy codec is kept and sent in the next step."""
