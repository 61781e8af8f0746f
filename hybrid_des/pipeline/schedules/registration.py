"""Pipeline schedules, one per file: a registered function from `PlanRequest` to `Plan`.

    from hybrid_des.pipeline import Op, Plan, PlanRequest, loop
    from hybrid_des.pipeline.schedules import schedule

    @schedule("mine", summary="…", time="(m+p−1)T", memory="m", source="me")
    def mine(request: PlanRequest) -> Plan: ...

A schedule with options (`hybrid_des.options`) registers their class, `options=Mine`, and receives an instance as its
last argument. A chunk is a virtual pipeline stage. Files that register nothing are shared by several schedules.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypedDict, Unpack

from hybrid_des.errors import PlanError
from hybrid_des.options import Options
from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.registry import Registry, completed

Scheduler = Callable[..., Plan]  # (request[, options]) → plan; raises `Refusal`
Peak = Callable[..., Fraction | int]  # (request, pipeline rank[, options]) → whole-rank micro-batches


class UniformSizes(NamedTuple):
    """Sizes of a pipeline whose ranks take equal times, with the letters of the formulas.

    Attributes:
        p: pipeline ranks.
        m: micro-batches.
        v: chunks per rank.
        forward: F, of one micro-batch on one rank with all its chunks, in any unit.
        input: I, the input part of the backward.
        weight: W, its weight part.
    """

    p: int
    m: int
    v: int
    forward: Fraction
    input: Fraction
    weight: Fraction

    @property
    def total(self) -> Fraction:
        """T = F+I+W."""
        return self.forward + self.input + self.weight

    @property
    def equal(self) -> bool:
        """Whether F = I = W."""
        return self.forward == self.input == self.weight


Formula = Callable[[UniformSizes], Fraction | None]  # time with free sends and default options; None: does not hold

_REGISTRY: Registry[Scheduler] = Registry("schedule", "hybrid_des.pipeline.schedules", returns=Plan)

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def make_plan(name: str, request: PlanRequest, options: Options | Mapping[str, Any] | None = None) -> Plan:
    """The plan of a schedule; options are an instance of its class, or values by name.

    Raises:
        Refusal: the schedule does not support these sizes.
        UsageError: there is no such schedule, or an option is invalid.
        PlanError: a user's plan is of other sizes.
    """
    return planned(name, request, find(name).arguments(options))


def planned(name: str, request: PlanRequest, arguments: tuple[Any, ...]) -> Plan:
    """The same, for arguments that are valid.

    Raises:
        PlanError: a user's plan is of other sizes than those asked for.
    """
    plan = find(name).build(request, *arguments)
    sizes, asked = (plan.pipeline, plan.microbatches), (request.pipeline, request.microbatches)
    if sizes != asked:
        returned, expected = ("{} pipeline ranks and {} micro-batches".format(*each) for each in (sizes, asked))
        raise PlanError(f'schedule "{name}" returned a plan of {returned}; expected {expected}')
    return plan


def title_of(name: str) -> str:
    """The name of a schedule as its paper writes it.

    Raises:
        UsageError: there is no such schedule.
    """
    return find(name).facts["title"] or name


class Facts(TypedDict, total=False):
    """What a schedule says about itself.

    Attributes:
        title: its name as its paper writes it, such as "ZB-V"; None, the default: the registered name.
        chunks: number of chunks per rank if the schedule fixes it; None, the default, if `schedule.chunks` sets it.
        many_chunks: whether `schedule.chunks` may be more than 1 (if `chunks` is None).
        peak: upper bound on the activations of a rank, in whole-rank micro-batches, each counted whole from the start
            of its F to the end of its backward or, if that is split, of its I, and by the request's weight share from
            then to the end of its W; checked by tests.
        formula: the formula of `time` as a function; shown beside the simulated time, never instead of it.
        span: whether it counts a rank from its first op to its last (the longest such span), not the whole step.
    """

    title: str | None
    chunks: int | None
    many_chunks: bool
    peak: Peak | None
    formula: Formula | None
    span: bool


_DEFAULTS: Facts = {
    "title": None, "chunks": None, "many_chunks": False, "peak": None, "formula": None, "span": False,
}  # fmt: skip


def schedule(
    name: str,
    *,
    summary: str,
    time: str,
    memory: str,
    source: str,
    options: type[Options] | None = None,
    **facts: Unpack[Facts],
) -> Callable[[Scheduler], Scheduler]:
    """Register a schedule with its row in the table of `hybrid-des schedules`.

    Args:
        name: value of a scenario's `schedule.kind`.
        summary: one-line description.
        time: cost formula with free sends; T = F+I+W, where I is the input part of the backward and W the weight part.
        memory: peak activations in whole-rank micro-batches, counted as `peak` does.
        source: the paper or code it follows.
        options: class of its options, which extend a scenario's `schedule:`.
        facts: see `Facts`.
    """
    row = {"summary": summary, "time": time, "memory": memory, "source": source}
    return _REGISTRY(name, options, **row, **completed("schedule", facts, _DEFAULTS))
