"""Times of the operators that a model's step consists of, on all ranks at once, in 16 bits.

Products and attention are measured in their shapes, what memory bounds as PyTorch runs it, operator by operator, under
the names that the simulator has for it. Operands stay in a cache that holds them. The optimizer is AdamW on 32-bit
weights, with gradients converted to them and results back to 16 bits; a launch is that of a kernel with nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.cluster.operator_table import ATTENTION, GEMM, OPTIMIZER, SHAPES
from hybrid_des.measured.measure.folder import Folder
from hybrid_des.measured.measure.job import Job
from hybrid_des.measured.measure.needed import Needed
from hybrid_des.measured.measure.shapes import Shape

if TYPE_CHECKING:
    import torch

TABLE = "operators.csv"
BLOCK = "block"
MOST_PARAMETERS = 2**26  # of the optimizer that is timed
COPY = 2**26  # bytes to and from the host
Pair = tuple[Callable[[], object], Callable[[], object] | None]  # forward, and backward if there is one
Make = Callable[[], Pair]


class Operator(NamedTuple):
    """An operator to time: the columns that say which, and what makes its calls."""

    key: dict[str, Any]
    make: Make


def tasks(
    job: Job, folder: Folder, needed: Needed, shape: Shape | None, repeats: int
) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Each operator that the folder lacks: what it is, and what times it."""
    for operator in _operators(job, needed, shape):
        if not folder.has(TABLE, **operator.key):
            name = " × ".join(str(value) for value in operator.key.values())
            yield name, partial(_measure, job, folder, operator, repeats)


def _measure(job: Job, folder: Folder, operator: Operator, repeats: int) -> None:
    forward, backward = operator.make()
    row = {**operator.key, **job.timed(forward, repeats).columns()}
    if backward is not None:
        row["backward_s"] = job.timed(backward, repeats).median
    folder.add(TABLE, row)


def _operators(job: Job, needed: Needed, shape: Shape | None) -> Iterator[Operator]:
    for m, n, k in sorted(needed.products):
        yield Operator({"operator": GEMM, "m": m, "n": n, "k": k}, partial(_product, job, m, n, k))
    for core in sorted(needed.cores):
        key = dict(zip(SHAPES[ATTENTION], core, strict=True))
        yield Operator({"operator": ATTENTION, **key}, partial(_attention, job, core))
    for name, size in sorted(needed.passes):
        make = None if shape is None else pass_of(name, shape, needed.tokens, job)
        if make is not None:
            yield Operator({"operator": name, "bytes": size}, make)
    if shape is not None:
        yield Operator(
            {"operator": BLOCK, "heads": shape.heads, "length": shape.sequence},
            partial(_block, job, shape, needed.tokens),
        )
    count = min(needed.parameters, MOST_PARAMETERS)
    yield Operator({"operator": OPTIMIZER, "parameters": count}, partial(_optimizer, job, count))
    yield Operator({"operator": "launch"}, partial(_launch, job))
    if job.on_gpu:
        for way in ("copy to host", "copy from host"):
            yield Operator({"operator": way, "bytes": COPY}, partial(_copy, job, way))


def _random(job: Job, *sizes: int, gradient: bool = False) -> torch.Tensor:
    import torch

    return torch.randn(sizes, dtype=torch.bfloat16, device=job.device, requires_grad=gradient)


def _product(job: Job, m: int, n: int, k: int) -> Pair:
    from torch.nn import functional

    left, right = _random(job, m, k), _random(job, n, k)
    return lambda: functional.linear(left, right), None


def _attention(job: Job, core: tuple[int, ...]) -> Pair:
    from torch.nn import functional

    length, heads, shared, size, causal = core
    queries, keys, values = (_random(job, 1, count, length, size, gradient=True) for count in (heads, shared, shared))

    def forward() -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=bool(causal), enable_gqa=shared < heads
        )

    return forward, _backward([forward()], [queries, keys, values])


def _backward(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Callable[[], object]:
    """A backward that can be repeated."""
    import torch

    gradients = [torch.ones_like(output) for output in outputs]
    return lambda: torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)


def pass_of(name: str, shape: Shape, tokens: int, job: Job) -> Make | None:
    """What makes the calls of an operation bound by memory; None if it is not one of those that are known."""
    from hybrid_des.measured.measure import passes

    known = passes.KNOWN.get(name)
    if known is None:
        return None

    def make() -> Pair:
        forward, inputs = known(shape, tokens, job)
        return forward, _backward(forward(), inputs)

    return make


def updates(count: int, job: Job) -> Callable[[], object]:
    """A step of AdamW on so many 32-bit weights, from 16-bit gradients to 16-bit weights."""
    import torch

    weights, gradients = _random(job, count), _random(job, count)
    master = torch.nn.Parameter(weights.float())
    optimizer = torch.optim.AdamW([master], fused=job.on_gpu or None)

    def update() -> None:
        master.grad = gradients.float()
        optimizer.step()
        weights.copy_(master.detach())

    return update


def _block(job: Job, shape: Shape, tokens: int) -> Pair:
    """A whole block, without collectives."""
    import torch

    from hybrid_des.measured.measure.transformer import Block, rotations

    block, samples = Block(shape, None).to(job.device, torch.bfloat16), max(1, tokens // shape.sequence)
    x = _random(job, samples, tokens // samples, shape.hidden, gradient=True)
    turn = rotations(shape.head, tokens // samples, job.device, torch.bfloat16)

    def forward() -> torch.Tensor:
        output: torch.Tensor = block(x, turn)
        return output

    return forward, _backward([forward()], [x, *block.parameters()])


def _optimizer(job: Job, count: int) -> Pair:
    return updates(count, job), None


def _launch(job: Job) -> Pair:
    single = _random(job, 1)
    return lambda: single.zero_(), None


def _copy(job: Job, way: str) -> Pair:
    import torch

    host = torch.empty(COPY, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPY, dtype=torch.uint8, device=job.device)
    into, out = (host, device) if way == "copy to host" else (device, host)
    return lambda: into.copy_(out, non_blocking=True), None
