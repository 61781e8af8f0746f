"""Layers that differ, and what predicts further tokens, as flags of Megatron-LM, written and read.

    --hybrid-layer-pattern MEM*E|MEM*E/*E     a letter per layer of one half; | ends a stage, / begins a prediction
    --linear-attention-freq 4                 three layers of delta rules, one of attention; or a list, 1: delta rule
    --moe-layer-freq ([0]*3+[1]*58)           which layers have experts; a number: every such layer, from the first
    --window-attn-skip-freq 4                 each fourth layer has no window; or a list, 1: a window

Flags: megatron/training/arguments.py, megatron/core/ssm/mamba_hybrid_layer_allocation.py, mamba_mixer.py and
gated_delta_net.py, with their defaults; `--hybrid-override-pattern` and `--mtp-hybrid-override-pattern` are of releases
before 2026.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any

from hybrid_des.interchange.frameworks.hugging_face_kinds import LETTERS, NONE, kinds_of, layer_of_letter, name_of
from hybrid_des.interchange.frameworks.launch_line import Given, Rule, Values
from hybrid_des.interchange.frameworks.variants import MODULES
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.kinds.transformer import Predictions

PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
_OF_MODULES = "--mtp-hybrid-override-pattern"
EXPERTS, SKIPS = "--moe-layer-freq", "--window-attn-skip-freq"
_VARIANT, _LINEAR = "--experimental-attention-variant", "--linear-attention-freq"
Sizes = Mapping[str, tuple[str, int | None]]  # key → flag and default
_DELTA: Sizes = {
    "key_heads": ("--linear-num-key-heads", 16), "value_heads": ("--linear-num-value-heads", 32),
    "key_size": ("--linear-key-head-dim", 128), "value_size": ("--linear-value-head-dim", 128),
    "conv": ("--linear-conv-kernel-dim", 4),
}  # fmt: skip
_MAMBA: Sizes = {
    "heads": ("--mamba-num-heads", None), "head_size": ("--mamba-head-dim", 64),
    "groups": ("--mamba-num-groups", 8), "state": ("--mamba-state-dim", 128),
}  # fmt: skip
_OF_MAMBA = {"conv": 4, "chunk": 128, "norm": True}  # of its mixer, which no flag changes
_SPEC = "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"
OFF = ("-1", "0", "0.0", "none", "null", "false")  # with which a flag makes no layers
VARIANTS = ("gated_delta_net", "gdn")
_DIFFER = ("mixer", "experts", "ffn", "window")  # in which layers may differ


def pattern_in(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The letters of every stage of a hybrid pattern, and those of every module that predicts a further token."""
    main, *modules = text.strip("\"'").split("/")
    return tuple(main.split("|")), tuple(module for module in modules if module)


def hybrid_stages(given: Given) -> list[int] | None:
    """Layers of every stage, where a hybrid pattern divides them."""
    stages, _ = pattern_in(_pattern(given))
    return [len(letters) for letters in stages] if len(stages) > 1 else None


def _pattern(given: Given) -> str:
    return next((text for text in map(given.text, PATTERNS) if text), "")


def unknown_letters(flag: str, text: str) -> str:
    """The letters of a pattern that are of no layers known here."""
    if flag not in (*PATTERNS, _OF_MODULES) or text.startswith("$"):
        return ""
    return "".join(dict.fromkeys(letter for letter in text if letter not in (*LETTERS, *"|/\"'")))


def is_stated(given: Given, flag: str) -> bool:
    """Whether a flag does not say that layers are without something."""
    return next(iter(given.flags.get(flag, ())), "").lower() not in OFF


