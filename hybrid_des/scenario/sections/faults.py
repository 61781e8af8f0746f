"""The section `faults` of a scenario: failures over weeks, their rates, and how a job handles them.

A key that is left out is an unknown, not a zero: `hybrid-des goodput` says so wherever it matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BeforeValidator

from hybrid_des.options import (
    MOST,
    Count,
    Factor,
    Flag,
    LastingSpan,
    Reads,
    Section,
    Span,
    Text,
    choice,
    decimal,
    describe,
    given,
    quantity_schema,
    read_positive,
    whole,
    within,
    word_or_count,
)
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.training import Parallel
from hybrid_des.units import EXAMPLES

OPTIMAL, NEVER = "optimal", "none"
LEAF, NO_NODE, ONE_NODE = "leaf", "none", "node"
WIDE = ("switch", "power")  # each serves several nodes
RATES = ("mtbf", "count", "weibull", "times")
READ_BY = {"cost": ("sync",), "blocking": ("async", "memory"), "write": ("async", "memory"), "persist": ("memory",)}
WHATS = ("gpu", "node", "nic", "link", "switch", "power", "job")


def _every(value: object) -> Fraction | str:
    """A span, a number of steps as "200 steps", `optimal` or `none`."""
    if value in (OPTIMAL, NEVER):
        return str(value)
    words = value.split() if isinstance(value, str) else []
    if len(words) == 2 and words[1] in ("step", "steps") and words[0].isdecimal() and 0 < int(words[0]) <= MOST:
        return f"{int(words[0])} steps"
    try:
        return read_positive(value, "span")
    except ValueError as error:
        message = str(error).replace(EXAMPLES["span"], "30 min, 200 steps, optimal or none")
        raise ValueError(message) from None


def _effect(value: object) -> object:
    """Read an effect; `stop`, the default, becomes None."""
    if value == "stop":
        return None
    if not isinstance(value, Mapping | FailureEffect) and value is not None:
        raise ValueError(f"expected stop, {{flap: 20 s}} or {{slow: 0.5, lasts: 3 h}}, found {describe(value)}")
    return value


EVERY_SCHEMA = {
    "anyOf": [*quantity_schema("span")["anyOf"], {"enum": [OPTIMAL, NEVER]}, {"type": "string", "pattern": "steps?$"}],
    "examples": ["30 min", "200 steps", OPTIMAL],
}
Domain = Annotated[int | str, word_or_count(LEAF, NO_NODE, ONE_NODE, beside="a number of nodes")]


class Weibull(Section):
    """Lives of one part that are Weibull distributed, instead of exponentially."""

    scale: LastingSpan
    """63 % of the parts fail before this age."""
    # the mean is scale · Γ(1 + 1/shape)
    shape: Annotated[Fraction, within(0.1, 100, "from 0.1 to 100")]
    """Below 1 new parts fail more often, above 1 old ones; 1 is exponential."""


class FailureEffect(Section):
    """What a failure does to the job other than to stop it."""

    flap: LastingSpan | None = None
    """The job pauses for this long, then continues."""
    slow: Factor | None = None
    """The GPU or node computes, the NIC or link carries, at this share of its speed."""
    lasts: LastingSpan | None = None
    """With `slow`: its duration."""


class FailureClass(Section):
    """A kind of failure: what fails, how often, and what it takes down."""

    what: Annotated[str, choice(*WHATS)]
    """gpu, node, nic, link (one per NIC), switch, power (a power domain), or job (software: takes nothing down)."""
    name: Text = ""
    """Name in tables; it also selects the random numbers. Default `what`, numbered if several have the same."""
    mtbf: LastingSpan | None = None
    """Mean time between failures of one such part; exponential."""
    count: Count | None = None
    """Instead of `mtbf`: failures of all parts of the job together in the time `over`."""
    over: LastingSpan | None = None
    """With `count`: the time span."""
    weibull: Weibull | None = None
    """Instead of `mtbf`: lives that are not exponential."""
    times: tuple[Span, ...] | None = None
    """Instead of `mtbf`: the times of the failures."""
    domain: Domain | None = None
    """What is down until it is repaired: node, none, leaf (the nodes below one leaf switch), or a number of nodes.

    Default node; of a switch under topology leaf-spine leaf; of a job none."""
    repair: Span | None = None
    """Time until its nodes are back. Default spares.repair."""
    effect: Annotated[
        FailureEffect | None, BeforeValidator(_effect, json_schema_input_type=Literal["stop"] | FailureEffect | None)
    ] = None
    """stop (the default), {flap: 20 s}, or {slow: 0.5, lasts: 3 h}."""


class Restart(Section):
    """From all nodes being available to the first step."""

    time: Span
    """Loading the checkpoint, starting processes."""
    can_fail: Flag = True
    """Whether a failure while the job is down counts: the recovery starts over."""


class Spares(Section):
    """Standby nodes, in addition to those of the job; they fail as often."""

    nodes: Annotated[int, whole(0, MOST)]
    """Number of spares."""
    swap: Span | None = None
    """Time to put one in the place of a failed node."""
    repair: Span
    """Time until a failed node is back."""


class Persist(Section):
    """Copies in storage of checkpoints that are otherwise held in memory."""

    every: LastingSpan
    """Time from one to the next."""
    write: Span
    """Time until one is complete; the job goes on."""


class Checkpoint(Section):
    """When progress is saved, and what it costs."""

    every: Annotated[Fraction | str, Reads(_every, EVERY_SCHEMA)]
    """Work between two checkpoints, to the end of a step: a time, "200 steps", or optimal; none: never."""
    mode: Annotated[str, choice("sync", "async", "memory")] = "sync"
    """sync: the job stops until it is saved; async: while it is copied; memory: while it is copied to another node."""
    cost: Span | None = None
    """sync: how long the job stops."""
    blocking: Span | None = None
    """async, memory: how long the job stops."""
    write: Span | None = None
    """async, memory: from then until it is safe; the job continues."""
    persist: Persist | None = None
    """memory: copies in storage, for failures that take down several nodes."""

    @property
    def steps(self) -> int | None:
        """The interval in steps, if it is given in steps."""
        return int(self.every.split()[0]) if isinstance(self.every, str) and self.every[0].isdecimal() else None

    @property
    def stop(self) -> Fraction:
        """How long one checkpoint stops the job, in seconds."""
        return (self.cost if self.mode == "sync" else self.blocking) or Fraction(0)


def _never(value: object) -> object:
    return {"every": NEVER} if value == NEVER else value


class Elastic(Section):
    """Going on with fewer replicas while nodes are missing."""

    min_replicas: Count
    """The fewest with which the job continues."""
    batch: Annotated[str, choice("keep", "shrink")] = "keep"
    """keep: the others take over the samples of a missing replica; shrink: its samples are dropped."""


class Faults(Section):
    """Weeks of wall time: failures and the response to them. Read by `hybrid-des goodput` and by sweeps."""

    horizon: LastingSpan
    """Wall time that is simulated."""
    replications: Annotated[int, whole(1, 10**5)] = 32
    """Number of replications, each with different random numbers."""
    classes: tuple[FailureClass, ...] = ()
    """Classes of failures."""
    detect: Span | None = None
    """From a failure until it is noticed."""
    restart: Restart | None = None
    """What follows when all nodes are there."""
    spares: Spares | None = None
    """What replaces failed nodes."""
    checkpoint: Annotated[
        Checkpoint | None, BeforeValidator(_never, json_schema_input_type=Literal["none"] | Checkpoint | None)
    ] = None
    """How progress is saved."""
    elastic: Annotated[Elastic | None, given(Elastic, Literal["none"] | Elastic, none=True)] = None
    """Whether the job goes on with fewer replicas."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each class: as given, else `what`, numbered from its second occurrence on."""
        seen: dict[str, int] = {}
        names = []
        for failure in self.classes:
            name = failure.name or failure.what
            seen[name] = seen.get(name, 0) + 1
            names.append(name if failure.name or seen[name] == 1 else f"{name} {seen[name]}")
        return tuple(names)


