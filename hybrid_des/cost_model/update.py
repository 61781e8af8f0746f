"""The optimizer step of a pipeline rank: Muon's products and messages, beside a pass over parameters and state.

    matrices of the rank's layers ─► where each is whole (layout) ─► seconds of products, and collectives of its group

| layout | a matrix M × N that G ranks divide | FLOP of a rank, per iteration | messages of the group |
|---|---|---|---|
| blockwise | every rank takes its own block for a matrix | those of the block | none |
| duplicated | is gathered, and whole on each of them | 4M²N + 2M³ | an all-gather of 2MN bytes |
| distributed | stays divided; products with M² are summed | 4M²N/G + 2M³ | per iteration an all-reduce of 2M² bytes |
| layer-sharded | travels to one home rank and back | those of the matrices at home | two all-to-alls of all matrices |
| layer-wise | each replica updates whole matrices | those of its own | as `sharding` has them |

The first three are Megatron-LM's `--muon-tp-mode`, layer-wise is its `--optimizer dist_muon`, layer-sharded its issue
6683. G are tensor ranks times the ranks that divide weights. Matrices go to the rank with the least work so far, the
longest first. Products are in bf16 (Megatron-LM casts X before its first product).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heapreplace
from typing import NamedTuple

from hybrid_des.cost_model.operation_times import ELEMENT, Device
from hybrid_des.scenario.sections.optimizer import Muon
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.models.frozen import JOINED
from hybrid_des.workload.models.layer import Layer
from hybrid_des.workload.models.operations import Attention, Gemm
from hybrid_des.workload.optimizers import Matrix, newton_schulz

Sizes = tuple[int, int]
Collective = Callable[[str, int, bool], int]  # (what, bytes of a member's buffer, whether of experts) → picoseconds
ADAM_IN_MIXERS = ("mamba in",)  # Megatron-LM keeps this joined product from Muon (use_muon in ssm/mamba_mixer.py)


class Update(NamedTuple):
    """What orthogonalising the matrices of a rank takes.

    Attributes:
        taken: picoseconds, of which `exchanged` in collectives.
        exchanged: picoseconds of collectives.
        more: bytes of state that the busiest rank keeps beyond the mean, where whole matrices are divided.
    """

    taken: int = 0
    exchanged: int = 0
    more: int = 0


NO_UPDATE = Update()


class _Work(NamedTuple):
    """Seconds of products, picoseconds of collectives, and elements that the busiest rank keeps beyond the mean."""

    seconds: float = 0.0
    exchanged: int = 0
    more: int = 0


class Divisions(NamedTuple):
    """Among how many ranks matrices are divided.

    Attributes:
        tensor: ranks that hold a block each.
        weights: ranks that divide a block between them (zero-3).
        replicas: ranks that divide the optimizer's work, whole matrices each.
    """

    tensor: int
    weights: int
    replicas: int


class Orthogonalisation:
    """The optimizer step's products and collectives, for the matrices that a rank's layers have.

    Args:
        how: Newton–Schulz iterations, and where matrices are whole.
        divisions: of matrices outside of experts, and in them.
        device: the rates of a GPU.
        collective: how long a collective takes among the ranks that divide a matrix.
        state: bytes of state per element.
    """

    def __init__(
        self, how: Muon, divisions: Sequence[Divisions], device: Device, collective: Collective, state: Fraction
    ) -> None:
        self._how, self._divisions, self._device, self._collective = how, divisions, device, collective
        self._state = state
        self._known: dict[tuple[Sizes, int], float] = {}

    def __call__(self, matrices: Iterable[Matrix]) -> Update:
        """Those of these matrices."""
        counted = Counter(matrices)
        parts = []
        for expert in (False, True):
            mine = {matrix: count for matrix, count in counted.items() if matrix.expert is expert}
            parts.append(self._of(mine, self._divisions[expert]))
        seconds, exchanged, more = map(sum, zip(*parts, strict=True))
        return Update(round(seconds * PICOSECONDS_PER_SECOND) + exchanged, exchanged, int(self._state * more))

    def _of(self, matrices: Mapping[Matrix, int], among: Divisions) -> _Work:
        layout, ranks = self._how.layout, among.tensor * among.weights
        if ranks > 1 and layout in ("duplicated", "distributed"):
            each = [(count, *self._divided(matrix, ranks)) for matrix, count in matrices.items()]
            return _Work(sum(count * took for count, took, _ in each), sum(count * sent for count, _, sent in each))
        if ranks > 1 and layout == "layer-sharded":
            held = sum(count * matrix.elements for matrix, count in matrices.items()) // among.weights
            expert = any(matrix.expert for matrix in matrices)
            exchanged = 2 * self._collective("all-to-all", ELEMENT * held, expert) if held else 0
            return _Work(self._busiest(matrices, ranks, whole=True).seconds, exchanged)
        if among.replicas > 1 and layout == "layer-wise":
            return self._busiest(matrices, among.replicas, whole=False)
        shards = (((max(1, one.block[0] // among.weights), one.block[1]), count) for one, count in matrices.items())
        return _Work(sum(count * self._took(shard) for shard, count in shards))

    def _divided(self, matrix: Matrix, ranks: int) -> tuple[float, int]:
        """Seconds, and picoseconds of collectives, for a matrix that so many ranks divide."""
        if self._how.layout == "duplicated":
            size = ELEMENT * matrix.whole[0] * matrix.whole[1]
            return self._took(matrix.whole), self._collective("all-gather", size, matrix.expert)
        size = ELEMENT * min(matrix.whole) ** 2
        return self._took(matrix.whole, ranks), self._how.iterations * self._collective(
            "all-reduce", size, matrix.expert
        )

    def _took(self, sizes: Sizes, ranks: int = 1) -> float:
        """Seconds of all iterations on one matrix."""
        if (sizes, ranks) not in self._known:
            products = newton_schulz(sizes, symmetric=self._how.symmetric, ranks=ranks)
            each = (float(one.share) * self._device.product(one.m, one.n, one.k) for one in products)
            self._known[sizes, ranks] = self._how.iterations * sum(each)
        return self._known[sizes, ranks]

    def _busiest(self, matrices: Mapping[Matrix, int], ranks: int, *, whole: bool) -> _Work:
        """That of the busiest of some ranks among which matrices are divided, the longest first."""
        homes = [(0.0, rank, 0) for rank in range(ranks)]
        sizes = {matrix: matrix.whole if whole else matrix.block for matrix in matrices}
        for matrix in sorted(matrices, key=lambda matrix: -self._took(sizes[matrix])):
            for _ in range(matrices[matrix]):
                work, rank, held = homes[0]
                heapreplace(homes, (work + self._took(sizes[matrix]), rank, held + matrix.elements))
        mean = sum(count * matrix.elements for matrix, count in matrices.items()) // ranks
        return _Work(max(homes)[0], 0, max(held for _, _, held in homes) - mean)


def matrices_of(layer: Layer, how: Muon, held: Callable[[Gemm], int], *, tensor: int, of_expert: int) -> list[Matrix]:
    """The matrices of a layer that Muon updates: none of the ends of a model, or where another layer has them.

    Args:
        layer: the layer.
        how: whether queries, keys and values are one matrix.
        held: the experts that a rank holds of a product.
        tensor: ranks that divide a matrix outside of experts.
        of_expert: ranks that divide one of an expert.
    """
    if not layer.is_block or not layer.parameters.total:
        return []
    core = next((one for one in layer.operations if isinstance(one, Attention)), None)
    matrices: list[Matrix] = []
    for gemm in (
        one for one in layer.operations if isinstance(one, Gemm) and one.trained and one.name not in ADAM_IN_MIXERS
    ):
        rows = [gemm.n * (gemm.count if gemm.split == "groups" else 1)]
        if gemm.name == JOINED and core is not None and not how.joined:
            rows = _apart(gemm.n, core)
        ranks = of_expert if gemm.expert else tensor
        for n in rows:
            share = -(-n // ranks), gemm.k
            block = {"columns": share, "groups": share, "rows": (n, -(-gemm.k // ranks))}.get(gemm.split, (n, gemm.k))
            matrices += [Matrix((n, gemm.k), block, gemm.expert)] * (held(gemm) if gemm.expert else 1)
    return matrices


def _apart(joined: int, core: Attention) -> list[int]:
    """The rows of queries, keys and values, and of a gate, in their joined product, as far as it has them."""
    rows: list[int] = []
    for size in (core.heads * core.key_size, core.kv_heads * core.key_size, core.kv_heads * core.value_size, joined):
        rows.append(min(size, joined - sum(rows)))
    return [each for each in rows if each]
