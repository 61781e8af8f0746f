"""The options of a block of a transformer, from which its mixers and its second half are made."""

from typing import Annotated, Any, Literal

from hybrid_des.errors import unknown
from hybrid_des.options import MOST, Count, Flag, Options, Reads, TokenCount, WrittenNone, choice, given, whole
from hybrid_des.workload.models.mixers import registration as mixers
from hybrid_des.workload.models.sections import (
    Compressed,
    Conv,
    Delta,
    Experts,
    Indexer,
    Kda,
    Latent,
    Lightning,
    Mamba,
    Mlp,
)

NONE = "none"
Norm = Annotated[Literal["layer", "rms"], choice("layer", "rms")]
Written = Annotated[
    Literal["megatron", "pytorch", "transformers", "compiled", "deepspeed", "jax"],
    choice("megatron", "pytorch", "transformers", "compiled", "deepspeed", "jax"),
]
AttentionKind = Annotated[Literal["plain", "flash"], choice("plain", "flash")]
Gate = Annotated[Literal["element", "head"], choice("element", "head")]
KeysValues = Annotated[Literal["one", "shared"], choice("one", "shared")]


def _norms_read(value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    named: str = choice("head", "layer", beside="true or false").read(value)
    return named == "head" or named


def _width(value: Any) -> int | None:
    return None if value is None or value == NONE else int(whole(1, MOST).read(value))


def _mixer_names(value: Any) -> str | tuple[str, ...]:
    several = isinstance(value, list | tuple)
    for name in value if several else (value,):
        if not isinstance(name, str) or (name not in mixers.names() and (several or name != NONE)):
            raise ValueError(unknown(str(name), [*mixers.names(), *([] if several else [NONE])]))
    if several and len(set(value)) < max(2, len(value)):
        raise ValueError("expected the name of a mixer, or a list of several, each once")
    return tuple(value) if several else str(value)


QkNorm = Annotated[bool | str, Reads(_norms_read, {"enum": [True, False, "head", "layer"]})]
Width = Annotated[
    int | None, Reads(_width, {"anyOf": [{"const": NONE}, {"type": "integer", "minimum": 1}]}), WrittenNone(NONE)
]
Mixer = Annotated[
    str | tuple[str, ...],
    Reads(_mixer_names, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class AttentionKeys(Options):
    """What attention of a block is."""

    heads: Count
    """Attention heads."""
    kv_heads: Count | None = None
    """Heads of keys and values, each shared by several queries. Default: as many as heads."""
    head_size: Count | None = None
    """Size of a head. Default: hidden divided by heads."""
    value_size: Count | None = None
    """Size of a head's value. Default: as of its key."""
    attention: AttentionKind = "flash"
    """plain: score matrices are written to memory; flash: they are not."""
    window: TokenCount | None = None
    """Tokens that a token of every `window_every`-th block attends to at most. Default: all."""
    attention_chunk: TokenCount | None = None
    """Length of the pieces of a sample within which tokens attend, as in Llama 4. Default: the sample is one."""
    causal: Flag = True
    """Whether a token attends only to those before it."""
    qk_norm: QkNorm = False
    """Whether queries and keys are normalized: true or head: each head by itself, as in Qwen3; layer: all together."""
    gate: Gate | None = None
    """Gate of attention's results: a factor for each element, or one per head. Default: none."""
    sinks: Flag = False
    """Whether each head has a learned score that takes attention from all keys, as in GPT-OSS."""
    keys_values: KeysValues | None = None
    """one: values are the keys; shared: both are those of an earlier block with the same window and sizes of heads."""
    latent: Annotated[Latent | None, given(Latent)] = None
    """Multi-head latent attention, such as {query: 1536, key_value: 512, nope: 128, rope: 64, value: 128}."""

    indexer: Annotated[Indexer | None, given(Indexer)] = None
    """With latent attention: selects keys, such as {heads: 64, size: 128, top: 2048}."""
    compressed: Annotated[Compressed | None, given(Compressed)] = None
    """Sizes of mixer compressed, such as {size: 512, rope: 64, query: 1024, out_groups: 8, out_rank: 1024,
    window: 128, ratio: 128}."""

    @property
    def plain_core(self) -> bool:
        """Whether it is attention of keys and values of its own, without gate or sinks."""
        return not (self.gate or self.value_size or self.keys_values or self.sinks)


class Block(AttentionKeys):
    """A block: its mixers, side by side, and its second half."""

    hidden: Count
    """Length of the vector of a token."""
    sequence: TokenCount
    """Tokens per sample."""
    mixer: Mixer | None = None
    """What lets tokens see each other; a list: side by side; none: nothing. Default: latent with `latent`,
    else attention."""
    mamba: Annotated[Mamba | None, given(Mamba)] = None
    """Sizes of mixer mamba2, such as {heads: 128, head_size: 64, groups: 8, state: 128, chunk: 128}."""
    delta: Annotated[Delta | None, given(Delta)] = None
    """Sizes of mixer delta, such as {key_heads: 16, value_heads: 32, key_size: 128, value_size: 128}."""
    kda: Annotated[Kda | None, given(Kda)] = None
    """Sizes of mixer kda, such as {heads: 32, size: 128}."""
    lightning: Annotated[Lightning | None, given(Lightning)] = None
    """Sizes of mixer lightning, such as {heads: 64, size: 128}."""
    conv: Annotated[Conv | None, given(Conv)] = None
    """Sizes of mixer conv, such as {width: 3}."""
    mixers: dict[str, dict[str, Any]] | None = None
    """Options of mixers of your own, by name."""
    ffn: Width = None
    """Width of the MLP; none: blocks without experts have no second half."""
    mlp: Mlp = "swiglu"
    """gelu: two matrices and dropout; relu2: two; swiglu, geglu: three matrices (a gate); all but gelu: no dropout."""
    experts: Annotated[Experts | None, given(Experts)] = None
    """Mixture of experts, such as {count: 8, active: 2, ffn: 14336}."""
    beside: Flag = False
    """Whether a block with experts has the MLP too, side by side, as in Gemma 4 26B."""
    parallel: Flag = False
    """Whether attention and MLP get the same input and are added together, as in Falcon and GPT-J."""
    norm: Norm = "rms"
    """layer: weight and bias; rms: weight only."""
    norms: Annotated[int, whole(1, 8)] | None = None
    """Norms per block. Default: one per half, one with `parallel`; Gemma 3 has 4."""
    bias: Flag = False
    """Whether linear layers have biases."""
    streams: Annotated[int, whole(2, 64)] | None = None
    """Residual streams, which each half of a block mixes (mHC), as in DeepSeek-V4. Default: one, as it is."""
    layer_vectors: Count | None = None
    """Length of the vector that each block looks up for every token, as in Gemma 3n."""
    quantised: Flag = True
    """Whether products are in the bits of `precision`; false, mostly of a kind of blocks: in 16 bits."""
    written: Written = "megatron"
    """megatron, deepspeed, jax: products joined, sequences before batches; pytorch, compiled: as torchtitan's Llama.

    There queries, keys, values and both halves of a gated MLP are products of their own; keys and values are copied for
    every query head, and context ranks exchange the copies; tensors begin with the batch, so that what tensor ranks
    gather or scatter along sequences is copied; and products of few bits convert their operands again in backwards.
    transformers: as Hugging Face's, with experts too, which copies no keys and values, and keeps what its eager
    operators save.
    It also sets what is fused, the kernels of attention and experts, and launches (hybrid_des/scenario/stacks.py)."""

    @property
    def mixing(self) -> tuple[str, ...]:
        """Names of the mixers of a block, side by side."""
        if self.mixer is None:
            return ("attention" if self.latent is None else "latent",)
        return self.mixer if isinstance(self.mixer, tuple) else () if self.mixer == NONE else (self.mixer,)

    @property
    def second(self) -> bool:
        """Whether a block has a second half."""
        return self.experts is not None or self.ffn is not None

    @property
    def pytorch(self) -> bool:
        """Whether it is written as torchtitan's Llama, or Hugging Face's; other mixers are those of Megatron-LM."""
        plain = self.mixing == ("attention",) and self.plain_core and self.qk_norm != "layer"
        half = self.ffn is not None if self.experts is None else self.autograd
        usual = half and self.norms is None and not (self.parallel or self.streams)
        return self.written in ("pytorch", "transformers", "compiled") and plain and usual

    @property
    def autograd(self) -> bool:
        """Whether it keeps what PyTorch's operators save one by one, and copies no keys and values."""
        return self.written == "transformers"

    @property
    def norm_saves(self) -> int:
        """What eager operators keep of a norm besides its input, relative to that: 32 bits of it, and the result."""
        return 2 if self.autograd and self.norm == "rms" else 0

    @property
    def head(self) -> int:
        """Size of a head, unused for latent attention."""
        return self.head_size or self.hidden // self.heads

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of the hidden vector."""
        return self.hidden * (2 if self.norm == "layer" else 1)