FaultsOrNone = Annotated[Faults | None, given(Faults, Literal["none"] | Faults, none=True)]


def nodes_below(failure: FailureClass, cluster: Cluster) -> int | None:
    """Number of nodes that a failure of a class takes down; None if unknown."""
    leaf = getattr(cluster.options, "leaf_size", None)
    domain = failure.domain
    if domain is None:
        domain = (
            0 if failure.what == "job" else leaf if failure.what == "switch" else None if failure.what == "power" else 1
        )
    return {NO_NODE: 0, ONE_NODE: 1, LEAF: leaf}[domain] if isinstance(domain, str) else domain


def misfits_of_faults(faults: Faults, cluster: Cluster, parallel: Parallel) -> Iterator[Problem]:
    """Contradictions within `faults`, and between it and the machine."""
    if not faults.classes:
        yield misfit("is required: what fails, such as [{what: gpu, mtbf: 50000 h}]", "faults.classes")
    names = faults.names
    for i, name in enumerate(names):
        if name in names[:i]:
            yield misfit(f'"{name}" is the name of classes[{names.index(name)}] too', f"faults.classes.{i}.name")
    for i, failure in enumerate(faults.classes):
        path = f"faults.classes.{i}"
        for message, *key in (
            *_misfits_of_rate(failure),
            *_misfits_of_domain(failure, cluster),
            *_misfits_of_effect(failure),
        ):
            yield misfit(message, ".".join([path, *key]), "cluster")
        if failure.repair is not None and faults.spares is None:
            yield misfit("is read with `spares` only", f"{path}.repair", "faults.spares")
    if faults.checkpoint is not None:
        yield from _misfits_of_mode(faults.checkpoint)
        yield from _misfits_of_copies(faults.checkpoint, faults, cluster)
        yield from _misfits_of_optimum(faults.checkpoint, faults)
    nodes = len(cluster.nodes_for(parallel.ranks))
    if faults.spares is not None and faults.spares.nodes > nodes:
        message = f"{faults.spares.nodes} spares are more than the {nodes} nodes of the job"
        yield misfit(message, "faults.spares.nodes", "cluster", "parallel")
    if faults.elastic is not None:
        if faults.elastic.min_replicas > parallel.data:
            message = f"{faults.elastic.min_replicas} are more than the {parallel.data} of parallel.data"
            yield misfit(message, "faults.elastic.min_replicas", "parallel.data")
        if faults.spares is None:
            message = "is required by elastic: {nodes: 0, repair: 24 h}, since missing nodes return"
            yield misfit(message, "faults.spares", "faults.elastic")


