"""Kinds of networks, one per file: a registered function from options to a `Model`.

    class Perceptron(Options):
        widths: Widths

    @kind("perceptron", summary="…", options=Perceptron)
    def perceptron(options: Perceptron) -> Model: ...

Options extend a scenario's `model:`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from hybrid_des.errors import OptionRefusal, UsageError, unknown
from hybrid_des.options import Options
from hybrid_des.registry import Registry
from hybrid_des.workload.models.layer import Model

DEFAULT = "transformer"

Builder = Callable[..., Model]  # ([options]) → model; raises `ModelRefusal`
_REGISTRY: Registry[Builder] = Registry("kind of model", "hybrid_des.workload.models.kinds", returns=Model)

names = _REGISTRY.names
find = _REGISTRY.__getitem__


class ModelRefusal(OptionRefusal):
    """An option of a model does not fit the others; `option` is its path."""


def kind(
    name: str, *, summary: str, options: type[Options] | None = None, framework: str | None = None
) -> Callable[[Builder], Builder]:
    """Register a kind of network.

    Args:
        name: value of a scenario's `model.kind`.
        summary: one-line description.
        options: class of its options; an instance is the only argument of the function.
        framework: `megatron` or `pytorch`, whose defaults for gradients it has; `options.written` may say another.
    """
    return _REGISTRY(name, options, summary=summary, framework=framework)


def make_model(name: str, options: Options | Mapping[str, Any] | None = None) -> Model:
    """The model of a kind; options are an instance of its class, or values by name.

    Raises:
        UsageError: there is no such kind, or an option is unknown or invalid.
        ModelRefusal: the options do not fit each other.
    """
    entry = find(name)
    for key in options if isinstance(options, Mapping) else ():
        if key not in entry.keys:
            raise UsageError(f"{name}: {unknown(key, entry.keys)}")
    return entry.build(*entry.arguments(options))
