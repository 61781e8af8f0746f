"""Flags of Megatron-LM that say how many bits products have, and where scales of few bits come from.

megatron/training/arguments.py and megatron/core/fp8_utils.py: --fp8-recipe is delayed unless given.
"""

from collections.abc import Iterable

from hybrid_des.interchange.frameworks.launch_line import Given, Values

PRECISIONS = {
    "bf16": ("--bf16", ""), "fp16": ("--fp16", ""), "fp8": ("--fp8-format hybrid", "--bf16"),
    "fp8-current": ("--fp8-format hybrid --fp8-recipe tensorwise", "--bf16"),
    "fp8-blockwise": ("--fp8-format e4m3 --fp8-recipe blockwise", "--bf16"),
    "mxfp8": ("--fp8-format e4m3 --fp8-recipe mxfp8", "--bf16"),
    "nvfp4": ("--fp4-format e2m1 --fp4-recipe nvfp4", "--bf16"),
}  # fmt: skip
RECIPES = {"tensorwise": "fp8-current", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8"}
FORMATS = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}  # as lines are written


def write_precision(values: Values) -> Iterable[str]:
    """The flags of a precision."""
    if values["precision"] not in PRECISIONS:
        return ()
    flag, beside = PRECISIONS[values["precision"]]
    modules = values["recompute"] if isinstance(values["recompute"], tuple) else ()
    if values["precision"] == "fp8" and {"layernorm", "moe_act"} & {*modules}:  # which delayed scaling does not support
        flag = f"{flag} --fp8-recipe tensorwise"
    return (f"{beside} {flag}".strip(),)


def read_precision(given: Given) -> Values:
    """The precision that flags say."""
    given.pass_over("--bf16", "--fp8-recipe")
    given.words("--fp4-recipe")
    if "--fp4-format" in given:
        return {"precision": "nvfp4"}
    if given.text("--fp8-format") is not None:
        return {"precision": RECIPES.get(given.text("--fp8-recipe") or "", "fp8")}
    return {"precision": "fp16" if "--fp16" in given else "bf16"}


def other_recipe(given: Given) -> str:
    """Flags of an fp8 format or recipe that a scenario does not tell from others."""
    form = given.text("--fp8-format")
    recipe = (form and given.text("--fp8-recipe")) or "delayed"
    usual = FORMATS.get(recipe)
    return "" if form in (None, usual) else f"--fp8-format {form} --fp8-recipe {recipe}"
