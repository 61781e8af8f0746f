"""The section `data`: the documents of a step, how long they are and how they are packed, and what must agree with it.

    data: {lengths: {kind: lognormal, mean: 2048, sigma: 1, max: 8192}, packing: greedy, tokens: 8192}

Samples are documents then. With `batch`, a step has as many documents as samples, and as many micro-batches as they
need; with `schedule.microbatches`, so many micro-batches as documents fill.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from hybrid_des.options import Reads, TokenCount, describe, given, whole
from hybrid_des.registry import Entry
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.plugins import Plugins, PluginSection
from hybrid_des.scenario.sections.values import LengthsName, PackingName
from hybrid_des.workload import lengths as kinds
from hybrid_des.workload.lengths import LengthRequest
from hybrid_des.workload.models.layer import Model
from hybrid_des.workload.models.operations import Attention, Scores
from hybrid_des.workload.packing import registration as packers
from hybrid_des.workload.packing.registration import NONE, PackRequest

if TYPE_CHECKING:
    from hybrid_des.scenario.sections.training import Parallel, Schedule

MOST_SQUARED = 2**60  # tokens² of a micro-batch: columns of 64 bits hold those of a few
WHOLE = "per-document"  # the method of context ranks that take whole documents
STEP = "step"


def _padding(value: Any) -> bool | str:
    if not isinstance(value, bool) and value != STEP:
        raise ValueError(f"expected true, false or {STEP}, found {describe(value)}")
    return value  # type: ignore[no-any-return]


Padding = Annotated[bool | str, Reads(_padding, {"enum": [False, True, STEP]})]


class Lengths(PluginSection):
    """How long documents are, in tokens."""

    plugins: ClassVar[Plugins] = Plugins("kind", kinds.names, kinds.find)
    kind: LengthsName
    """Where lengths come from: a distribution, given lengths, or a file."""
    min: TokenCount = 1
    """The least tokens of a document; shorter ones have as many."""
    max: TokenCount | None = None
    """The most tokens of a document; longer ones are cut. Default: the model's `sequence`, or what finds a place."""

    @property
    def drawn(self) -> bool:
        """Whether another seed gives other lengths."""
        return bool(kinds.find(self.kind).facts["drawn"])


class Data(PluginSection):
    """The documents of a step, and how they become micro-batches."""

    plugins: ClassVar[Plugins] = Plugins(
        "packing", packers.names, packers.find, NONE, besides={NONE: Entry(f"packing {NONE}", None)}
    )
    lengths: Lengths
    """How long documents are."""
    packing: PackingName = NONE
    """How documents are divided among micro-batches and replicas."""
    padded: Padding = False
    """Whether all documents of a micro-batch are padded to its longest one, or `step`: the last document of each
    micro-batch, until it has as many tokens as the fullest one of the step. False: documents follow each other."""
    seed: Annotated[int, whole(0, 2**63 - 1)] | None = None
    """Seed of the lengths. Default: `seed`."""

    @property
    def packer(self) -> Any:
        """The registered packer."""
        return packers.find(self.packing)

    def request(self, network: Model, parallel: Parallel, schedule: Schedule, *, given: bool) -> PackRequest:
        """What the packer is asked for; `given`: whether the documents are given, and not the micro-batches."""
        samples = schedule.microbatch_size
        return PackRequest(
            parallel.data,
            parallel.context,
            samples,
            samples * network.tokens,
            None if given else schedule.microbatches,
            linear_of(network),
            parallel.pipeline if schedule.virtual else 1,
        )

    def places(self, request: PackRequest) -> int | None:
        """The most tokens of a document that finds a place; None: any."""
        holds = self.packer.facts["holds"]
        return None if holds is None else int(holds(request, *self.arguments))

    def limits(self, request: PackRequest, network: Model) -> LengthRequest:
        """The limits of lengths."""
        places = self.places(request)
        most = self.lengths.max or min(network.tokens, places or network.tokens)
        return LengthRequest(self.lengths.min, most, network.tokens)


DataOrNone = Annotated[Data | None, given(Data, none=True)]


def linear_of(network: Model) -> int:
    """Tokens of a document whose attention has as many FLOP as the rest of the model; at least one."""
    operations = [one for layer in network.layers for one in layer.operations]
    cores = [one for one in operations if isinstance(one, Attention | Scores)]
    rest = sum(one.flop for one in operations if not isinstance(one, Attention | Scores))
    each = sum(one.flop / one.sequence for one in cores)
    return max(1, int(rest / each)) if each else 2**40


def misfits_of_data(data: Data | None, parallel: Parallel, schedule: Schedule, **more: Any) -> Iterator[Problem]:
    """Values that contradict `data`; `more` are the model's network, the batch, and `every` of gradients."""
    network, batch, every = more["network"], more["batch"], more["every"]
    if data is None:
        if parallel.context_method == WHOLE:
            message = f"{WHOLE} needs documents; expected ring, all-to-all or all-gather"
            yield misfit(message, "parallel.context_method", "data")
        return
    if network is None:
        return
    if network.sample != "sequence":
        yield misfit("this model has no sequences of tokens", "data", "model")
        return
    if data.lacking or data.lengths.lacking:
        return
    request = data.request(network, parallel, schedule, given=batch is not None)
    yield from _misfits_of_lengths(data, request, network)
    if data.lengths.drawn and parallel.layout.crosses_lanes:
        message = "tensor ranks that hold the same documents share experts with different ranks; expected fixed lengths"
        yield misfit(message, "parallel.expert", "data.lengths.kind", "parallel.expert_tensor")
    if data.lengths.drawn and every > 1:
        yield misfit("is not supported with `every` above 1; expected fixed", "data.lengths.kind", "gradients.every")
    if data.packer.facts["lanes"]:
        yield from _misfits_of_lanes(data, parallel, given=batch is not None)


def _misfits_of_lanes(data: Data, parallel: Parallel, *, given: bool) -> Iterator[Problem]:
    """What a packer that splits documents over ranks itself does not go with; `given`: whether documents are."""
    if parallel.context_method not in ("ring", "all-gather"):
        message = f"{data.packing} splits documents over more and fewer ranks; expected ring or all-gather"
        yield misfit(message, "parallel.context_method", "data.packing")
    if not given:
        message = f"{data.packing} decides the number of micro-batches; expected `batch`, the documents per step"
        yield misfit(message, "data.packing", "schedule.microbatches", "batch")


def _misfits_of_lengths(data: Data, request: PackRequest, network: Model) -> Iterator[Problem]:
    """Limits that no document can have."""
    limits, places = data.limits(request, network), data.places(request)
    if places is not None and limits.most > places:
        message = f"documents of up to {limits.most} tokens do not fit; {data.packing} has room for {places}"
        yield misfit(message, "data.lengths.max", "data.packing")
    elif limits.least > limits.most:
        yield misfit(f"must be at most {limits.most}, the longest document", "data.lengths.min", "data.lengths.max")
    elif (length := getattr(data.lengths.options, "length", None)) is not None and length > limits.most:
        message = f"{length} tokens are more than the longest document has ({limits.most}); raise data.lengths.max"
        yield misfit(message, "data.lengths.length", "data.lengths.max")
    elif request.samples * limits.most > (most := MOST_SQUARED // limits.most):
        message = f"{request.samples} documents of up to {limits.most} tokens are more than can be simulated"
        yield misfit(f"{message} (at most {most} tokens)", "schedule.microbatch_size", "data.lengths.max")
