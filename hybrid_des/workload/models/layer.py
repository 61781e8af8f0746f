"""Layers: operations, parameters, activations, messages and routing, from which times, bytes and memory are computed.

All amounts are per token on a rank that holds the whole layer; `split` and the field names say what parallelism
divides. A rank has m = sequence · micro-batch / context tokens; t is tensor, e expert, x = t expert-tensor parallelism:

    Gemm, "columns"       (rows·m × k) · (k × n/t); gradients of its input are summed over the tensor ranks
    Gemm, "rows"          (rows·m × k/t) · (k/t × n); its output of 2·rows·m·n bytes is summed over the tensor ranks
    Gemm, "sequence"      (rows·m × k) · (k × n); rows/t with sequence parallelism
    Gemm, "none"          (rows·m × k) · (k × n) on every tensor rank
    Gemm of experts       count/e products of e times as many rows; x takes the place of t
    Elementwise           bytes·m; "tensor": /t, "sequence": /t with sequence parallelism

Uneven divisions are padded (n/t rounds up). Elements have 2 bytes, as in bf16. An image network without tokens
counts a whole image as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple

from hybrid_des.errors import Refusal
from hybrid_des.workload.models.routing import Routing

Split = Literal["none", "sequence", "tensor"]
GemmSplit = Literal["none", "sequence", "columns", "rows"]
Place = Literal["first", "block", "last"]

ELEMENT = 2  # bytes
JOINING = "joining"  # the product with which a module of multi-token prediction begins


@dataclass(frozen=True)
class Gemm:
    """A product with weights: forward (m, n, k), backward (m, k, n) for its input and (k, n, m) for the weights.

    Attributes:
        n, k: columns and rows of the weights.
        rows: rows of the product per token: pixels of an image, or the share of tokens that one expert sees.
        count: number of such products (experts).
        expert: whether the weights belong to experts; the busiest rank has `Layer.balance` times the rows.
        reads: elements of input read per token and product; None: rows·k. Less for convolutions: patches overlap.
        shares: whether its input is that of the product before, which is converted to few bits once.
        keeps: whether its input is kept for the gradient of these weights alone.
        trained: whether its weights have a gradient.
        inner: of an adapter, which half of it: it is inside of a half of a block, whose sums are the product's beside.
    """

    name: str
    n: int
    k: int
    split: GemmSplit
    rows: Fraction = Fraction(1)
    count: int = 1
    expert: bool = False
    reads: int | None = None
    shares: bool = False
    keeps: bool = True
    trained: bool = True
    inner: Literal["", "down", "up"] = ""

    @property
    def flop(self) -> Fraction:
        """Forward FLOP per token; each of the two gradients takes as many."""
        return 2 * self.rows * self.count * self.n * self.k


@dataclass(frozen=True)
class Attention:
    """The attention core, divided by t over heads: scores, softmax and weighted sum of values.

    Plain attention is two batched products (s, s, key size) and (s, value size, s) per head, and passes over the score
    matrix; its backward has twice the products. Flash attention keeps no matrix and skips the masked half if causal;
    its backward has 2.5 times the FLOP (Dao, arXiv 2307.08691).

    Attributes:
        key_size, value_size: of one head.
        sequence: number of keys per query.
        window: the most keys before a query that it attends to; None: all.
        chunk: length of the pieces of a sample within which queries attend; None: the sample is one piece.
    """

    name: str
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    sequence: int
    causal: bool
    flash: bool
    window: int | None = None
    chunk: int | None = None

    @property
    def local(self) -> bool:
        """Whether queries attend to some of the keys only."""
        return self.window is not None or self.chunk is not None

    @property
    def keys(self) -> int:
        """The most keys that a query attends to."""
        return min(self.sequence, self.window or self.sequence, self.chunk or self.sequence)

    @cached_property
    def flop(self) -> Fraction:
        """Forward FLOP per token that are executed; those of a window's first queries are fewer."""
        keys = Fraction(self.sequence, 2 if self.causal and self.flash else 1)
        if self.window is not None and self.flash and self.causal:
            keys = self.keys - Fraction(self.keys**2, 2 * self.sequence)
        elif self.chunk is not None and self.flash:
            whole, rest = divmod(self.sequence, self.chunk)
            keys = Fraction(whole * self.chunk**2 + rest**2, (2 if self.causal else 1) * self.sequence)
        return 2 * keys * self.heads * (self.key_size + self.value_size)

    @property
    def score_bytes(self) -> tuple[int, int]:
        """Bytes per token, forward and backward, of mask, softmax and dropout on the score matrix."""
        return (0, 0) if self.flash else (9 * self.heads * self.sequence, 11 * self.heads * self.sequence)


@dataclass(frozen=True)
class Elementwise:
    """Operations bound by memory bandwidth: bytes read and written per token, forward and backward.

    Attributes:
        kernels: number of kernels of the forward; the backward has as many.
        of_each: whether it is done expert by expert, unless one kernel does all experts, which then does it too.
        eager, compiled: bytes, forward and backward, where every operator is a kernel of its own, and where a compiler
            joins them; None: as many.
    """

    name: str
    forward: int
    backward: int
    split: Split
    expert: bool = False
    kernels: int = 1
    of_each: bool = False
    eager: tuple[int, int] | None = None
    compiled: tuple[int, int] | None = None

    @property
    def flop(self) -> Fraction:
        """Not counted: 0."""
        return Fraction(0)

    def moved(self, how: str) -> tuple[int, int]:
        """Bytes per token, forward and backward, where its operators are fused, compiled, chunked or eager."""
        given = {"eager": self.eager, "compiled": self.compiled, "chunked": self.compiled}.get(how)
        return (self.forward, self.backward) if given is None else given


