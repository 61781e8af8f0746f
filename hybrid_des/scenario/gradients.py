"""How a scenario adds gradients up over replicas: by which algorithm, in which buckets, when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from hybrid_des import collectives
from hybrid_des.scenario.problem import Problem
from hybrid_des.scenario.section import MOST, Section
from hybrid_des.scenario.tables import Table
from hybrid_des.scenario.values import Bucket, Flag, choice, registered, whole

if TYPE_CHECKING:
    from hybrid_des.scenario.model import Scenario

OPTIONS = ("pieces", "servers", "servers_on", "table")


class Gradients(Section):
    """How gradients are added up over replicas."""

    algorithm: Annotated[str, registered("collectives", "algorithms")] = "ring"
    """The all-reduce; auto: the quickest here, found by simulating each once."""
    codec: Annotated[str, registered("collectives.codecs")] = "fp32"
    """What travels."""
    bucket: Bucket = None
    """Size of the parts that are reduced together; none: one for each stage. Default none, or what the rule has."""
    bucket_rule: Annotated[Literal["stage", "ddp", "megatron"], choice("stage", "ddp", "megatron")] = "stage"
    """stage: buckets leave when the op that fills them is done; ddp, megatron: while it runs, as each does there.

    By default ddp has buckets of 25 MiB, megatron of 40 million gradients, or a million a replica if that is more."""
    overlap: Flag = False
    """Whether a bucket is reduced as soon as its last weight gradient is there."""
    error_feedback: Flag = False
    """With numerics: whether what a lossy codec loses is kept and sent in the next step."""
    pieces: Annotated[int, whole(1, 4096)] | None = None
    """double-binary-tree, hierarchical, in-switch: how many pieces a bucket passes in. Default from its size."""
    servers: Annotated[int, whole(1, MOST)] | None = None
    """parameter-server: how many hold a shard. Default every rank of the group, or one on hosts of its own."""
    servers_on: Annotated[Literal["ranks", "hosts"], choice("ranks", "hosts")] | None = None
    """parameter-server: on the first ranks of the group (default), or on hosts of GPUs that no rank uses."""
    table: Table = None
    """measured: a CSV file buffer size → time, as `hybrid-des calibrate` makes; alone it stands for the algorithm."""


def gradients_problems(scenario: Scenario) -> Iterator[Problem]:
    """Options that would change nothing: for arrays where there are none, or not read by the chosen algorithm."""
    gradients = scenario.gradients
    if gradients.error_feedback and scenario.numerics is None:
        path = ("gradients", "error_feedback")
        yield Problem(path, "corrects numbers, and there are none without numerics:", (path, ("numerics",)))
    if gradients.algorithm == collectives.AUTO:
        return
    facts = collectives.find(gradients.algorithm).facts
    for option in OPTIONS:
        if getattr(gradients, option) is None:
            if option in facts["needs"]:
                path = ("gradients", option)
                yield Problem(path, f"is required by {gradients.algorithm}", (("gradients", "algorithm"),))
        elif option not in facts["options"]:
            readers = [name for name in collectives.names() if option in collectives.find(name).facts["options"]]
            path = ("gradients", option)
            message = f"is not read by {gradients.algorithm}; read by {', '.join(readers)}"
            yield Problem(path, message, (path, ("gradients", "algorithm")))
