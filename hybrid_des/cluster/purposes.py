"""The purposes of messages: one entry per purpose, so that no code compares names.

To add a purpose, add an entry; plots, counters and causes of idle time follow from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Purpose:
    """A purpose of messages.

    Attributes:
        name: its name in the timeline, unless a collective's own name is used there.
        label: its name in legends.
        colour: in pictures; no kind of op has it, and all remain distinct to colour-blind readers.
        cause: the cause of idle time that waiting for it counts as, a key of the summary's `idle_s`.
        counter: the summary's key that counts its bytes.
        usual: whether summaries and legends list it even in runs without it.
    """

    name: str
    label: str
    colour: str
    cause: str
    counter: str
    usual: bool = True

    @property
    def key(self) -> str:
        """Its name in `cluster.priorities`; activations and their gradients have one."""
        return self.counter.removeprefix("bytes_")

    def __reduce__(self) -> tuple[Callable[[str], Purpose], tuple[str]]:
        """Remain the table's one entry when copied or sent to another process."""
        return purpose_named, (self.name,)


ACTIVATION = Purpose("activation", "pipeline messages", "#56B4E9", "pipeline_message", "bytes_pipeline")


GRADIENT = Purpose("gradient", "pipeline messages", "#56B4E9", "pipeline_message", "bytes_pipeline")


REDUCTION = Purpose("reduction", "gradient reduction", "#D55E00", "gradient_reduction", "bytes_gradients")


PARAMETERS = Purpose("parameters", "parameter gather", "#999933", "parameter_gather", "bytes_parameters", usual=False)


TENSOR = Purpose("tensor", "tensor ranks", "#882255", "tensor_collective", "bytes_tensor", usual=False)


CONTEXT = Purpose("context", "context ranks", "#BBBB88", "context_collective", "bytes_context", usual=False)


EXPERT = Purpose("expert", "expert ranks", "#8C510A", "expert_collective", "bytes_expert", usual=False)


BACKGROUND = Purpose("background", "background traffic", "#555555", "", "", usual=False)  # no job's


PURPOSES = (ACTIVATION, GRADIENT, REDUCTION, PARAMETERS, TENSOR, CONTEXT, EXPERT)


# by axis; inside ops, so never idle time, but for ranks that share documents for a while and meet before ops
OF_LAYERS = {purpose.name: purpose for purpose in (TENSOR, CONTEXT, EXPERT)}


def purpose_named(name: str) -> Purpose:
    """Look a purpose up by its name."""
    return next(purpose for purpose in (*PURPOSES, BACKGROUND) if purpose.name == name)
