"""How a scenario adds gradients up over replicas: by which algorithm, in which buckets, when."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from hybrid_des import collectives
from hybrid_des.options import Flag, SharedOptions, choice
from hybrid_des.scenario.plugins import Chosen, Plugins, PluginSection
from hybrid_des.scenario.values import AlgorithmName, BucketSize, CodecName

RING = "ring"


class Gradients(PluginSection):
    """How gradients are added up over replicas."""

    plugins: ClassVar[Plugins] = Plugins(
        "algorithm",
        collectives.all_reduce_names,
        collectives.find,
        RING,
        {collectives.AUTO: Chosen(collectives.AUTO, SharedOptions)},
    )
    algorithm: AlgorithmName = RING
    """The all-reduce; auto: the quickest here, found by simulating each once."""
    codec: CodecName = "fp32"
    """What travels."""
    bucket: BucketSize = None
    """Size of the parts that are reduced together; none: one for each stage. Default none, or what the rule has."""
    bucket_rule: Annotated[Literal["stage", "ddp", "megatron"], choice("stage", "ddp", "megatron")] = "stage"
    """stage: buckets leave when the op that fills them is done; ddp, megatron: while it runs, as each does there.

    By default ddp has buckets of 25 MiB, megatron of 40 million gradients, or a million a replica if that is more."""
    overlap: Flag = False
    """Whether a bucket is reduced as soon as its last weight gradient is there."""
    error_feedback: Flag = False
    """With numerics: whether what a lossy codec loses is kept and sent in the next step."""
