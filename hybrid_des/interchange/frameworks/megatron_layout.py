"""Axes, stages, schedule and dispatch of tokens as flags of Megatron-LM: one table of rules, written and read.

Ranks are numbered along tensor, context, data, then pipeline; with --use-tp-pp-dp-mapping, along data last.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from hybrid_des.errors import LONGEST_SHOWN, Refusal, one_line
from hybrid_des.interchange.frameworks.launch_line import Given, Rule, Values, number, switch, word
from hybrid_des.interchange.frameworks.megatron_documents import DOCUMENTS
from hybrid_des.interchange.frameworks.megatron_kinds import hybrid_stages, is_hybrid
from hybrid_des.workload.models.stages import layout_of, stages_in

DATA_FIRST, DATA_LAST = ("tensor", "data", "pipeline"), ("tensor", "pipeline", "data")  # orders that it has


def _write_order(values: Values) -> Iterable[str]:
    return ("--use-tp-pp-dp-mapping",) if order_of(values) == DATA_LAST else ()


def order_of(values: Values) -> tuple[str, ...]:
    """The order of ranks, without context where it follows tensor, as by default."""
    order = tuple(values.get("parallel.order") or DATA_FIRST)
    if "context" in order and order.index("context") == order.index("tensor") + 1:
        return tuple(axis for axis in order if axis != "context")
    return order


def _write_schedule(values: Values) -> Iterable[str]:
    if values["schedule.kind"] != "interleaved-1f1b" or values["parallel.pipeline"] == 1:
        return ()
    chunks = values["schedule.chunks"]
    flags = {
        f"--num-virtual-stages-per-pipeline-rank {chunks}": chunks > 1 and not _layout(values),
        "--no-overlap-p2p-communication": values["schedule.p2p"] == "blocking",
    }
    return [flag for flag, holds in flags.items() if holds]


def _read_schedule(given: Given) -> Values:
    ranks, layers = given.number("--pipeline-model-parallel-size") or 1, given.number("--num-layers")
    hybrid = hybrid_stages(given)
    waits = "--no-overlap-p2p-communication" in given
    if ranks == 1:
        given.pass_over(_LAYOUT, *_CHUNKS)
        return {}
    chunks, each = given.number(_CHUNKS[0]) or 1, given.number(_CHUNKS[1])
    if each is not None and layers is not None:
        chunks = (layers + sum(flag in given for flag in (_EMBEDDING, _LOSS))) // (ranks * each)
    if (layout := _stages_of_layout(given)) is not None:
        chunks = len(layout) // ranks
    if hybrid is not None:
        chunks = len(hybrid) // ranks
    if chunks > 1:
        values = {"schedule.kind": "interleaved-1f1b", "schedule.chunks": chunks}
        return values | ({"schedule.p2p": "blocking"} if waits else {})
    return {"schedule.kind": "1f1b", "schedule.p2p": "blocking"}  # plain 1F1B waits for its messages there


_EMBEDDING, _LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
_FIRST, _LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
_LAYOUT = "--pipeline-model-parallel-layout"
_CHUNKS = ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage")


def _layout(values: Values) -> bool:
    """Whether stages are written one by one: lists that have no other form."""
    return isinstance(values["parallel.stages"], tuple | list) and not _ends(values)


def _ends(values: Values) -> bool:
    stages = values["parallel.stages"]
    return len(stages) > 2 and values["schedule.chunks"] == 1 and len(set(stages[1:-1])) == 1


def _write_stages(values: Values) -> Iterable[str]:
    stages = values["parallel.stages"]
    if values["parallel.pipeline"] == 1 or (is_hybrid(values) and isinstance(stages, tuple | list)):
        return ()
    if stages == "ends-1":
        return (_EMBEDDING, _LOSS)
    if not isinstance(stages, tuple | list):
        return ()
    if _layout(values):
        return (f"{_LAYOUT} '{layout_of(stages, values.get('model.predictions') or 0)}'",)
    return (f"{_FIRST} {stages[0]}", f"{_LAST} {stages[-1]}")


def _read_stages(given: Given) -> Values:
    ranks, layers = given.number("--pipeline-model-parallel-size") or 1, given.number("--num-layers")
    both = [flag in given for flag in (_EMBEDDING, _LOSS)]
    first, last = given.number(_FIRST), given.number(_LAST)
    if (layout := _stages_of_layout(given)) is not None:
        return {"parallel.stages": _listed(layout)}
    if (hybrid := hybrid_stages(given)) is not None and ranks > 1:
        return {"parallel.stages": hybrid}
    if any(both) and not all(both):
        alone, other = (_EMBEDDING, _LOSS) if both[0] else (_LOSS, _EMBEDDING)
        raise given.error(alone, f"expected {other} too; one of them alone has no equal here")
    if all(both) and ranks > 1:
        return {"parallel.stages": "ends-1"}
    if layers is None or ranks == 1 or (first is None and last is None):
        return {}
    return {"parallel.stages": _uneven(given, layers, ranks, (first, last))}


def _listed(layout: Sequence[str]) -> list[int | str]:
    """Layers per stage, or the letters of stages where predictions or the loss have some of their own."""
    letters = [stage.removeprefix("E") for stage in layout]
    usual = all(re.fullmatch("t*", stage) for stage in letters[:-1])
    if usual and "t" in letters[-1]:
        return [stage.count("t") for stage in letters]
    return [stage if stage.strip("t") else len(stage) for stage in letters]


def _uneven(given: Given, layers: int, ranks: int, ends: tuple[int | None, int | None]) -> list[int]:
    """Layers per stage where the ends have their own numbers, and the others share what remains."""
    others = ranks - sum(end is not None for end in ends)
    rest = layers - sum(end or 0 for end in ends)
    if rest < 0 or (rest % others if others else rest):
        raise given.error(_FIRST, f"{layers} layers less those of the ends cannot be divided over {others} stages")
    each = rest // others if others else 0
    first, last = (each if end is None else end for end in ends)
    return [first, *[each] * (ranks - 2), last]


def uncounted(given: Given) -> Iterator[str]:
    """Flags that divide the layers of a model whose number is not there."""
    if given.number("--num-layers") is None:
        flags = [flag for flag in (_FIRST, _LAST, "--num-layers-per-virtual-pipeline-stage") if flag in given]
        yield from (
            f"parallel.stages: even, one per rank: {flag} counts from --num-layers, which is missing" for flag in flags
        )


def _stages_of_layout(given: Given) -> tuple[str, ...] | None:
    text = given.text(_LAYOUT)
    if text is None:
        return None
    try:
        return stages_in(text)
    except Refusal as refusal:
        raise given.error(_LAYOUT, str(refusal)) from None


_CONTEXT, _ULYSSES, _METHOD = "--context-parallel-size", "--ds-sequence-parallel-size", "--cp-comm-type"
_METHODS = {"p2p": "ring", "a2a": "all-to-all", "allgather": "all-gather", "a2a+p2p": "ring"}
_HIERARCHICAL = "keys pass around one ring of all context ranks here, without the all-to-alls inside its groups"


def _write_context(values: Values) -> Iterator[str]:
    if values["parallel.context"] > 1:
        yield f"{_CONTEXT} {values['parallel.context']}"
        yield from word(_METHOD, "parallel.context_method", _METHODS, None).write(values)


def _read_context(given: Given) -> Values:
    """Context ranks; those of Megatron-DeepSpeed exchange heads (DeepSpeed-Ulysses)."""
    ranks, ulysses = given.number(_CONTEXT), given.number(_ULYSSES)
    given.pass_over("--force-ds-sequence-parallel")
    if (ranks or 1) == 1 and _CONTEXT not in given.aside:
        given.pass_over(_METHOD)
        return {"parallel.context": ulysses or 1, "parallel.context_method": "all-to-all" if ulysses else None}
    method = word(_METHOD, "parallel.context_method", _METHODS, None).read(given)
    if given.text(_METHOD) == "a2a+p2p":
        given.unmodelled[_METHOD] = _HIERARCHICAL
        given.words("--hierarchical-context-parallel-sizes")
    return {"parallel.context": ranks or 1, **method}


_CAPACITY, _PADS = "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity"
_DISPATCHERS = {"flex": "per-node", "alltoall": "all-to-all", "allgather": "all-to-all"}
_DISPATCHER = word("--moe-token-dispatcher-type", "experts.dispatcher", _DISPATCHERS, None)
_LIBRARY, HYBRID_EP = "--moe-flex-dispatcher-backend", "hybridep"
_STREAMS = switch("--overlap-moe-expert-parallel-comm", "experts.streams", on=True, off=None)
_DELAYED = switch("--delay-wgrad-compute", "experts.delay_weight", on=True, off=None)
_ROUTER = switch("--moe-router-fusion", "experts.router", on="fused", off="eager")


def _write_dispatch(values: Values) -> Iterator[str]:
    """How tokens travel to their experts, and over which ranks those are divided."""
    if not values.get("model.experts"):
        return
    if values["parallel.tensor"] > 1:
        yield f"--expert-tensor-parallel-size {values['parallel.expert_tensor'] or values['parallel.tensor']}"
    travel = values["parallel.expert"] * (values["parallel.expert_tensor"] or values["parallel.tensor"]) > 1
    # Megatron-LM refuses flex where no token travels, and has the all-gather by default
    yield from _DISPATCHER.write(values) if travel else ("--moe-token-dispatcher-type alltoall",)
    if travel and values.get("experts.library") == HYBRID_EP and values["experts.dispatcher"] == _DISPATCHERS["flex"]:
        yield f"{_LIBRARY} {HYBRID_EP}"
    for rule in (_STREAMS, _DELAYED, _ROUTER):
        yield from rule.write(values)
    if values["experts.capacity_factor"] is not None:
        yield f"{_CAPACITY} {float(values['experts.capacity_factor']):g}"
        if values["experts.pad"]:
            yield _PADS


def _read_capacity(given: Given) -> Values:
    """The most tokens of an expert, and whether fewer are padded to it."""
    factor = given.text(_CAPACITY)
    if factor is None:
        return {}
    if not re.fullmatch(r"-?\d{1,6}(\.\d*)?", factor):
        raise given.error(_CAPACITY, f'expected a number such as 1.25, found "{one_line(factor, LONGEST_SHOWN)}"')
    pads = _PADS in given
    given.words("--moe-token-drop-policy")
    if float(factor) <= 0:  # Megatron-LM's none
        return {}
    return {"experts.capacity_factor": float(factor), "experts.pad": True if pads else None}


def _read_dispatch(given: Given) -> Values:
    if not given.number("--num-experts", least=0) and "--num-experts" not in given.aside:
        return {}  # so that these flags are named as not understood
    values = {
        path: value for rule in (_DISPATCHER, _STREAMS, _DELAYED, _ROUTER) for path, value in rule.read(given).items()
    }
    split, tensor = given.number("--expert-tensor-parallel-size"), given.number("--tensor-model-parallel-size") or 1
    library = next(iter(given.words(_LIBRARY)), None)  # which of those that send once per node
    given.pass_over("--moe-enable-deepep")
    values["experts.dispatcher"] = values["experts.dispatcher"] or _DISPATCHERS["allgather"]  # Megatron-LM's default
    if (given.number("--expert-model-parallel-size") or 1) * (split or tensor) == 1:
        values.pop("experts.dispatcher", None)
    elif library == HYBRID_EP and values["experts.dispatcher"] == _DISPATCHERS["flex"]:
        values["experts.library"] = HYBRID_EP
    return {**values, **_read_capacity(given), "parallel.expert_tensor": None if split in (None, tensor) else split}


LAYOUT = (
    number("--tensor-model-parallel-size", "parallel.tensor", 0),
    number("--pipeline-model-parallel-size", "parallel.pipeline", 0),
    Rule(_write_context, _read_context),
    number("--expert-model-parallel-size", "parallel.expert", 1),
    Rule(_write_dispatch, _read_dispatch),
    switch("--sequence-parallel", "parallel.sequence", on=True, off=False).when(
        lambda values: values["parallel.tensor"] > 1
    ),
    Rule(_write_order, switch("--use-tp-pp-dp-mapping", "parallel.order", [*DATA_LAST], None).read),
    Rule(_write_schedule, _read_schedule),
    Rule(_write_stages, _read_stages),
    number("--micro-batch-size", "schedule.microbatch_size"),
    number("--global-batch-size", "batch"),
    DOCUMENTS,
)
