"""Optimizers as flags of Megatron-LM, written and read.

Flags: megatron/training/arguments.py and megatron/core/optimizer (optimizer_config.py, muon.py). Adam keeps fp32 copies
and moments; `--use-precision-aware-optimizer` states their formats, and keeps of a copy in fp32 only the bits that a
bf16 weight lacks, unless `--no-store-param-remainders` or host memory holds it. `--optimizer muon` orthogonalises whole
matrices of tensor ranks as `--muon-tp-mode` says; `dist_muon` divides matrices among replicas.
"""

from collections.abc import Iterator
from typing import Any

from hybrid_des.errors import unknown
from hybrid_des.interchange.frameworks.launch_line import Given, Rule, Values
from hybrid_des.scenario.sections.optimizer import Optimizer, State

PRECISION_AWARE, OFFLOADED = "--use-precision-aware-optimizer", "--optimizer-cpu-offload"
_WHOLE_COPY = "--no-store-param-remainders"
_KIND, _MODE, _STEPS = "--optimizer", "--muon-tp-mode", "--muon-num-ns-steps"
_SYMMETRIC, _JOINED = "--muon-use-syrk", "--muon-no-split-qkv"
_KINDS = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "lion": "lion", "muon": "muon", "dist_muon": "muon"}
LAYOUTS = {
    "duplicated": "duplicated", "distributed": "distributed", "blockwise": "blockwise",
    "layer_sharded": "layer-sharded",
}  # fmt: skip
_STATE = {"master": "--main-params-dtype", "first": "--exp-avg-dtype", "second": "--exp-avg-sq-dtype"}
_MOMENTS = ("fp32", "bf16", "fp16", "fp8")
_FORMATS = {"master": ("fp32", "fp16"), "first": _MOMENTS, "second": _MOMENTS}
_OTHER = "time and state of Adam are counted, three numbers of 32 bits per parameter"
_OWN_BLOCKS = "tensor ranks orthogonalise their own blocks here, where matrices are divided among replicas"
_EACH_MATRIX = "every matrix is gathered here (duplicated), where it is chosen matrix by matrix"


def is_layer_wise(given: Given) -> bool:
    """Whether Muon's matrices are divided among replicas, which is a distributed optimizer of its own."""
    return given.text(_KIND) == "dist_muon" or (given.text(_KIND) == "muon" and "--use-distributed-optimizer" in given)


def assumed_layout(given: Given) -> Iterator[str]:
    """What is assumed of a line that does not say where matrices are whole."""
    tensor = given.number("--tensor-model-parallel-size") or 1
    if given.text(_KIND) == "muon" and tensor > 1 and _MODE not in given and not is_layer_wise(given):
        yield f"optimizer.muon.layout: duplicated: the default of {_MODE} since August 2026; before, it was blockwise"


def _read(given: Given) -> Values:
    word = given.text(_KIND)
    if word is not None and word not in _KINDS:
        given.unmodelled[_KIND] = _OTHER
    kind = _KINDS.get(word or "adam", "adam")
    momentum = given.text("--sgd-momentum")
    values: dict[str, Any] = {"optimizer.kind": None if kind == "adam" else kind}
    state = _read_state(given)
    if kind == "sgd" and momentum is not None and not momentum.strip("0."):
        state = {"first": "none"}
    muon = _read_muon(given)
    return values | ({"optimizer.state": state} if state else {}) | ({"optimizer.muon": muon} if kind == "muon" else {})


def _read_state(given: Given) -> dict[str, str]:
    """The formats of copies and moments that are not fp32."""
    flags = (*_STATE.values(), "--main-grads-dtype", _WHOLE_COPY)
    if PRECISION_AWARE not in given:
        given.pass_over(*flags)  # of 32 bits, as it asserts
        return {}
    whole = any(flag in given for flag in (_WHOLE_COPY, OFFLOADED, "--fp16"))
    state = {part: _format(given, part) for part in _STATE}
    if state["master"] == "fp32" and not whole:
        state["master"] = "remainder"
    return {part: form for part, form in state.items() if form != "fp32"}