def pattern_of(given: Given, flag: str) -> list[int] | None:
    """0 or 1 for each layer, from a list such as ([0]*3+[1]*58), or from a number; None without either."""
    text = given.text(flag)
    if text is None:
        return None
    if re.fullmatch(r"[1-9]\d{0,5}", text):
        every, layers = int(text), range(given.number("--num-layers") or 0)
        by_number = int(flag == EXPERTS)
        return [int((layer + 1 - by_number) % every == 0) ^ (1 - by_number) for layer in layers] or None
    try:
        return _list(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        raise given.error(flag, f'expected a number, or a list such as ([0]*3+[1]*58), found "{text[:40]}"') from None


def _list(node: ast.expr) -> list[int]:
    if isinstance(node, ast.List):
        return [item.value for item in node.elts if isinstance(item, ast.Constant) and isinstance(item.value, int)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _list(node.left) + _list(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        numbers, times = (node.left, node.right) if isinstance(node.right, ast.Constant) else (node.right, node.left)
        if isinstance(times, ast.Constant) and isinstance(times.value, int):
            return _list(numbers) * min(times.value, 2**14)
    raise ValueError


def leading(pattern: Sequence[int] | None) -> int | None:
    """How many layers come before the first with experts, where all after it have them; None: they are mixed."""
    if pattern is None or 1 not in pattern:
        return 0
    dense = pattern.index(1)
    return dense if 0 not in pattern[dense:] else None


def rhythm(pattern: Sequence[int] | None) -> int | None:
    """1: every layer has a window, 2: every second from the first; None: otherwise."""
    if pattern is None or 0 not in pattern:
        return 1
    return 2 if all(has == 1 - number % 2 for number, has in enumerate(pattern)) else None


def _read(given: Given) -> Values:
    text, modules, sizes = _pattern(given), given.text(_OF_MODULES), _sizes(given)
    variant = given.text(_VARIANT) if is_stated(given, _VARIANT) else None
    linear = pattern_of(given, _LINEAR) if is_stated(given, _LINEAR) else None
    repeated, count = "--mtp-use-repeated-layer" in given, given.number("--mtp-num-layers", least=0) or 0
    given.pass_over("--is-hybrid-model")
    if not text:
        own = _mixed(given, linear if variant in VARIANTS else None)
        if own and variant in VARIANTS and linear and 1 in linear:
            own |= {"model.delta": sizes["delta"]}
        if repeated and count > 1:
            own |= {"model.predictions": {"passes": count}}
        return own
    given.words("--spec")
    given.words("--mtp-spec")
    stages, of_modules = pattern_in(text)
    changes = partial(layer_of_letter, latent="--multi-latent-attention" in given)
    letters, of_modules = "".join(stages), of_modules or ((modules.strip("\"'"),) * max(1, count) if modules else ())
    own = {f"model.{key}": value for key, value in kinds_of([changes(letter) for letter in letters]).items()}
    own["model.layers"] = len(letters)
    own |= {f"model.{key}": sizes[key] for key, letter in (("mamba", "M"), ("delta", "G")) if letter in letters}
    if of_modules:
        count = max(count, len(of_modules))
        names = " ".join(name_of(changes(letter)) for letter in of_modules[0])
        own["model.predictions"] = {"kinds": names, "passes" if repeated else "count": count}
    return own


def _mixed(given: Given, linear: Sequence[int] | None) -> dict[str, Any]:
    """Kinds of layers with both halves, where sizes of a model do not say where they are."""
    window, sparse = _window(given), pattern_of(given, EXPERTS) if given.number("--num-experts", least=0) else None
    windows = pattern_of(given, SKIPS) if window else None
    dense, every = leading(sparse) is None, rhythm(windows) is None
    changes = []
    for layer in range(given.number("--num-layers") or 0):
        change: dict[str, Any] = {}
        if linear and linear[layer % len(linear)]:
            change["mixer"] = "delta"
        elif every and windows and windows[layer % len(windows)]:
            change["window"] = window
        if dense and sparse and not sparse[layer % len(sparse)]:
            change["experts"] = NONE
        changes.append(change)
    return {f"model.{key}": value for key, value in kinds_of(changes).items()} if any(changes) else {}


def _window(given: Given) -> int | None:
    """The tokens that a token attends to; (n, 0) has n before it, and itself."""
    text = given.text("--window-size")
    size = re.match(r"\(?\s*(-1|[0-9]{1,9})\b", text or "-1")
    if size is None:
        raise given.error("--window-size", f'expected tokens before and after, such as 127,0, found "{text}"')
    return None if size[1] == "-1" else int(size[1]) + 1


def read_window(given: Given) -> Values:
    """A window that sizes of a model describe: in all layers, or in every second one from the first."""
    window, windows = _window(given), pattern_of(given, SKIPS)
    every = rhythm(windows)
    if window is None or every is None or (windows is not None and not any(windows)):
        return {}
    return {"model.window": window, "model.window_every": every}


def _sizes(given: Given) -> dict[str, dict[str, Any]]:
    """The sizes of mixers; those of a model without them are of no meaning."""
    mamba = sizes_in(given, _MAMBA)
    mamba["heads"] = mamba["heads"] or 2 * (given.number("--hidden-size") or 0) // (mamba["head_size"] or 1)
    return {"mamba": {**mamba, "conv": 4, "chunk": 128}, "delta": sizes_in(given, _DELTA)}


def sizes_in(given: Given, table: Sizes) -> dict[str, int | None]:
    """The sizes of a part of a block, or their defaults."""
    return {key: given.number(flag) or default for key, (flag, default) in table.items()}


def letters_of(blocks: Sequence[Block]) -> str:
    """The letters of layers that have one half each; "" if some have two, or others than those known there."""
    known = {frozenset(change.items()): letter for letter, change in LETTERS.items()}
    return "".join(known.get(frozenset(_half(block).items()), "?") for block in blocks)


def _half(block: Block) -> dict[str, str]:
    mixer = " ".join(block.mixing) or NONE
    return {"mixer": mixer} | {key: NONE for key in ("experts", "ffn") if getattr(block, key) is None and (
        key == "experts" or mixer != NONE)}  # fmt: skip


def is_hybrid(values: Values) -> bool:
    """Whether every layer has one half, which a hybrid pattern says."""
    blocks = values.get("model.blocks") or ()
    return bool(blocks) and "?" not in letters_of(blocks)


def _write(values: Values) -> Iterator[str]:
    blocks: Sequence[Block] = values.get("model.blocks") or ()
    if not blocks or [*unsaid_of_kinds(values)]:
        return
    modules: Predictions | None = values.get(MODULES)
    if modules is not None and modules.passes > 1:
        yield "--mtp-use-repeated-layer"
    if is_hybrid(values):
        yield f"{PATTERNS[0]} '{_hybrid(values, blocks)}' {_SPEC}"
    else:
        yield from _frequencies(blocks, values)
    used = {name for block in blocks for name in block.mixing}
    for name, key, flags in (("mamba2", "mamba", _MAMBA), ("delta", "delta", _DELTA)):
        if name in used:
            sizes = next(getattr(block, key) for block in blocks if name in block.mixing)
            yield " ".join(f"{flag} {getattr(sizes, size)}" for size, (flag, _) in flags.items())


def _hybrid(values: Values, blocks: Sequence[Block]) -> str:
    """The pattern, with stages where they are listed, and modules that predict."""
    letters, modules = letters_of(blocks), values.get(MODULES)
    stages = values.get("parallel.stages")
    if isinstance(stages, tuple | list) and values["parallel.pipeline"] > 1:
        ends = [sum(stages[:number]) for number in range(len(stages) + 1)]
        letters = "|".join(letters[begin:end] for begin, end in pairwise(ends))
    inner = values.get("model.blocks_of_modules") or ()
    return letters + f"/{letters_of(inner)}" * (modules.count * modules.passes if modules and inner else 0)


def _frequencies(blocks: Sequence[Block], values: Values) -> Iterator[str]:
    """Where layers of both halves differ."""
    linear = [int(block.mixing == ("delta",)) for block in blocks]
    sparse = [int(block.experts is not None) for block in blocks]
    windows = [int(block.window is not None) for block in blocks]
    if any(linear):
        yield f"{_VARIANT} {VARIANTS[0]} {_LINEAR} '{_runs(linear)}'"
    if 0 in sparse and 1 in sparse:
        yield f"{EXPERTS} '{_runs(sparse)}'"
    if size := next((block.window for block in blocks if block.window), None):
        yield f"--window-size {size - 1},0"
        if rhythm(windows) == 2:
            yield f"{SKIPS} 2"
        elif 0 in windows:
            yield f"{SKIPS} '{_runs(windows)}'"


def _runs(pattern: Iterable[int]) -> str:
    """A list as sums of repeated numbers, as a shell passes it on."""
    return f"({'+'.join(f'[{has}]*{len([*run])}' for has, run in groupby(pattern))})"


def unsaid_of_kinds(values: Values) -> Iterator[str]:
    """What no flag expresses of layers that differ, and of modules that predict."""
    blocks: Sequence[Block] = values.get("model.blocks") or ()
    if not blocks:
        return
    hybrid, used = is_hybrid(values), {name for block in blocks for name in block.mixing}
    whole = all(len(block.mixing) == 1 and block.second for block in blocks)  # of both halves
    if (
        len({repr(block.model_dump(exclude={*_DIFFER, "kinds", "pattern", "predictions"})) for block in blocks}) > 1
        or len({block.window for block in blocks} - {None}) > 1
    ):
        yield "model.kinds"
    elif not hybrid and (used - {"attention", "latent", "delta"} or not whole):
        yield "model.kinds" if values.get("model.kinds") else "model.mixer"
    mamba = next((block.mamba for block in blocks if block.mamba is not None), None)
    for key, usual in _OF_MAMBA.items():
        if mamba is not None and getattr(mamba, key) != usual:
            yield f"model.mamba.{key}: {getattr(mamba, key)}: its mixer has {usual}"
    if values.get("model.gate") == "head":
        yield "model.gate: head"
    modules: Predictions | None = values.get(MODULES)
    if modules is not None and ((modules.count > 1 and modules.passes > 1) or (modules.kinds and not hybrid)):
        yield "model.predictions: kinds and passes"


KINDS = Rule(_write, _read)
