"""Flags of Megatron-LM that are read nowhere: without effect on a step, without an equal here, and of other layers.

They are in `without_effect.yaml` and `megatron_flags.yaml`. A flag that stands in neither is named as not understood:
what is without effect is listed there, never guessed from a name. Of those, names with a word of models, plans, memory
or time come first.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, one_line
from hybrid_des.files import read_catalogue
from hybrid_des.interchange.frameworks.launch_line import Given
from hybrid_des.interchange.frameworks.megatron_kinds import OFF, PATTERNS, VARIANTS, unknown_letters
from hybrid_des.interchange.frameworks.without_effect import without_effect

_SWITCHES = without_effect("megatron_switches")
_IDLE = without_effect("megatron") | _SWITCHES
SWITCHES = frozenset(f"--{name}" for name in _SWITCHES)
_PATTERNS = read_catalogue(Path(__file__).with_name("megatron_flags.yaml"))
_FAMILIES = re.compile(rf"({'|'.join(_PATTERNS['families'])})-[\w-]+")
_UNMODELLED = {flag: text for text, flags in _PATTERNS["unmodelled"].items() for flag in flags}
_IDLE_WITH = _PATTERNS["without_effect_with"]
_MATTERS = re.compile("|".join(_PATTERNS["matters"]))
_LAYERS = re.compile("|".join(_PATTERNS["layers"]))
_VARIANT = "--experimental-attention-variant"
_NEEDS = {  # flags whose layers another one makes
    "--linear-attention-freq": (_VARIANT,), "--is-hybrid-model": PATTERNS, "--mtp-hybrid-override-pattern": PATTERNS,
}  # fmt: skip
_STACKS = ("gpt", "mamba_stack_spec", "hybrid_stack_spec", "mamba_layer_specs", "hybrid_layer_specs")


def is_idle(flag: str, words: Sequence[str], values: Mapping[str, Any]) -> bool:
    """Whether a flag, with its words, changes nothing about a step of what was read.

    Args:
        flag: with its dashes.
        words: those that follow it.
        values: the scenario's values, by path.
    """
    name, word = flag[2:], next(iter(words), "")
    if name in ("hidden-dropout", "attention-dropout"):  # a model with GELU has it, one with SwiGLU has none
        dropped = not re.fullmatch(r"0+(\.0*)?|\.0+", word)
        return dropped == (values.get("model.mlp") == "gelu")
    if name == "no-position-embedding":
        return values.get("model.positions") == "rotary"
    if name in ("transformer-impl", "rope-type"):
        return word in ("transformer_engine", "rope", "yarn")
    if name == "make-vocab-size-divisible-by":  # of a vocabulary that the line does not say
        return values.get("model.vocab") is None
    if name in _IDLE_WITH:
        return word in map(str, _IDLE_WITH[name])
    if _LAYERS.fullmatch(name):
        return word.lower() in OFF
    return name in _IDLE or _FAMILIES.fullmatch(name) is not None


def is_made(words: Sequence[str] | None) -> bool:
    """Whether a flag is given, with a word that does not turn its layers off, or with none."""
    word = next(iter(words or ()), "")
    return words is not None and word.lower() not in OFF and not word.startswith("$")


def other_layers(flags: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The flags that make other layers than those known here, each with its value."""
    for flag, words in flags.items():
        shown, word = one_line(" ".join([flag, *words[:1]]), LONGEST_SHOWN), next(iter(words), "")
        other_variant = flag == _VARIANT and words and word.lower() not in (*OFF, *VARIANTS)
        if other_variant or (_LAYERS.fullmatch(flag[2:]) and word.lower() not in OFF):
            yield shown
        elif letters := unknown_letters(flag, word):
            yield f"{flag} with {', '.join(letters)}"
        elif flag in _NEEDS and is_made(words) and not any(is_made(flags.get(one)) for one in _NEEDS[flag]):
            yield f"{shown} without {' or '.join(_NEEDS[flag])}"
        elif flag == "--spec" and words and not any(stack in word for word in words for stack in _STACKS):
            yield one_line(" ".join([flag, *words[:2]]), LONGEST_SHOWN)


def without_equal(given: Given, flags: Sequence[str]) -> dict[str, str]:
    """Flags that have no equal here, with what is wrong in the figures; first those that rules read in part.

    Args:
        given: the flags of a line, read by all rules.
        flags: those that nothing has read, and that have an effect.
    """
    return {**given.unmodelled, **{flag: _UNMODELLED[flag[2:]] for flag in flags if flag[2:] in _UNMODELLED}}


def matters(name: str) -> bool:
    """Whether the name of a setting speaks of a model, a plan, memory or time."""
    return _MATTERS.search(name.lower()) is not None


def split(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags that were not understood: those that speak of models, plans, memory or time, and the others."""
    matter = [line for line in lines if "; did you mean" in line or matters(line.partition(" ")[0])]
    return matter, [line for line in lines if line not in matter]
