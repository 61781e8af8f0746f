"""Operations of a layer: products, attention, passes over memory, and cores of linear mixers.

All amounts are per token on a rank that holds the whole layer; `split` says what parallelism divides. A rank has m =
sequence · micro-batch / context tokens; t is tensor, e expert, x = t expert-tensor parallelism:

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

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

from hybrid_des.workload.models.amounts import ELEMENT, Kept

Split = Literal["none", "sequence", "tensor"]
GemmSplit = Literal["none", "sequence", "columns", "rows", "groups"]
CoreForm = Literal["equal", "unequal", "selected"]


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


class Cache(NamedTuple):
    """What a query reads of each token before it while an engine generates.

    Attributes:
        heads: of keys; tensor ranks divide them, and copy them where ranks are more.
        keys, values: elements of each; values of 0 are the keys.
    """

    heads: int
    keys: int
    values: int


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
        cache: keys and values per token while an engine generates; None: those of `kv_heads`.
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
    cache: Cache | None = None

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

    def key_values(self, tensor: int) -> int:
        """Elements per token of keys and values of all tensor ranks, which copy them where they are more than heads."""
        return max(self.kv_heads, tensor) * (self.key_size + self.value_size)

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
        teaches: whether its scores of selected keys are what an indexer learns, so that the backward needs them.
    """

    top: int | None = None
    ratio: int = 0
    absorbed: tuple[int, int] | None = None
    gathered: int = 0
    teaches: bool = False

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

    @property
    def taught(self) -> Scores | None:
        """The scores that an indexer learns; None: there is none, or another layer's."""
        if not self.teaches or self.top is None:
            return None
        size = self.absorbed[0] if self.absorbed and self.selects else self.key_size
        return Scores(self.name, self.heads, size, self.sequence, max(1, self.ratio), self.top)

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

    The core's scores of selected keys once more, from which the loss of an indexer is, are such scores of fewer keys.

    Attributes:
        heads, size: of the indexer's queries; a key is shared by its heads.
        sequence: number of tokens.
        ratio: tokens per key.
        top: the most keys whose scores these are; None: all.
    """

    name: str
    heads: int
    size: int
    sequence: int
    ratio: int = 1
    top: int | None = None
    local: ClassVar[bool] = True  # FLOP are those of the documents, one by one
    form: ClassVar[CoreForm] = "selected"

    @property
    def keys(self) -> int:
        """The most keys of a query."""
        return min(self.top or self.sequence, self.sequence // self.ratio)

    @cached_property
    def flop(self) -> Fraction:
        """Forward FLOP per token; queries and keys have a gradient of as many each."""
        keys = mean_keys(self.top or self.sequence, Fraction(self.sequence, self.ratio))
        return 2 * keys * self.heads * self.size


@dataclass(frozen=True)
class Elementwise:
    """Operations bound by memory bandwidth: bytes read and written per token, forward and backward.

    Attributes:
        kernels: number of kernels of the forward; the backward has as many.
        of_each: whether it is done expert by expert, unless one kernel does all experts, which then does it too.
        eager, compiled: bytes, forward and backward, where every operator is a kernel of its own, and where a compiler
            joins them; None: as many.
        rate: the key of `efficiency` with the share of the bandwidth that its kernel reaches; "": that of others.
        of_samples: whether it is done only where samples of a micro-batch are interleaved.
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
    of_samples: bool = False

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
        state: elements that a sequence keeps while an engine generates; 0: not known.
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
    state: int = 0

    def exchanged(self, tensor: int, context: int) -> tuple[int, int]:
        """Bytes per token of both all-to-alls of a tensor rank."""
        copies = max(1, context * tensor // self.groups)
        return ELEMENT * (self.there + copies * self.shared) // tensor, ELEMENT * self.back // tensor


Operation = Gemm | Attention | Scores | Elementwise | Kernel | Scan