def _format(given: Given, part: str) -> str:
    form = given.text(_STATE[part]) or "fp32"
    if form not in _FORMATS[part]:
        raise given.error(_STATE[part], unknown(form, _FORMATS[part]))
    return form


def _read_muon(given: Given) -> dict[str, Any]:
    """How matrices are orthogonalised; nothing without Muon, or where all is as by default."""
    steps, mode, divided = given.number(_STEPS), given.text(_MODE), is_layer_wise(given)
    switches = {"symmetric": _SYMMETRIC in given, "joined": _JOINED in given}
    if given.text(_KIND) not in ("muon", "dist_muon"):
        return {}
    if mode == "auto":
        given.unmodelled[_MODE] = _EACH_MATRIX
    elif mode is not None and mode not in LAYOUTS:
        raise given.error(_MODE, unknown(mode, LAYOUTS))
    if divided and mode not in (None, "blockwise") and (given.number("--tensor-model-parallel-size") or 1) > 1:
        given.unmodelled[_MODE] = _OWN_BLOCKS
    muon = {"iterations": steps, "layout": None if divided else LAYOUTS.get(mode or "", "duplicated")}
    return {name: value for name, value in (muon | switches).items() if value}


def _write(values: Values) -> Iterator[str]:
    optimizer: Optimizer = values["optimizer"]
    muon = optimizer.iterations(values["sharding"])
    if muon is not None:
        mode = {layout: word for word, layout in LAYOUTS.items()}.get(muon.layout or "")
        yield f"{_KIND} muon {_MODE} {mode}" if mode else f"{_KIND} dist_muon"
        if muon.iterations != 5:
            yield f"{_STEPS} {muon.iterations}"
        yield from (flag for flag, on in ((_SYMMETRIC, muon.symmetric), (_JOINED, muon.joined)) if on)
    elif optimizer.kind in ("sgd", "lion"):
        yield f"{_KIND} {optimizer.kind}"
        if _has_no_momentum(optimizer):
            yield "--sgd-momentum 0"
    elif stated := _stated(optimizer):
        if not values["offload.optimizer"]:
            yield PRECISION_AWARE
        yield from (f"{_STATE[part]} {form}" for part, form in stated.items() if form not in ("fp32", "remainder"))
        if stated["master"] == "fp32" and not values["offload.optimizer"]:
            yield _WHOLE_COPY


def _stated(optimizer: Optimizer) -> dict[str, str]:
    """The formats of Adam's state where flags say them and one is not the default; else nothing."""
    if optimizer.kind != "adam" or not isinstance(optimizer.state, State):
        return {}
    stated = {"master": "fp32", "first": "fp32", "second": "fp32", **optimizer.state.model_dump(exclude_none=True)}
    known = all(form in (*_FORMATS[part], "remainder") for part, form in stated.items())
    return stated if known and {*stated.values()} != {"fp32"} else {}


def _has_no_momentum(optimizer: Optimizer) -> bool:
    return optimizer.kind == "sgd" and isinstance(optimizer.state, State) and optimizer.state.first == "none"


def unsaid_of_optimizer(values: Values) -> Iterator[str]:
    """What no flag expresses of an optimizer."""
    optimizer: Optimizer = values["optimizer"]
    usual = optimizer.model_copy(update={"state": None})
    if optimizer.kind in ("adam-8bit", "signum"):
        yield f"optimizer.kind: {optimizer.kind}"
    if optimizer.state_bytes == usual.state_bytes or _stated(optimizer) or _has_no_momentum(optimizer):
        return
    state = optimizer.state
    shown = f"{state} B" if not isinstance(state, State) else str(state.model_dump(exclude_none=True))
    yield f"optimizer.state: {shown}"


OPTIMIZER = Rule(_write, _read)
