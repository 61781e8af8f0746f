"""A micro-batch per document, in the order given."""

from collections.abc import Sequence

from hybrid_des.workload.packing.none import dealt
from hybrid_des.workload.packing.registration import Packing, PackRequest, packer


@packer("per-document", summary="one document per micro-batch", each=lambda request: 1)
def per_document(lengths: Sequence[int], request: PackRequest) -> Packing:
    """Successive documents, dealt to the replicas in turn."""
    return dealt(len(lengths), 1, request.replicas)