Mistake = tuple[str, ...]  # a message, and the key that it is about, or none for the whole section


def _misfits_of_rate(failure: FailureClass) -> Iterator[Mistake]:
    given = [key for key in RATES if getattr(failure, key) is not None]
    if not given:
        yield ("a rate is required; expected one of mtbf, count and over, weibull, times",)
    for key in given[1:]:
        yield f"replaces `{given[0]}`; give only one of the two", key
    if failure.count is not None and failure.over is None:
        yield "is required by `count`: failures in what time", "over"
    if failure.over is not None and failure.count is None:
        yield "is read with `count` only", "over"


def _misfits_of_domain(failure: FailureClass, cluster: Cluster) -> Iterator[Mistake]:
    below = nodes_below(failure, cluster)
    if failure.domain == LEAF and below is None:
        yield "leaf: this topology has no leaves; expected a number of nodes", "domain"
    elif below is None:
        yield f"is required: the number of nodes below a {failure.what}", "domain"
    if failure.what == "job" and below:
        yield "a failure of the job takes down no nodes; expected none", "domain"
    if failure.what in WIDE and failure.domain == NO_NODE:
        yield f"none: expected the number of nodes below a {failure.what}, or what: job", "domain"


def _misfits_of_effect(failure: FailureClass) -> Iterator[Mistake]:
    effect = failure.effect
    if effect is None:
        return
    if (effect.flap is None) == (effect.slow is None):
        yield "expected stop, {flap: 20 s} or {slow: 0.5, lasts: 3 h}", "effect"
    elif (effect.slow is None) != (effect.lasts is None):
        known, lacking = ("slow", "lasts") if effect.lasts is None else ("lasts", "slow")
        yield f"`{known}` needs `{lacking}` too", "effect"
    elif effect.slow is not None and failure.what not in ("gpu", "node", "nic", "link"):
        yield f"slows a gpu, node, nic or link, not a {failure.what}", "effect", "slow"
    elif effect.slow is not None and effect.slow >= 1:
        yield f"must be less than 1, a share of its speed, not {decimal(effect.slow)}", "effect", "slow"


def _misfits_of_mode(checkpoint: Checkpoint) -> Iterator[Problem]:
    for key, modes in READ_BY.items():
        given, path = getattr(checkpoint, key) is not None, f"faults.checkpoint.{key}"
        if checkpoint.every == NEVER:
            if given:
                yield misfit("is not read where nothing is saved", path, "faults.checkpoint.every")
        elif given and checkpoint.mode not in modes:
            message = f"is not read by {checkpoint.mode}; read by {', '.join(modes)}"
            yield misfit(message, path, "faults.checkpoint.mode")
        elif not given and checkpoint.mode in modes and key != "persist":
            yield misfit(f"is required by {checkpoint.mode}", path, "faults.checkpoint.mode")


def _misfits_of_copies(checkpoint: Checkpoint, faults: Faults, cluster: Cluster) -> Iterator[Problem]:
    """A copy in the memory of one other node is lost if several nodes fail together."""
    if checkpoint.mode != "memory" or checkpoint.persist is not None:
        return
    for i, failure in enumerate(faults.classes):
        if failure.effect is None and (nodes_below(failure, cluster) or 0) > 1:
            message = f"is required: {faults.names[i]} takes down several nodes, with what their memory holds"
            yield misfit(message, "faults.checkpoint.persist", f"faults.classes.{i}")
            return


def _misfits_of_optimum(checkpoint: Checkpoint, faults: Faults) -> Iterator[Problem]:
    if checkpoint.every != OPTIMAL:
        return
    if all(one.effect is not None for one in faults.classes):
        message = "optimal: no class stops the job; expected a time"
        yield misfit(message, "faults.checkpoint.every", "faults.classes")
    elif not checkpoint.stop and (checkpoint.cost, checkpoint.blocking) != (None, None):
        message = "optimal: checkpoints that cost nothing have no best interval; expected a time"
        yield misfit(message, "faults.checkpoint.every", "faults.checkpoint")
