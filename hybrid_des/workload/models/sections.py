"""Sections of a block's options: sizes of mixers that have their own, and of experts."""

from fractions import Fraction
from typing import Annotated, Literal

from hybrid_des.options import Count, Factor, Flag, Natural, Section, choice, given
from hybrid_des.workload.models.kinds.registration import ModelRefusal
from hybrid_des.workload.models.routing import Routing

Mlp = Annotated[Literal["gelu", "swiglu", "geglu", "relu2"], choice("gelu", "swiglu", "geglu", "relu2")]
GATED = ("swiglu", "geglu")


class Latent(Section):
    """Multi-head latent attention: queries, and keys with values, are projected from short vectors per token."""

    query: Natural = 0
    """Length of the vector that queries are projected from; 0: they are projected from the hidden vector."""
    key_value: Count
    """Length of the vector that keys and values are projected from."""
    nope: Count
    """Size of a head's query and key without position."""
    rope: Count
    """Size of a head's query and key with rotary position; this key is shared by all heads."""
    value: Count
    """Size of a head's value."""


class Indexer(Section):
    """Scores by which a query selects keys."""

    heads: Count
    """Heads of its queries, which share a key."""
    size: Count
    """Size of its queries and keys."""
    top: Count
    """The most keys that a query selects."""
    reused: Flag = False
    """Whether the keys are those that an earlier layer selected, as in GLM-5.2: no indexer of its own."""


class Compressed(Section):
    """Attention to keys of a window and to compressed ones, which are values too, as in DeepSeek-V4."""

    size: Count
    """Size of a head's query, and of the key that all heads share."""
    rope: Count
    """The part of it that has a rotary position."""
    query: Count
    """Length of the vector that queries are projected from."""
    out_groups: Count
    """Groups of heads whose results are projected on their own."""
    out_rank: Count
    """Length of the vector that a group's results are projected to."""
    window: Count
    """Tokens before a token whose keys are not compressed."""
    ratio: Count | None = None
    """Tokens of a compressed key. Default: there are none."""
    overlap: Flag = False
    """Whether a compressed key is made from the tokens of the one before it too."""
    indexer: Annotated[Indexer | None, given(Indexer)] = None
    """Selects compressed keys. Default: queries attend to all."""


class Mamba(Section):
    """Mamba-2: state spaces of heads, whose groups share inputs and outputs of states."""

    heads: Count
    """Number of heads."""
    head_size: Count
    """Channels of a head."""
    groups: Count = 1
    """Groups of heads that share B and C."""
    state: Count = 128
    """Size of the state of a channel."""
    conv: Count = 4
    """Tokens that the convolution sees."""
    chunk: Count = 256
    """Tokens that are scanned together."""
    norm: Flag = True
    """Whether the gated result is normalized."""


class Delta(Section):
    """The gated delta rule: value heads, of which several may share a key head."""

    key_heads: Count
    """Heads of queries and keys."""
    value_heads: Count
    """Heads of values."""
    key_size: Count
    """Size of a query and of a key."""
    value_size: Count
    """Size of a value."""
    conv: Count = 4
    """Tokens that the convolution sees."""


class Kda(Section):
    """Kimi delta attention."""

    heads: Count
    """Number of heads."""
    size: Count
    """Size of a query, a key and a value."""
    conv: Count = 4
    """Tokens that the convolution sees."""
    full_gate: Flag = False
    """Whether the gate is one product instead of two thin ones."""


class Lightning(Section):
    """Lightning attention."""

    heads: Count
    """Number of heads."""
    size: Count
    """Size of a query, a key and a value."""
    chunk: Count = 256
    """Tokens of a block."""


class Conv(Section):
    """A gated short convolution."""

    width: Count
    """Tokens that it sees."""


class Experts(Section):
    """Mixture of experts in place of the MLP."""

    count: Count
    """Number of routed experts."""
    active: Count
    """Routed experts per token."""
    ffn: Count
    """Width of one expert."""
    shared: Natural = 0
    """Experts that every token passes."""
    shared_ffn: Natural = 0
    """Instead of `shared`: the width of what every token passes."""
    shared_gate: Flag = False
    """Whether a gate per token scales what every token passes, as in Qwen3-Next."""
    latent: Count | None = None
    """Length of the vectors that experts see, as in Nemotron 3 Super. Default: hidden."""
    dense_layers: Natural = 0
    """Leading layers with an MLP instead."""
    balance: Factor = Fraction(1)
    """Tokens of the busiest expert rank divided by the mean."""
    router_bias: Flag = False
    """Whether the router has a bias per expert, as in DeepSeek-V3."""
    groups: Count = 1
    """Groups of neighbouring experts, of which a token uses only some, as in DeepSeek-V3."""
    top_groups: Count | None = None
    """Groups whose experts a token may use. Default: all."""

    @property
    def routing(self) -> Routing:
        """How a token's experts are chosen."""
        return Routing(self.count, self.active, self.groups, self.top_groups or self.groups)

    @property
    def beside(self) -> int:
        """Width of what every token passes; 0: nothing."""
        return self.shared_ffn or self.shared * self.ffn

    def check(self) -> None:
        """Check that the sizes fit each other.

        Raises:
            ModelRefusal: they do not.
        """
        if self.active > self.count:
            raise ModelRefusal("experts.active", f"{self.active} of only {self.count} experts per token")
        if self.balance < 1:
            raise ModelRefusal("experts.balance", "the busiest rank has at least the mean; expected 1 or more")
        if self.shared and self.shared_ffn:
            raise ModelRefusal("experts.shared_ffn", "replaces `shared`; give only one of the two")
        if self.shared_gate and not self.beside:
            raise ModelRefusal("experts.shared_gate", "needs `shared` or `shared_ffn`, which it scales")
        self._check_groups()

    def _check_groups(self) -> None:
        top = self.routing.top_groups
        if self.count % self.groups:
            raise ModelRefusal("experts.groups", f"{self.count} experts cannot be divided into {self.groups} groups")
        if top > self.groups:
            raise ModelRefusal("experts.top_groups", f"{top} of only {self.groups} groups per token")
        if self.active > top * (self.count // self.groups):
            held = f"{top} groups of {self.count // self.groups} experts"
            raise ModelRefusal("experts.top_groups", f"{self.active} experts per token, but {held}")
