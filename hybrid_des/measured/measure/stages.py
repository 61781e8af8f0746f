"""The stages of a pipeline that is measured: a user's function makes their modules.

    def stages(stage, count):                # in my_model.py; `measure my_model:stages`
        return torch.nn.Sequential(...)      # the module of stage number `stage` of `count`

The first stage gets random tensors of the given shapes, the others what the one before returns. The loss is the mean
of the last stage's output, unless the function has an attribute `loss`, called with output and target.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.errors import UsageError, one_line
from hybrid_des.measured.measure.job import Job

if TYPE_CHECKING:
    import torch

_SHAPE = re.compile(r"(\d+(?:x\d+)*)(?::(\w+))?")
LARGEST = 2**40  # elements


class Input(NamedTuple):
    """A tensor that the first stage takes per micro-batch: its sizes, and the name of its type if it is given."""

    shape: tuple[int, ...]
    dtype: str | None


def inputs_of(text: str) -> tuple[Input, ...]:
    """Read shapes such as "1x4096" or "4x128:int64,4x128x64".

    Raises:
        UsageError: it is none.
    """
    inputs = []
    for part in text.split(","):
        match = _SHAPE.fullmatch(part.strip())
        sizes = tuple(map(int, match[1].split("x"))) if match else ()
        if not match or not 0 < prod(sizes) <= LARGEST:
            raise UsageError(
                f'--shapes: "{one_line(part.strip(), 40)}"; expected sizes such as 1x4096, or 1x4096:int64 for tokens'
            )
        inputs.append(Input(sizes, match[2]))
    return tuple(inputs)


@dataclass(frozen=True)
class Modules:
    """A user's stages.

    Attributes:
        name: as given.
        make: the function of stage and count.
        inputs: what the first stage takes per micro-batch.
    """

    name: str
    make: Callable[[int, int], torch.nn.Module]
    inputs: tuple[Input, ...]

    def module(self, stage: int, count: int, job: Job) -> torch.nn.Module:
        """The module of a stage, on the device.

        Raises:
            UsageError: the function fails, or returns something else.
        """
        import torch

        try:
            module = self.make(stage, count)
        except Exception as error:  # anything that a user's function raises
            raise UsageError(f"{self.name}({stage}, {count}): {type(error).__name__}: {error}") from error
        if not isinstance(module, torch.nn.Module):
            raise UsageError(f"{self.name}({stage}, {count}): returned {type(module).__name__}; expected a Module")
        return module.to(job.device)

    @property
    def loss(self) -> Callable[[Any, Any], torch.Tensor]:
        """The loss of the last stage's output and a target."""
        own: Callable[[Any, Any], torch.Tensor] | None = getattr(self.make, "loss", None)
        return own or (lambda output, target: output.float().mean())

    def batch(self, microbatches: int, job: Job) -> Sequence[torch.Tensor]:
        """The inputs of a step, micro-batch after micro-batch."""
        return [self._tensor(tensor, microbatches, job) for tensor in self.inputs]

    def _tensor(self, tensor: Input, microbatches: int, job: Job) -> torch.Tensor:
        import torch

        dtype = _dtype_of(tensor)
        shape = (microbatches * tensor.shape[0], *tensor.shape[1:])
        if dtype.is_floating_point:
            return torch.randn(shape, dtype=dtype, device=job.device)
        return torch.randint(0, 2, shape, dtype=dtype, device=job.device)


def _dtype_of(tensor: Input) -> torch.dtype:
    """The type of an input.

    Raises:
        UsageError: there is no such type.
    """
    import torch

    dtype = getattr(torch, tensor.dtype, None) if tensor.dtype else torch.float32
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f'--shapes: unknown type "{tensor.dtype}"; expected one of PyTorch, such as int64')
    return dtype


def modules_of(name: str, shapes: str) -> Modules:
    """The function named `module:function`, looked for in the current folder too.

    Raises:
        UsageError: there is none, importing it fails, or the shapes are none.
    """
    module, colon, function = name.partition(":")
    if not (colon and module and function.isidentifier()):
        raise UsageError(f'"{one_line(name, 40)}": expected MODULE:FUNCTION, such as my_model:stages')
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        make = getattr(importlib.import_module(module), function, None)
    except Exception as error:  # anything that a user's module raises
        raise UsageError(f"{module}: cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(make):
        raise UsageError(f"{module}: has no function {function}; expected {function}(stage, count)")
    inputs = inputs_of(shapes)
    for tensor in inputs:
        _dtype_of(tensor)
    return Modules(name, make, inputs)
