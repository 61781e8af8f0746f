"""Frozen weights and adapters: what fine-tuning leaves out of a backward, and what it adds.

    trained   forward 2·n·k, gradients of input and of weights 2·n·k each       14 bytes and more per parameter
    frozen    forward and gradient of the input: 2/3 of the FLOP                 2 bytes: no gradient, copy or moments
    adapter   beside an n × k product, k ─► rank ─► n, trained (LoRA, Hu et al., arXiv 2106.09685)

The input of a frozen product is not kept, unless an adapter reads it or something else of the layer needs it
(`Gemm.keeps`). The backward ends at the first layer that trains: layers before it run forwards only. With zero-3,
frozen weights are gathered as others are. Nothing of them is reduced. An adapter's products are thin, so that memory
and their launches decide; tensor ranks divide the one beside the divided side of the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from hybrid_des.errors import unknown
from hybrid_des.options import Count, Reads, Section, describe, whole
from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.kinds.registration import ModelRefusal
from hybrid_des.workload.models.layer import OFFLOADED, Layer, Model, Module
from hybrid_des.workload.models.operations import Gemm, Kernel, Operation

ALL = "all"
JOINED = "queries, keys, values"
PRODUCTS = {  # what an adapter may be beside, and its products by name; of a joined product the first names it
    "queries": (JOINED, "queries", "queries up"),
    "keys": (JOINED, "keys", "keys and values up"),
    "values": (JOINED, "values", "keys and values up"),
    "output": ("attention output",),
    "up": ("MLP up", "MLP gate", "shared MLP up", "shared MLP gate"),
    "down": ("MLP down", "shared MLP down"),
}


def _places(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(f"expected a list of {', '.join(PRODUCTS)}, found {describe(value)}")
    for name in names:
        if name not in PRODUCTS:
            raise ValueError(unknown(str(name), list(PRODUCTS)))
    return tuple(dict.fromkeys(names))


def _frozen(value: Any) -> str | int:
    if value == ALL:
        return ALL
    if isinstance(value, str):
        raise ValueError(f"expected all, or a number of blocks, found {describe(value)}")
    count: int = whole(1, 2**14).read(value)
    return count


Frozen = Annotated[str | int, Reads(_frozen, {"anyOf": [{"const": ALL}, {"type": "integer", "minimum": 1}]})]
Places = Annotated[tuple[str, ...], Reads(_places, {"type": "array", "items": {"enum": list(PRODUCTS)}, "minItems": 1})]


class Adapters(Section):
    """Low-rank adapters beside frozen products (LoRA)."""

    rank: Count
    """Length of the vector between both products of an adapter."""
    on: Places = ("queries", "keys", "values", "output")
    """The products that have one: queries, keys, values, output, up, down."""


def fine_tuned(model: Model, frozen: str | int | None, adapters: Adapters | None) -> Model:
    """The model whose first blocks, or all layers, are frozen but for adapters.

    Raises:
        ModelRefusal: no frozen layer has a product that an adapter should be beside.
    """
    if frozen is None:
        return model
    layers, blocks = list[Layer](), 0
    for layer in model.layers:
        blocks += layer.place == "block"
        if frozen == ALL or layer.place == "first" or (layer.place == "block" and blocks <= int(frozen)):
            layer = _without_gradients(layer, adapters)
        layers.append(layer)
    names = {one.name for layer in layers for one in layer.operations if isinstance(one, Gemm) and not one.trained}
    for product in adapters.on if adapters else ():
        if names.isdisjoint(PRODUCTS[product]):
            raise ModelRefusal(
                "adapters.on", f"{product}: no frozen layer of this model has it; LoRA of experts is not modelled"
            )
    trains = [layer.parameters != Parameters(tied=layer.parameters.tied) for layer in layers]
    first = trains.index(True) if any(trains) else len(layers)
    return replace(model, layers=tuple(replace(layer, passed=True) for layer in layers[:first]) + tuple(layers[first:]))


def forward_only(model: Model, *, logits: bool = True) -> Model:
    """The model as it runs without gradients: nothing is trained or kept; without `logits`, none are computed."""
    layers = [replace(_without_gradients(layer, None), passed=True) for layer in model.layers]
    if not logits:
        layers = [_without_logits(layer) if layer.place == "last" else layer for layer in layers]
    return replace(model, layers=tuple(layers))


def _without_logits(layer: Layer) -> Layer:
    """A layer that computes neither logits nor their loss; other operations, such as a norm, remain."""
    return replace(layer, operations=tuple(one for one in layer.operations if one.name not in ("logits", "loss")))


def _without_gradients(layer: Layer, adapters: Adapters | None) -> Layer:
    """A layer whose own weights are frozen."""
    operations, added, dropped = list[Operation](), Parameters(), dict[str, Kept]()
    kept, source = layer.kept, ""
    for operation in layer.operations:
        if isinstance(operation, Kernel):
            operation = replace(operation, weights=False)
        if not isinstance(operation, Gemm):
            operations.append(operation)
            continue
        beside = list(_beside(operation, adapters)) if adapters else []
        operations += [replace(operation, trained=False), *beside]
        if beside:
            added += Parameters(tensor=sum(thin.n * thin.k for thin in beside))
            kept += Kept(tensor=sum(ELEMENT * thin.n for thin in beside if thin.inner == "down"))
            kept += dropped.pop(source, Kept()) if operation.shares else Kept()
        elif operation.keeps:
            dropped[operation.name] = operation.input_kept()
            kept -= dropped[operation.name]
        source = source if operation.shares else operation.name
    held = layer.parameters + layer.frozen
    return replace(
        layer,
        operations=tuple(operations),
        parameters=replace(added, tied=held.tied),
        frozen=replace(held, tied=0),
        kept=kept,
        sizes=(added,) if added != Parameters() else (),
        modules=tuple(_kept_less(module, dropped) for module in layer.modules),
        offloads=tuple(_kept_less(module, dropped) for module in layer.offloads),
    )


def _beside(gemm: Gemm, adapters: Adapters) -> Iterator[Gemm]:
    """The products of the adapters of a product, both halves of each."""
    wanted = [name for name in adapters.on if gemm.name in PRODUCTS[name]]
    if not wanted:
        return
    divided = gemm.split == "columns"
    yield Gemm(f"{gemm.name}, LoRA down", adapters.rank, gemm.k, "none" if divided else gemm.split, gemm.rows,
               inner="down")  # fmt: skip
    yield Gemm(f"{gemm.name}, LoRA up", gemm.n, adapters.rank, "columns" if divided else "none", gemm.rows,
               inner="up")  # fmt: skip


def _kept_less(module: Module, dropped: dict[str, Kept]) -> Module:
    """What recomputing a module saves where inputs of some of its products are not kept anyway."""
    kept = module.kept
    inputs = {*module.unconverted} if module.name in OFFLOADED else set[str]()  # of experts' activations too
    for name in {*module.operations} | inputs:
        less = dropped.get(name, Kept())
        kept = Kept(*(max(0, mine - its) for mine, its in zip(kept.sizes, less.sizes, strict=True)))
    return module._replace(kept=kept)
