"""No packing: documents become micro-batches in the order given, a fixed number at a time.

documents       0 1 2 3 4 5 6 7          2 replicas, 2 samples per micro-batch
replica 0       [0 1]     [4 5]
replica 1           [2 3]     [6 7]
"""

from collections.abc import Sequence

from hybrid_des.workload.packing.registration import NONE, Packing, PackRequest, packer


@packer(NONE, summary="as many documents per micro-batch as it has samples", each=lambda request: request.samples)
def none(lengths: Sequence[int], request: PackRequest) -> Packing:
    """Successive documents, dealt to the replicas in turn."""
    return dealt(len(lengths), request.samples, request.replicas)


def dealt(documents: int, each: int, replicas: int) -> Packing:
    """Successive documents, `each` of them at a time, dealt to the replicas in turn."""
    starts = range(0, documents, each)
    return [[range(start, start + each) for start in starts[replica::replicas]] for replica in range(replicas)]
