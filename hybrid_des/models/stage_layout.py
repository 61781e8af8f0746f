"""The layout of a pipeline, layer by layer, as Megatron-LM's `--pipeline-model-parallel-layout` writes it.

    Et*3|(t*4|)*2t*3L       four stages: embedding and three layers; twice four layers; three layers and loss

E is the embedding, t a layer, m a module of multi-token prediction, L norm, logits and loss; `|` ends a stage, `*n`
repeats the letter or the bracket before it; commas and spaces mean nothing. Stages are in the order of the forward:
stage i is on pipeline rank i mod p. (Megatron-LM: megatron/core/transformer/pipeline_parallel_layer_layout.py)
"""

import re
from collections.abc import Sequence
from itertools import groupby

from hybrid_des.errors import LONGEST_SHOWN, Refusal, one_line

LONGEST = 2**16  # letters

_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d{1,5}))?")
_LETTER = re.compile(r"([EtmL])\*(\d{1,5})")


def stages_in(layout: str) -> tuple[str, ...]:
    """The letters of every stage.

    Raises:
        Refusal: it is no such layout; one line that says why.
    """
    shown = one_line(layout, LONGEST_SHOWN)
    text = re.sub(r"[\s,]", "", layout)
    while (group := _GROUP.search(text)) is not None:
        text = text[: group.start()] + group[1] * int(group[2] or 1) + text[group.end() :]
        _check_length(text, shown)
    for letter, times in set(_LETTER.findall(text)):
        text = re.sub(rf"{letter}\*{times}(?!\d)", letter * int(times), text)
        _check_length(text, shown)
    if wrong := re.search(r"[^EtmL|]", text):
        expected = "E, t, m, L, | and *n, as in Et*3|(t*4|)*2t*3L"
        raise Refusal(f'"{shown}": found "{one_line(wrong[0])}"; expected {expected}')
    letters = text.replace("|", "")
    if not re.fullmatch(r"Et+m*L", letters):
        raise Refusal(f'"{shown}": expected one E, then layers t, then any m, then one L')
    return tuple(text.split("|"))


def _check_length(text: str, shown: str) -> None:
    if len(text) > LONGEST:
        raise Refusal(f'"{shown}": more than {LONGEST} layers')


def layout_of(counts: Sequence[int], predictions: int = 0) -> str:
    """The shortest such layout of stages with these numbers of layers: embedding in the first, loss in the last.

    Modules of multi-token prediction stand before the loss.
    """
    ends = "m" * predictions + "L"
    if len(counts) == 1:
        return f"E{_layers(counts[0])}{ends}"
    first, *middle, last = counts
    text = f"E{_layers(first)}|"
    for count, equal in groupby(middle):
        times = len(list(equal))
        stage = f"{_layers(count)}|"
        text += stage if times == 1 else f"({stage})*{times}"
    return f"{text}{_layers(last)}{ends}"


def _layers(count: int) -> str:
    return "t" * count if count < 3 else f"t*{count}"
