"""The `background` section: traffic of no job on the links of the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from hybrid_des.options import Bytes, Reads, Section, Time, describe, quantity_schema, read_positive
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.cluster import Cluster

_END = re.compile(r"(node|gpu)(0|[1-9]\d{0,7})")


def _end(value: Any) -> str:
    if not isinstance(value, str) or not _END.fullmatch(value):
        raise ValueError(f"expected a node or GPU such as node3 or gpu12, found {describe(value)}")
    return value


End = Annotated[str, Reads(_end, {"type": "string", "pattern": f"^{_END.pattern}$"})]
FlowRate = Annotated[
    Fraction, Reads(lambda value: read_positive(value, "bandwidth"), quantity_schema("bandwidth"))
]  # bytes per second


class Background(Section):
    """A flow of bytes beside the training, such as storage traffic or another user's."""

    from_: End = Field(alias="from")
    """Its sender: a node, whose GPUs send equal shares, or a GPU, such as node3 or gpu12."""
    to: End
    """Its receiver; GPU i of a node sends to GPU i of the other."""
    rate: FlowRate
    """Bytes per second, at most: a message waits until the one before has arrived."""
    message: Bytes = 2**20
    """Size of its messages."""
    start: Time = Fraction(0)
    """When it begins, in simulated time."""
    until: Time | None = None
    """When it ends. Default: with the last job."""

    def pairs(self, cluster: Cluster) -> Iterator[tuple[int, int, int]]:
        """The senders and receivers, as GPUs, and the number of these pairs."""
        senders, receivers = _gpus(self.from_, cluster), _gpus(self.to, cluster)
        count = max(len(senders), len(receivers))
        for place in range(count):
            yield senders[place % len(senders)], receivers[place % len(receivers)], count


def _gpus(end: str, cluster: Cluster) -> Sequence[int]:
    match = _END.fullmatch(end)
    assert match is not None
    number, spec = int(match[2]), cluster.spec
    if match[1] == "gpu":
        return [number]
    first = spec.first_gpu(number)
    return range(first, first + spec.nodes[number].gpus)


def misfits_of_background(flows: Sequence[Background], cluster: Cluster) -> Iterator[Problem]:
    """Ends that the cluster does not have, and flows from a place to itself."""
    for number, flow in enumerate(flows):
        at = f"background.{number}"
        wrong = False
        for key, end in (("from", flow.from_), ("to", flow.to)):
            kind, count = ("GPU", cluster.gpus) if end.startswith("gpu") else ("node", len(cluster.spec.nodes))
            if int(end[3 if kind == "GPU" else 4 :]) >= count:
                wrong = True
                yield misfit(f"there is no {end}; the cluster has {count} {kind}s", f"{at}.{key}", "cluster")
        if not wrong and any(sender == receiver for sender, receiver, _ in flow.pairs(cluster)):
            yield misfit(f"{flow.from_} would send to itself", f"{at}.to", f"{at}.from")
        if flow.message == 0:
            yield misfit("a flow needs messages of at least one byte", f"{at}.message")
        if flow.until is not None and flow.until <= flow.start:
            yield misfit("ends before it starts", f"{at}.until", f"{at}.start")
