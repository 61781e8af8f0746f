"""Layers and models: parts made of operations, with their parameters, activations, messages and routing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from hybrid_des.errors import Refusal
from hybrid_des.workload.models.amounts import ELEMENT, NO_PARAMETERS, NOTHING_KEPT, Kept, Parameters
from hybrid_des.workload.models.operations import (
    Attention,
    Elementwise,
    Gemm,
    GemmSplit,
    Kernel,
    Operation,
    Scan,
    Scores,
    SelectiveAttention,
)
from hybrid_des.workload.models.routing import Routing

Place = Literal["first", "block", "last"]

JOINING = "joining"  # the product with which a module of multi-token prediction begins


class Module(NamedTuple):
    """What the backward of a block may compute again instead of keeping it, by its name in Megatron-LM.

    Attributes:
        operations: their names.
        kept: the part of the layer's that is then not kept.
        bytes: read and written per token by operations that are part of others.
        summed: those of `operations` whose results are kept, and not computed again, where tensor ranks sum them.
        sums: the size of these results.
        gathers: whether tensor ranks gather their inputs again.
        eager: what is kept besides where every operator is a kernel of its own.
        unconverted: products whose inputs are then not kept in few bits.
        sends: whether it sends tokens to experts, and sums over tensor ranks, again.
    """

    name: str
    operations: tuple[str, ...]
    kept: Kept
    bytes: int = 0
    summed: tuple[str, ...] = ()
    sums: Kept = NOTHING_KEPT
    gathers: bool = False
    eager: Kept = NOTHING_KEPT
    unconverted: tuple[str, ...] = ()
    sends: bool = False


NO_MODULE = Module("", (), NOTHING_KEPT)
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts", "mhc")

OFFLOADED = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act", "fused_group_mlp",
)  # fmt: skip

OPS = "ops"  # every second product and what is between products, as torchtitan's selective_ac_option


@dataclass(frozen=True)
class Part:
    """A part of a layer; `transient` is as in `Layer`, and a sum of parts has the largest.

    Attributes:
        sizes: of the tensors that its parameters consist of, in the order in which they are registered; none: one.
        modules: what its backward may compute again.
        gathered: bytes per token that the forward of tensor ranks gathers beside the inputs of halves, with sequence
            parallelism: for what each of them computes of all tokens.
        offloads: the inputs of modules that the host may hold.
        eager: what is kept besides where every operator is a kernel of its own.
    """

    operations: tuple[Operation, ...] = ()
    parameters: Parameters = NO_PARAMETERS
    kept: Kept = NOTHING_KEPT
    transient: int = 0
    sizes: tuple[Parameters, ...] = ()
    modules: tuple[Module, ...] = ()
    gathered: int = 0
    offloads: tuple[Module, ...] = ()
    eager: Kept = NOTHING_KEPT

    @property
    def tensors(self) -> tuple[Parameters, ...]:
        """Its tensors, in the order in which they are registered."""
        return self.sizes or ((self.parameters,) if self.parameters != NO_PARAMETERS else ())

    def __add__(self, other: Part) -> Part:
        sums: dict[str, Any] = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(Part)}
        sums |= {"transient": max(self.transient, other.transient), "sizes": self.tensors + other.tensors}
        return Part(**sums)


def offload(name: str, *unconverted: str, **kept: int) -> Part:
    """The inputs of a module that the host may hold, of so many elements per token, and the products that keep them."""
    sizes = Kept(**{where: ELEMENT * size for where, size in kept.items()})
    return Part(offloads=(Module(name, (), sizes, unconverted=unconverted),))


def weights(*tensors: Parameters) -> Part:
    """The parameters of a part, as the tensors that they consist of."""
    return Part(parameters=sum(tensors, NO_PARAMETERS), sizes=tensors)


@dataclass(frozen=True, kw_only=True)
class Layer(Part):
    """A layer of a network; the module says how its amounts divide.

    Attributes:
        operations: in order of the forward.
        transient: bytes per token, divided by t, that exist only while the layer's backward runs.
        name: for messages.
        output: bytes per token passed on, and of their gradient on the way back.
        dispatched: bytes per token sent to experts; as many return, and the backward repeats both.
        balance: tokens of the busiest expert rank divided by the mean.
        routing: how a token's experts are chosen; None: unknown, so that each copy travels alone.
        predicts: whether it is a block that predicts a further token, with logits of its own; it is placed "last".
        batch_first: whether tensors begin with the batch, so that what tensor ranks gather or scatter along sequences
            is copied, and products in few bits convert operands again in the backward: torchtitan's and torchao's.
        place: "block" for layers that stages are cut from; "first" and "last" stay with the first and the last block.
        halves: residual branches of a block, such as attention and MLP; tensor ranks sum the results of each.
        shares: number of an earlier block whose keys and values it uses, from 0; None: it has its own.
        frozen: parameters without a gradient, beside `parameters`.
        quantised: whether its products are in the bits of the scenario's precision, or else in 16.
        behind: the part of `kept` and `eager` that its backward has freed when it comes to attention.
        gradient: bytes per token of the gradient of its result, where that exists until the backward ends.
        passed: whether nothing before it, and nothing in it, is trained, so that it has no backward.
        streams: residual streams of `output` bytes each that are passed on.
    """

    name: str
    output: int
    dispatched: int = 0
    balance: Fraction = Fraction(1)
    routing: Routing | None = None
    batch_first: bool = False
    place: Place = "block"
    predicts: bool = False
    halves: int = 2
    shares: int | None = None
    frozen: Parameters = NO_PARAMETERS
    passed: bool = False
    streams: int = 1
    quantised: bool = True
    behind: Module = NO_MODULE
    gradient: int = 0

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __hash__(self) -> int:
        return self._hash  # what a layer costs is looked up often

    @property
    def held(self) -> Parameters:
        """All parameters, trained and frozen."""
        return self.parameters + self.frozen

    @property
    def is_block(self) -> bool:
        """Whether it consists of a block, whose products may be in fewer bits, and which may be recomputed."""
        return self.place == "block" or self.predicts

    @property
    def in_few_bits(self) -> bool:
        """Whether its products are in few bits, if those of the scenario are."""
        return self.is_block and self.quantised

    def kernels(self, *, of_experts: bool = False) -> tuple[int, int]:
        """Kernels that forward and backward launch, one per product or pass; or those of experts only.

        A product has two gradients; the backward of flash attention has three kernels (Dao, arXiv 2307.08691).
        """
        return self._kernels[of_experts]

    @cached_property
    def _kernels(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return self._launched(of_experts=False), self._launched(of_experts=True)

    def _launched(self, *, of_experts: bool) -> tuple[int, int]:
        chosen = [one for one in self.operations if not of_experts or getattr(one, "expert", False)]
        passes = sum(one.kernels for one in chosen if isinstance(one, Elementwise))
        products = sum(not isinstance(one, Elementwise | Attention) for one in chosen)
        frozen = sum(isinstance(one, Gemm) and not one.trained for one in chosen)
        cores = sum(isinstance(one, Attention) for one in chosen)
        backward = passes + 2 * products - frozen + 3 * cores
        return passes + products + cores, 0 if self.passed else backward

    @property
    def flop(self) -> Fraction:
        """Forward FLOP per token, at balanced load."""
        return sum((operation.flop for operation in self.operations), Fraction(0))


@lru_cache(maxsize=256)
def wider(layer: Layer, times: int) -> Layer:
    """A layer whose elements are so many times as wide; losses, which are in 32 bits anyway, stay as they are.

    Masks of dropout, which have a byte each, count as elements.
    """
    behind, *modules = [
        one._replace(kept=one.kept * times, bytes=one.bytes * times, sums=one.sums * times, eager=one.eager * times)
        for one in (layer.behind, *layer.modules)
    ]
    return replace(
        layer,
        operations=tuple(one if one.name == "loss" else _moving_more(one, times) for one in layer.operations),
        kept=layer.kept * times,
        eager=layer.eager * times,
        behind=behind,
        gradient=layer.gradient * times,
        modules=tuple(modules),
        offloads=tuple(one._replace(kept=one.kept * times) for one in layer.offloads),
        transient=layer.transient * (1 if layer.place == "last" else times),
        output=layer.output * times,
        dispatched=layer.dispatched * times,
    )


def _moving_more(operation: Operation, times: int) -> Operation:
    if isinstance(operation, Kernel):
        return replace(operation, bytes=operation.bytes * times)
    if not isinstance(operation, Elementwise):
        return operation
    eager, compiled = (way and (way[0] * times, way[1] * times) for way in (operation.eager, operation.compiled))
    forward, backward = operation.forward * times, operation.backward * times
    return replace(operation, forward=forward, backward=backward, eager=eager, compiled=compiled)


def layer_of(name: str, parts: Iterable[Part], output: int, position: Place = "block", **more: Any) -> Layer:
    """A layer made of parts; `more` are its further attributes."""
    return Layer(**vars(sum(parts, Part())), name=name, output=output, place=position, **more)


def linear(
    name: str,
    inputs: int,
    outputs: int,
    split: GemmSplit,
    *,
    bias: bool = False,
    rows: Fraction = Fraction(1),
    shares: bool = False,
    keeps: bool = True,
) -> Part:
    """A product with weights and optionally a bias, whose input is counted elsewhere."""
    count = inputs * outputs
    own = [Parameters(tensor=count) if split in ("columns", "rows") else Parameters(replicated=count)]
    if bias:
        own.append(Parameters(tensor=outputs) if split == "columns" else Parameters(replicated=outputs))
    return Part((Gemm(name, outputs, inputs, split, rows, shares=shares, keeps=keeps and not shares),)) + weights(*own)


def norm(name: str, size: int, parameters: int) -> Part:
    """A norm on its own: reads and writes its input; the backward reads it again, with the gradient."""
    passes = Elementwise(name, 2 * ELEMENT * size, 3 * ELEMENT * size, "sequence")
    return Part((passes,), kept=Kept(sequence=ELEMENT * size)) + norm_weights(size, parameters)


def norm_weights(size: int, parameters: int) -> Part:
    """A weight and, if there are as many parameters again, a bias."""
    return weights(*[Parameters(replicated=size)] * (parameters // size))


@dataclass(frozen=True)
class Model:
    """A network: its layers in order of the forward.

    Attributes:
        tokens: per sample: sequence length, image patches, or 1.
        sample: what a sample is: a sequence of tokens, an image, or just a sample.
    """

    tokens: int
    layers: tuple[Layer, ...]
    sample: Literal["sequence", "image", "sample"] = "sample"

    @cached_property
    def unnamed(self) -> tuple[Layer, ...]:
        """The layers without their names; equal ones are one object, so that what they cost is found fast."""
        known: dict[Layer, Layer] = {}
        return tuple(known.setdefault(layer, layer) for layer in (replace(one, name="") for one in self.layers))

    @cached_property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(layer.held.total for layer in self.layers)

    @property
    def active(self) -> int:
        """Number of parameters that a token uses; fewer than all in a mixture of experts."""
        return sum(layer.held.active for layer in self.layers)

    @property
    def flop(self) -> int:
        """FLOP of one sample's forward: 2 per multiply-add of a matrix product or convolution."""
        return int(self.tokens * sum(layer.flop for layer in self.layers))

    @cached_property
    def skipped(self) -> list[Operation]:
        """Operations with a gradient less than a trained one's two; twice, if they have none."""
        passed = [one for layer in self.layers if layer.passed for one in layer.operations] * 2
        others = [one for layer in self.layers if not layer.passed for one in layer.operations]
        return passed + [one for one in others if isinstance(one, Gemm) and not one.trained]

    def flop_of(self, operations: Iterable[Operation], documents: Mapping[int, int]) -> int:
        """FLOP of the forward of some operations on documents; `documents`: length → their number."""
        tokens, whole = sum(length * count for length, count in documents.items()), Fraction(0)
        for operation, times in Counter(operations).items():  # blocks are equal
            if isinstance(operation, Attention | Scores):
                each = ((replace(operation, sequence=keys), keys * count) for keys, count in documents.items())
                whole += times * sum(core.flop * some for core, some in each)
            else:
                whole += times * operation.flop * tokens
        return int(whole)

    def check_division(self, tensor: int = 1, expert: int = 1) -> None:
        """Check that tensor and expert parallelism can divide the model.

        Raises:
            Refusal: they cannot.
        """
        operations = [operation for layer in set(self.unnamed) for operation in layer.operations]
        experts = {one.count for one in operations if isinstance(one, Gemm) and one.expert}
        cores = [one for one in operations if isinstance(one, Attention)]
        heads = {one.heads for one in cores}
        shared = {one.kv_heads for one in cores if not isinstance(one, SelectiveAttention)}
        heads |= {size for size in shared if tensor % size}  # of others, a rank has one
        heads |= {one.heads for one in operations if isinstance(one, Scan)}
        groups = {one.groups for one in operations if isinstance(one, Scan)}
        groups |= {one.count for one in operations if isinstance(one, Gemm) and one.split == "groups"}
        if tensor > 1 and not any(layer.held.tensor for layer in self.layers):
            raise Refusal("this model has nothing that tensor parallelism divides")
        if expert > 1 and not experts:
            raise Refusal("this model has no experts to divide")
        for what, sizes, ranks in (("heads", heads, tensor), ("groups", groups, tensor), ("experts", experts, expert)):
            for size in sorted(sizes):
                if size % ranks:
                    raise Refusal(f"{size} {what} cannot be divided over {ranks} ranks")