@dataclass(frozen=True)
class Kernel:
    """Any other operation, not divided: FLOP and bytes moved per token; each gradient takes as much as the forward.

    Attributes:
        weights: whether there are weights, and thus a gradient of weights in addition to that of the input.
    """

    name: str
    flop: Fraction
    bytes: int
    weights: bool


@dataclass(frozen=True)
class Scan:
    """The core of a linear mixer, divided by t over heads, at the rate of its own kernel.

    Context ranks divide the heads too: all-to-alls bring whole sequences of some heads to each, and back; what a
    group's heads share is copied where ranks are more.

    Attributes:
        rate: the key of `efficiency` with the share of the 16-bit peak that it reaches.
        flop: of the forward, per token.
        groups: of heads, which tensor ranks divide.
        there, back: elements per token that belong to heads, before and after it.
        shared: elements per token that the heads of a group share.
        backward: its time over that of the forward, which it computes again. Three is assumed: no public table has it.
    """

    name: str
    rate: str
    flop: Fraction
    heads: int
    groups: int
    there: int
    shared: int
    back: int
    backward: float = 3.0

    def exchanged(self, tensor: int, context: int) -> tuple[int, int]:
        """Bytes per token of both all-to-alls of a tensor rank."""
        copies = max(1, context * tensor // self.groups)
        return ELEMENT * (self.there + copies * self.shared) // tensor, ELEMENT * self.back // tensor


Operation = Gemm | Attention | Elementwise | Kernel | Scan


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters.

    Attributes:
        tensor: divided by t.
        replicated: held by every tensor rank.
        expert: divided by e and x.
        idle: those of `expert` that a token does not use, at balanced load.
        tied: parameters of the first layer that this layer uses too: not counted, and held once more only by a rank
            that has no first layer.
    """

    tensor: int = 0
    replicated: int = 0
    expert: int = 0
    idle: int = 0
    tied: int = 0

    @property
    def total(self) -> int:
        """All that are counted."""
        return self.tensor + self.replicated + self.expert

    @property
    def active(self) -> int:
        """Those that a token uses."""
        return self.total - self.idle

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(*_sums(self, other))


@dataclass(frozen=True)
class Kept:
    """Bytes per token kept from forward to backward: inputs of operations, the layer's own input included.

    Source: Korthikanti et al., arXiv 2205.05198, section 4. Expert parallelism changes nothing: a rank sends as many
    tokens as it receives, except for `Layer.balance`.

    Attributes:
        sequence: divided by t with sequence parallelism.
        tensor: divided by t.
        scores: the score matrices of plain attention, divided by t; not kept if the attention core is recomputed.
        received: tokens received by experts, divided by t/x.
        expert: other activations of experts, divided by t.
    """

    sequence: int = 0
    tensor: int = 0
    scores: int = 0
    received: int = 0
    expert: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """All fields."""
        return astuple(self)

    @property
    def total(self) -> int:
        """Sum of all fields."""
        return sum(self.sizes)

    def __add__(self, other: Kept) -> Kept:
        return Kept(*_sums(self, other))

    def __sub__(self, other: Kept) -> Kept:
        return Kept(*(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True)))


def _sums(this: Parameters | Kept, other: Parameters | Kept) -> list[int]:
    return [getattr(this, field.name) + getattr(other, field.name) for field in fields(this)]


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
    """

    name: str
    operations: tuple[str, ...]
    kept: Kept
    bytes: int = 0
    summed: tuple[str, ...] = ()
    sums: Kept = Kept()
    gathers: bool = False
    eager: Kept = Kept()


MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts")
OPS = "ops"  # every second product and what is between products, as torchtitan's selective_ac_option


@dataclass(frozen=True)
class Part:
    """A part of a layer; `transient` is as in `Layer`, and a sum of parts has the largest.

    Attributes:
        sizes: of the tensors that its parameters consist of, in the order in which they are registered; none: one.
        modules: what its backward may compute again.
    """

    operations: tuple[Operation, ...] = ()
    parameters: Parameters = Parameters()
    kept: Kept = Kept()
    transient: int = 0
    sizes: tuple[Parameters, ...] = ()
    modules: tuple[Module, ...] = ()

    @property
    def tensors(self) -> tuple[Parameters, ...]:
        """Its tensors, in the order in which they are registered."""
        return self.sizes or ((self.parameters,) if self.parameters != Parameters() else ())

    def __add__(self, other: Part) -> Part:
        return Part(
            self.operations + other.operations,
            self.parameters + other.parameters,
            self.kept + other.kept,
            max(self.transient, other.transient),
            self.tensors + other.tensors,
            self.modules + other.modules,
        )


def weights(*tensors: Parameters) -> Part:
    """The parameters of a part, as the tensors that they consist of."""
    return Part(parameters=sum(tensors, Parameters()), sizes=tensors)


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
        passed: whether nothing before it, and nothing in it, is trained, so that it has no backward.
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
    frozen: Parameters = Parameters()
    passed: bool = False

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
            if isinstance(operation, Attention):
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
        heads = {size for one in operations if isinstance(one, Attention) for size in (one.heads, one.kv_heads)}
        heads |= {one.heads for one in operations if isinstance(one, Scan)}
        groups = {one.groups for one in operations if isinstance(one, Scan)}
        if tensor > 1 and not any(layer.held.tensor for layer in self.layers):
            raise Refusal("this model has nothing that tensor parallelism divides")
        if expert > 1 and not experts:
            raise Refusal("this model has no experts to divide")
        for what, sizes, ranks in (("heads", heads, tensor), ("groups", groups, tensor), ("experts", experts, expert)):
            for size in sorted(sizes):
                if size % ranks:
                    raise Refusal(f"{size} {what} cannot be divided over {ranks} ranks")
