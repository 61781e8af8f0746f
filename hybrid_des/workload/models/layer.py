"""Layers: operations, parameters, activations, messages and routing, from which times, bytes and memory are computed.

All amounts are per token on a rank that holds the whole layer; `split` and the field names say what parallelism
divides. A rank has m = sequence · micro-batch / context tokens; t is tensor, e expert, x = t expert-tensor parallelism:

    Gemm, "columns"       (rows·m × k) · (k × n/t); gradients of its input are summed over the tensor ranks
    Gemm, "rows"          (rows·m × k/t) · (k/t × n); its output of 2·rows·m·n bytes is summed over the tensor ranks
    Gemm, "sequence"      (rows·m × k) · (k × n); rows/t with sequence parallelism
    Gemm, "none"          (rows·m × k) · (k × n) on every tensor rank
    Gemm, "groups"        count/t products (rows·m × k) · (k × n)
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
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from hybrid_des.errors import Refusal
from hybrid_des.workload.models.routing import Routing

Split = Literal["none", "sequence", "tensor"]
GemmSplit = Literal["none", "sequence", "columns", "rows", "groups"]
Place = Literal["first", "block", "last"]
CoreForm = Literal["equal", "unequal", "selected"]

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

    def input_kept(self, element: Fraction | int = ELEMENT) -> Kept:
        """Bytes per token of its input, of elements of so many bytes."""
        size = round(element * self.rows * self.count * self.k)
        if self.expert:
            return Kept(received=size) if self.split == "columns" else Kept(expert=size)
        return Kept(tensor=size) if self.split == "rows" else Kept(sequence=size)


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
    def form(self) -> CoreForm:
        """What its kernel is: of keys as long as values, of longer ones (latent attention), or of selected keys."""
        return "equal" if self.key_size == self.value_size else "unequal"

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


def mean_keys(most: int, keys: Fraction) -> Fraction:
    """Keys that a query attends to in the mean: those before it, of so many, but at most `most`."""
    met = min(Fraction(most), keys)
    return met - met**2 / (2 * keys)


@dataclass(frozen=True)
class SelectiveAttention(Attention):
    """Causal flash attention to keys that all heads share: of a window, compressed ones, or those that are selected.

    Attributes:
        top: the most keys, or compressed keys, that an indexer selects for a query; None: all.
        ratio: tokens of a compressed key, to which queries attend besides; 0: there are none.
        absorbed: sizes of key and value where keys are selected: queries and results are multiplied with what keys and
            values of heads would be projected by; None: those of other attention.
        gathered: elements per token that context ranks gather, the same for all tensor ranks.
    """

    top: int | None = None
    ratio: int = 0
    absorbed: tuple[int, int] | None = None
    gathered: int = 0

    @property
    def selects(self) -> bool:
        """Whether there are more keys than are selected; with fewer, no kernel for selected ones is needed."""
        return self.top is not None and self.sequence > self.top * max(1, self.ratio)

    @property
    def local(self) -> bool:
        """Whether queries attend to some of the keys only: true, as FLOP do not go with squares of lengths."""
        return True

    @property
    def form(self) -> CoreForm:
        """As other attention, unless keys are selected."""
        return "selected" if self.selects else super().form

    @property
    def keys(self) -> int:
        """The most keys that a query attends to."""
        if not self.ratio:
            return min(self.sequence, self.window or self.top or self.sequence)
        compressed = self.sequence // self.ratio
        return min(self.sequence, self.window or 0) + min(compressed, self.top or compressed)

    @cached_property
    def flop(self) -> Fraction:
        """Forward FLOP per token that are executed."""
        s = Fraction(self.sequence)
        if self.ratio:
            keys = mean_keys(self.window or 0, s) + mean_keys(self.top or self.sequence, s / self.ratio)
        else:
            keys = mean_keys(self.window or self.top or self.sequence, s)
        plain = self.key_size, self.value_size
        return 2 * keys * self.heads * sum(self.absorbed or plain if self.selects else plain)


@dataclass(frozen=True)
class Scores:
    """Scores of all keys before a query, by which an indexer selects some; every tensor rank computes all of them.

    Attributes:
        heads, size: of the indexer's queries; a key is shared by its heads.
        sequence: number of tokens.
        ratio: tokens per key.
    """

    name: str
    heads: int
    size: int
    sequence: int
    ratio: int = 1
    local: ClassVar[bool] = True  # FLOP are those of the documents, one by one
    form: ClassVar[CoreForm] = "selected"

    @property
    def keys(self) -> int:
        """The most keys of a query."""
        return self.sequence // self.ratio

    @cached_property
    def flop(self) -> Fraction:
        """Forward FLOP per token; queries and keys have a gradient of as many each."""
        return Fraction(self.sequence * self.heads * self.size, self.ratio)


@dataclass(frozen=True)
class Elementwise:
    """Operations bound by memory bandwidth: bytes read and written per token, forward and backward.

    Attributes:
        kernels: number of kernels of the forward; the backward has as many.
        of_each: whether it is done expert by expert, unless one kernel does all experts, which then does it too.
        eager, compiled: bytes, forward and backward, where every operator is a kernel of its own, and where a compiler
            joins them; None: as many.
        rate: the key of `efficiency` with the share of the bandwidth that its kernel reaches; "": that of others.
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
    rate: str = ""

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
        rate: the share of the 16-bit peak that it reaches, or the key of `efficiency` that has it.
        flop: of the forward, per token.
        groups: of heads, which tensor ranks divide.
        there, back: elements per token that belong to heads, before and after it.
        shared: elements per token that the heads of a group share.
        backward: its time over that of the forward, which it computes again. Three is assumed: no public table has it.
    """

    name: str
    rate: str | Fraction
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


Operation = Gemm | Attention | Scores | Elementwise | Kernel | Scan


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
        copied: kept by every tensor rank.
    """

    sequence: int = 0
    tensor: int = 0
    scores: int = 0
    received: int = 0
    expert: int = 0
    copied: int = 0

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

    def __mul__(self, times: int) -> Kept:
        return Kept(*(times * size for size in self.sizes))

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
        unconverted: products whose inputs are then not kept in few bits.
        sends: whether it sends tokens to experts, and sums over tensor ranks, again.
    """

    name: str
    operations: tuple[str, ...]
    kept: Kept
    bytes: int = 0
    summed: tuple[str, ...] = ()
    sums: Kept = Kept()
    gathers: bool = False
    eager: Kept = Kept()
    unconverted: tuple[str, ...] = ()
    sends: bool = False


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
    """

    operations: tuple[Operation, ...] = ()
    parameters: Parameters = Parameters()
    kept: Kept = Kept()
    transient: int = 0
    sizes: tuple[Parameters, ...] = ()
    modules: tuple[Module, ...] = ()
    gathered: int = 0
    offloads: tuple[Module, ...] = ()

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
            self.gathered + other.gathered,
            self.offloads + other.offloads,
        )


def offload(name: str, *unconverted: str, **kept: int) -> Part:
    """The inputs of a module that the host may hold, of so many elements per token, and the products that keep them."""
    sizes = Kept(**{where: ELEMENT * size for where, size in kept.items()})
    return Part(offloads=(Module(name, (), sizes, unconverted=unconverted),))


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
        quantised: whether its products are in the bits of the scenario's precision, or else in 16.
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
    frozen: Parameters = Parameters()
    passed: bool = False
    streams: int = 1
    quantised: bool = True

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
    modules = [
        one._replace(kept=one.kept * times, bytes=one.bytes * times, sums=one.sums * times, eager=one.eager * times)
        for one in layer.modules
    ]
    return replace(
        layer,
        operations=tuple(one if one.name == "loss" else _moving_more(one, times) for one in layer.operations),
        kept=layer.kept * times,
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
        heads |= {one.kv_heads for one in cores if not isinstance(one, SelectiveAttention)}
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
