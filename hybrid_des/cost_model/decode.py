"""Times of generation on a replica of an engine: decode steps, prefill, and room for cached tokens.

A replica has d data ranks of t tensor ranks each. One decode step with b sequences, which hold T cached tokens, is the
sum of its parts; each takes the longer of reading memory and of computing (roofline; Williams, Waterman and Patterson,
CACM 52(4), 2009):

    step(b, T) = max(P / βW, 2·P₁·b/d / φF)                         what every token reads: P bytes, P₁ parameters
               + Σ max(E·(1 − (1 − k/E)^b)·e / εW, 2·k·b·e₁ / φF)   experts of a layer: E of e bytes, k of a token
               + b/d·s / βW + T/d·c / βW                            s bytes of states, c of a cached token
               + layers·ℓ + h + b/d·σ                               launches, and what the host does
               + Σ (α + 2·2·b/d·H·(t − 1)/t / link)                 all-reduces over tensor ranks, t > 1

Bytes and parameters are those of one rank. W is the memory bandwidth, F the peak, H the hidden size. (1 − k/E)^b is the
share of experts that none of b sequences wants where all are wanted equally. Tensor ranks divide cached keys by heads,
and copy them where ranks are more than heads; latent attention (DeepSeek-AI, arXiv 2405.04434) has one vector per token
on every rank, read by all heads in the absorbed form. Experts are divided over all t·d ranks, whole or not (`expert`
says which); where d > 1, a layer with experts also gathers and scatters the tokens of all data ranks, counted as one
more all-reduce over d ranks: this and expert parallelism were not compared with measured rows. Where tensor ranks are
on several nodes, a loop simulates NCCL's all-reduce on its links instead of the last line: engines have kernels of
their own within a node only (vLLM's custom all-reduce). Keys of a sliding window, and
states of linear mixers (4 bytes per element, read and written), are counted whole for every sequence, however short it
is. Embeddings, norms, convolutions of a few tokens and modules of multi-token prediction are left out. Attention to
selected keys is refused.

Prefill computes 2 FLOP per parameter of a token's products but the logits, which only its last token needs, at φF; the
squares of attention are left out.

The seven constants β ε φ ℓ h σ α were found together on 397 published rows: vLLM and TensorRT-LLM serving MiniMax-M2.5
and Llama 3.1 70B on H100 to B300 (ai-dynamo/aiconfigurator, systems/silicon_sample.csv). docs/background/accuracy.md
has the errors.

Times are whole picoseconds: `step_ps(b)` is step(b, 0) rounded once, and `token_ps` what each cached token adds,
rounded once. With k steps, the j-th of which holds T + j·b tokens,

    stretch = k·step_ps(b) + token_ps·(k·T + b·k·(k − 1)/2)

holds on integers, so that a stretch cut anywhere and resumed takes the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from hybrid_des.cost_model.decode_sizes import Amounts, DecodeSizes, Division, ExpertSizes, decode_sizes
from hybrid_des.cost_model.decode_table import DecodeTable, Piece, read_decode_table
from hybrid_des.errors import NoRoomError, Refusal
from hybrid_des.scenario.sections.cluster import WIDE, NodeKind
from hybrid_des.scenario.sections.rl import DecodeEfficiency as Section
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bytes
from hybrid_des.workload.models.amounts import ELEMENT
from hybrid_des.workload.models.layer import Model
from hybrid_des.workload.models.operations import Attention, Scan


@dataclass(frozen=True)
class DecodeEfficiency:
    """What an engine reaches.

    Attributes:
        bandwidth: β, share of the memory bandwidth where every token reads the same.
        experts: ε, the same for experts.
        compute: φ, share of the peak.
        layer: ℓ, seconds per layer.
        step: h, seconds per step.
        sequence: σ, seconds per step and running sequence.
        latency: α, seconds per all-reduce over tensor ranks.
        reached: what all times are divided by: the share of this speed that a framework's engine reaches.
        table: measured steps, which replace the formula; prefill keeps it.
        cache: bytes of an element of cached keys and values: 2, or 1 in fp8 (TensorRT-LLM's default with fp8 weights).
        all_reduce: seconds of one of so many bytes over its tensor ranks. Default: by the last line of the formula.
        across: what `all_reduce` is multiplied by.
    """

    bandwidth: float = 0.95
    experts: float = 0.605
    compute: float = 0.49
    layer: float = 29e-6
    step: float = 3.0e-3
    sequence: float = 4.1e-6
    latency: float = 5.4e-6
    reached: float = 1.0
    table: DecodeTable | None = None
    cache: float = 2
    all_reduce: Callable[[int], float] | None = None
    across: float = 1.0

    @classmethod
    def of(cls, section: Section) -> DecodeEfficiency:
        """That of a scenario, with its table read.

        Raises:
            UsageError: the table cannot be read.
        """
        named: dict[str, Any] = {
            name: float(getattr(section, name)) for name in type(section).model_fields if name != "table"
        }
        return cls(**named, table=None if section.table is None else read_decode_table(section.table))


class ExpertTimes(NamedTuple):
    """Seconds of the experts of a layer: reading all of them, and computing for a sequence that wants `active`."""

    experts: int
    active: int
    read: float
    computed: float

    def seconds(self, sequences: int) -> float:
        """Of a step with so many sequences."""
        wanted = 1 - (1 - self.active / self.experts) ** sequences
        return max(wanted * self.read, sequences * self.computed)


class AllReduceTimes(NamedTuple):
    """Times of the all-reduces of a step over tensor ranks on several nodes.

    Attributes:
        number: all-reduces per step.
        size: bytes of one, for each sequence of a data rank.
        seconds: what one takes, by its bytes; asked for powers of two of sequences, and linear between them.
    """

    number: float
    size: float
    seconds: Callable[[int], float]

    def of_step(self, sequences: int) -> float:
        """Seconds of a step in which a data rank has so many sequences, at least 1."""
        below = 1 << (sequences.bit_length() - 1)
        first = self.seconds(round(below * self.size))
        if sequences == below:
            return self.number * first
        more = self.seconds(round(2 * below * self.size)) - first
        return self.number * (first + more * (sequences - below) / below)


@dataclass(frozen=True)
class DecodeCosts:
    """What a replica takes to generate.

    Attributes:
        read, computed: seconds of products that every token reads: for reading them, and for each sequence of a rank.
        experts: of layers with experts, and how many layers have the same.
        fixed: seconds of every step.
        sequence: seconds that each sequence of a data rank adds.
        all_reduces: over tensor ranks on several nodes; None: all are in `fixed` and `sequence`.
        token_ps: picoseconds that each cached token of the replica adds to a step, by the formula.
        prefill: seconds per token of a prompt.
        data: data ranks of the replica, which divide its sequences.
        kv_room: cached tokens that fit beside the state of one sequence.
        state: tokens whose cache takes as much memory as the state of a sequence.
        table: measured steps; None: the formula.
    """

    read: float
    computed: float
    experts: tuple[tuple[ExpertTimes, int], ...]
    fixed: float
    sequence: float
    token_ps: int
    prefill: float
    data: int
    kv_room: int
    state: Fraction = Fraction(0)
    table: DecodeTable | None = None
    all_reduces: AllReduceTimes | None = None

    def step_ps(self, sequences: int) -> int:
        """Picoseconds of a decode step with so many running sequences, at least 1, without what cached tokens add."""
        return self.pieces(sequences)[0].value

    def pieces(self, sequences: int) -> tuple[Piece, ...]:
        """A step as a function of the cached tokens: one piece by the formula, perhaps several by a table."""
        if self.table is not None:
            return self.table.pieces(sequences)
        mine = -(-sequences // self.data)
        whole = max(self.read, mine * self.computed) + self.fixed + mine * self.sequence
        whole += sum(layers * times.seconds(sequences) for times, layers in self.experts)
        whole += self.all_reduces.of_step(mine) if self.all_reduces is not None else 0
        return (Piece(0, round(whole * PICOSECONDS_PER_SECOND), self.token_ps),)

    def stretch_ps(self, sequences: int, held: int, steps: int) -> int:
        """Decode steps between two changes of a replica; cut anywhere, the parts take as long as the whole.

        Args:
            sequences: running on the replica all the time, at least 1.
            held: cached tokens of all of them in the first step; in each further step one more per sequence.
            steps: number of steps.

        Returns:
            Picoseconds.
        """
        pieces, whole = self.pieces(sequences), 0
        firsts = [min(steps, max(0, -((held - piece.start) // sequences))) for piece in pieces]  # steps, rounded up
        for piece, (first, after) in zip(pieces, pairwise((0, *firsts[1:], steps)), strict=True):
            count, beyond = after - first, held + first * sequences - piece.start
            whole += count * (piece.value + piece.slope * beyond) + piece.slope * sequences * (count * (count - 1) // 2)
        return whole

    def prefill_ps(self, tokens: int) -> int:
        """Picoseconds that prompts of so many tokens together take."""
        return round(tokens * self.prefill * PICOSECONDS_PER_SECOND)

    def room(self, sequences: int) -> int:
        """Cached tokens that fit beside the states of so many sequences, at least 1."""
        return int(self.kv_room - (sequences - 1) * self.state)


class _Rates(NamedTuple):
    """What a replica's GPUs have and reach.

    Attributes:
        memory: bytes of one.
        bandwidth: bytes/s of its memory.
        peak, peak16: FLOP/s in the precision and in 16 bits, or in 32 with precisions of 32.
        tensor, data: bytes/s that a rank sends to its tensor ranks, and to ranks of other data ranks.
    """

    memory: float
    bandwidth: float
    peak: float
    peak16: float
    tensor: float
    data: float


def decode_costs(
    network: Model,
    node: NodeKind,
    *,
    tensor: int = 1,
    data: int = 1,
    expert: int = 1,
    precision: str = "bf16",
    memory_share: Fraction | float = Fraction(4, 5),
    efficiency: DecodeEfficiency | None = None,
) -> DecodeCosts:
    """What a replica takes to generate with a model.

    Args:
        network: a causal model on sequences.
        node: the nodes of the replica.
        tensor: ranks that divide each layer.
        data: groups of such ranks, which divide the sequences; a replica has t·d GPUs.
        expert: groups of whole experts over these GPUs, a divisor of both; times are the same for all.
        precision: of the weights of blocks; all others have 16 bits, or 32 with tf32 and fp32.
        memory_share: of the memory of a GPU, for weights, cached tokens and states.
        efficiency: what the engine reaches. Default: the constants of `DecodeEfficiency`.

    Raises:
        Refusal: the model is not modelled or cannot be divided so, a figure of the GPU is not known, or the weights
            leave no room for a cached token; one line.
    """
    reached = efficiency or DecodeEfficiency()
    sizes = decode_sizes(network, Division(tensor, tensor * data, precision, reached.cache))
    _check_experts(sizes, tensor * data, expert)
    rates = _rates(node, precision, tensor, tensor * data)
    speed, total = reached.reached, sizes.amounts
    bandwidth = speed * (reached.bandwidth * rates.bandwidth)
    gemm, gemm16 = (speed * (reached.compute * peak) for peak in (rates.peak, rates.peak16))
    products = total.flop / gemm + total.flop16 / gemm16
    experts = tuple((_expert_times(one, rates, reached), layers) for one, layers in sorted(sizes.experts.items()))
    room, state = _room(sizes, rates.memory * float(memory_share), data)
    all_reduces, given = None, reached.all_reduce
    if given is not None and total.sums:
        all_reduces = AllReduceTimes(
            reached.across * total.sums, ELEMENT * total.summed / total.sums, lambda size: given(size) / speed
        )
        rates, total = rates._replace(tensor=inf), total._replace(sums=0.0)
    sums = total.sums * (tensor > 1) + total.mixes * (data > 1)
    return DecodeCosts(
        read=total.read / bandwidth,
        computed=products + total.logits / gemm16,
        experts=experts,
        fixed=(sizes.layers * reached.layer + reached.step + sums * reached.latency) / speed,
        sequence=total.state_moved / bandwidth + _of_sequence(total, rates, reached, tensor, data) / speed,
        token_ps=round(max(total.cache_read / bandwidth, total.cache_flop / gemm16) / data * PICOSECONDS_PER_SECOND),
        prefill=products / data + sum(layers * times.computed for times, layers in experts),
        data=data,
        kv_room=room,
        state=state,
        table=reached.table and reached.table.slower(speed),
        all_reduces=all_reduces,
    )


MEASURED = ("h100", "h200", "b200", "b300")  # GPUs of the published rows, whose engines are in fp8


def unlike_measured(network: Model, gpu: str, precision: str, data: int = 1, nodes: int = 1) -> list[str]:
    """What engines have that none of the published rows have which the constants were found on; words for each.

    Args:
        network: the model.
        gpu: name of the GPU.
        precision: of weights and GEMMs.
        data: data ranks of a replica.
        nodes: nodes of its tensor ranks.
    """
    cores = [one for layer in network.unnamed for one in layer.operations if isinstance(one, Attention | Scan)]
    attention = [core for core in cores if isinstance(core, Attention)]
    told = {
        f"in {precision}": precision != "fp8",
        f"on {gpu}": gpu not in MEASURED,
        "with data ranks": data > 1,
        "with tensor ranks on several nodes": nodes > 1,
        "with latent attention": any(core.cache is not None and not core.cache.values for core in attention),
        "with windows": any(core.window or core.chunk for core in attention),
        "with linear mixers": len(attention) < len(cores),
    }
    return [words for words, holds in told.items() if holds]


def _expert_times(sizes: ExpertSizes, rates: _Rates, reached: DecodeEfficiency) -> ExpertTimes:
    read = sizes.bytes / (reached.reached * reached.experts * rates.bandwidth)
    return ExpertTimes(sizes.experts, sizes.active, read, sizes.flop / (reached.reached * reached.compute * rates.peak))


def _of_sequence(total: Amounts, rates: _Rates, reached: DecodeEfficiency, tensor: int, data: int) -> float:
    """Seconds that each sequence of a data rank adds: on the host, and bytes of all-reduces.

    One sends 2·(n − 1)/n times its bytes (ring). Data ranks gather and scatter the tokens of all d: as many again.
    """
    within = 2 * ELEMENT * total.summed * (tensor - 1) / tensor / rates.tensor
    across = 2 * ELEMENT * total.mixed * (data - 1) / rates.data
    return reached.sequence + within + across


def _room(sizes: DecodeSizes, share: float, data: int) -> tuple[int, Fraction]:
    """Cached tokens beside the state of one sequence, and tokens that take as much memory as such a state."""
    total = sizes.amounts
    left = share - total.weights
    if not total.cached:
        raise Refusal("generation without keys and values of all tokens has no room to count; expected such attention")
    if left - total.state < total.cached:
        held, most = (format_bytes(round(size)) for size in (total.weights, share))
        raise NoRoomError(
            f"weights of {held} per GPU leave no room for a cached token in its {most}; expected more GPUs per "
            "replica, a larger share of memory, or fewer bits"
        )
    return int(data * left / total.cached - total.state / total.cached), Fraction(total.state / total.cached)


def _check_experts(sizes: DecodeSizes, ranks: int, expert: int) -> None:
    counts = sorted({one.experts for one in sizes.experts})
    if expert > 1 and not counts:
        raise Refusal("this model has no experts to divide")
    for what, size in (("ranks of a replica", ranks), *(("experts", count) for count in counts)):
        if size % expert:
            raise Refusal(f"{size} {what} cannot be divided into {expert} groups of experts")


def _rates(node: NodeKind, precision: str, tensor: int, ranks: int) -> _Rates:
    kind = node.gpu
    peak = kind.peak_in(precision)
    if not (kind.bandwidth and kind.peak and peak):
        missing = "bandwidth" if not kind.bandwidth else "peak" if not kind.peak else f"peak in {precision}"
        raise Refusal(f"the {missing} of GPU {kind.name} is not known, which decode steps depend on")
    inside = float(node.nvlink.port.bandwidth or inf)
    outside = float(node.infiniband.port.bandwidth or inf) * node.infiniband.nics_per_node / node.gpus_per_node
    within, across = (inside if several <= node.gpus_per_node else outside for several in (tensor, ranks))
    wide = peak if precision in WIDE else float(kind.peak)
    return _Rates(float(kind.memory), float(kind.bandwidth), peak, wide, within, across)
