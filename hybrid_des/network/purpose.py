"""What messages are for: one entry for each purpose, so that nobody compares names.

A purpose more is an entry more; pictures, counters and causes of idling follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Purpose:
    """A purpose of messages.

    Attributes:
        name: as the timeline writes it, unless a collective's own name stands there.
        label: what legends call it.
        colour: of its share of a link's lane, from Okabe and Ito's palette.
        cause: the cause of idling that waiting for it counts as, a key of the summary's `idle_s`.
        counter: the summary's key that counts its bytes.
        usual: whether summaries and legends name it also in runs without it.
    """

    name: str
    label: str
    colour: str
    cause: str
    counter: str
    usual: bool = True

    def __reduce__(self) -> tuple[Callable[[str], Purpose], tuple[str]]:
        """Stay the one entry of the table when copied or sent to another process."""
        return purpose_named, (self.name,)


ACTIVATION = Purpose("activation", "pipeline messages", "#0072B2", "pipeline_message", "bytes_pipeline")
GRADIENT = Purpose("gradient", "pipeline messages", "#0072B2", "pipeline_message", "bytes_pipeline")
REDUCTION = Purpose("reduction", "gradient reduction", "#D55E00", "gradient_reduction", "bytes_gradients")
PARAMETERS = Purpose("parameters", "parameter gather", "#009E73", "parameter_gather", "bytes_parameters", usual=False)
TENSOR = Purpose("tensor", "tensor ranks", "#CC79A7", "tensor_collective", "bytes_tensor", usual=False)
CONTEXT = Purpose("context", "context ranks", "#56B4E9", "context_collective", "bytes_context", usual=False)
EXPERT = Purpose("expert", "expert ranks", "#E69F00", "expert_collective", "bytes_expert", usual=False)

PURPOSES = (ACTIVATION, GRADIENT, REDUCTION, PARAMETERS, TENSOR, CONTEXT, EXPERT)
OF_LAYERS = {purpose.name: purpose for purpose in (TENSOR, CONTEXT, EXPERT)}  # by axis; inside ops, so never idle time


def purpose_named(name: str) -> Purpose:
    """Look a purpose up by its name."""
    return next(purpose for purpose in PURPOSES if purpose.name == name)
