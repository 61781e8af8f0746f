"""Pipeline stages of a model: its layers cut into contiguous ranges, and their layout as Megatron-LM writes it.

    cut(layers, 4, "even")                     blocks divide equally
    cut(layers, 4, "ends-1")                   one block fewer on the first and on the last stage than on the others
    cut(layers, 4, "balanced", costs)          the slowest stage takes as little as possible
    cut(layers, 4, [7, 9, 9, 7])               blocks per stage
    cut(layers, 4, [15, 16, "tm", "L"])        the same, and stages of a block and a prediction, and of logits alone

Layers placed "first" (embedding) belong to the first stage, those placed "last" (logits) to the last. A layout is that
of `--pipeline-model-parallel-layout` (megatron/core/transformer/pipeline_parallel_layer_layout.py):

    Et*3|(t*4|)*2t*3L       four stages: embedding and three layers; twice four layers; three layers and loss

E is the embedding, t a layer, m a module of multi-token prediction, L norm, logits and loss; `|` ends a stage, `*n`
repeats the letter or the bracket before it; commas and spaces mean nothing. Stages are in the order of the forward:
stage i is on pipeline rank i mod p.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, groupby, pairwise

from hybrid_des.errors import LONGEST_SHOWN, Refusal, UsageError, one_line, unknown
from hybrid_des.workload.models.layer import JOINING, Layer

RULES = ("even", "ends-1", "balanced")

Cost = int | float | Fraction
_Division = tuple[Cost, Cost, tuple[int, ...]]  # slowest stage, sum of squares, ends of stages


def cut(
    layers: Sequence[Layer], stages: int, rule: str | Sequence[int | str], costs: Sequence[Cost] | None = None
) -> list[range]:
    """The layers of every stage, as ranges of places in `layers`.

    Args:
        layers: in order of the forward.
        stages: number of stages, chunks included.
        rule: one of `RULES`, or the number of blocks of every stage, or its letters t, m and L as in a layout.
        costs: one per layer, at least 0; needed by "balanced".

    Raises:
        UsageError: the rule is unknown.
        Refusal: the rule cannot cut these layers; one line that says why.
    """
    blocks = [place for place, layer in enumerate(layers) if layer.place == "block"]
    if stages > len(layers) or not blocks:
        raise Refusal(f"{len(blocks)} layers are too few for {stages} stages")
    listed = _counts_of(rule, layers, stages, costs) if isinstance(rule, str) else list(rule)
    if len(listed) != stages:
        raise Refusal(f"{len(listed)} numbers of layers for {stages} stages; expected one for each")
    counts = [count for count in listed if isinstance(count, int)]
    if len(counts) < len(listed):
        return _by_letters(layers, ["t" * held if isinstance(held, int) else held for held in listed])
    if min(counts) < 0 or sum(counts) != len(blocks):
        raise Refusal(f"{' + '.join(map(str, counts))} layers, but the model has {len(blocks)}")
    starts = [*blocks, blocks[-1] + 1]
    ends = [starts[done] for done in accumulate(counts[:-1])]
    ranges = [range(*both) for both in pairwise((0, *ends, len(layers)))]
    for stage, held in enumerate(ranges):
        if not held:
            raise Refusal(f"stage {stage} of {stages} would have no layer")
    return ranges


def _by_letters(layers: Sequence[Layer], stages: Sequence[str]) -> list[range]:
    """The layers of stages with these letters: t a block, m a module of prediction, L what follows."""
    if not re.fullmatch("t*m*L", "".join(stages)):
        raise Refusal(f"{', '.join(stages)}: expected all t, then all m, then one L")
    known = {
        "t": [number for number, layer in enumerate(layers) if layer.place == "block"],
        "m": [number for number, layer in enumerate(layers) if layer.predicts and begins_prediction(layer)],
        "L": [number for number, layer in enumerate(layers) if layer.place == "last" and not layer.predicts][:1],
    }
    for letter, held in known.items():
        count = "".join(stages).count(letter)
        if count != len(held):
            raise Refusal(f"{count} {letter} in the stages, but the model has {len(held)}")
    starts = [*known["t"], *known["m"], *known["L"], len(layers)]
    ends = [starts[done] for done in accumulate(map(len, stages))]
    return [range(*both) for both in pairwise((0, *ends))]


def begins_prediction(layer: Layer) -> bool:
    """Whether a layer is the first of a module that predicts a further token."""
    return any(operation.name == JOINING for operation in layer.operations)


def check_sources(layers: Sequence[Layer], ranges: Sequence[range]) -> None:
    """Check that blocks with keys and values of an earlier block are in its stage.

    Raises:
        Refusal: one is not.
    """
    blocks = [place for place, layer in enumerate(layers) if layer.place == "block"]
    for held in ranges:
        for number in held:
            source = layers[number].shares
            if source is not None and blocks[source] not in held:
                own = f"{layers[number].name} has the keys and values of {layers[blocks[source]].name}"
                raise Refusal(f"parallel.stages: {own}, which is in another stage; expected both in one")


def _counts_of(rule: str, layers: Sequence[Layer], stages: int, costs: Sequence[Cost] | None) -> list[int]:
    """Blocks per stage."""
    blocks = sum(layer.place == "block" for layer in layers)
    if rule == "even":
        if blocks % stages:
            raise Refusal(f"{blocks} layers cannot be divided evenly into {stages} stages{_instead(blocks, stages)}")
        return [blocks // stages] * stages
    if rule == "ends-1":
        if (blocks + 2) % stages:
            what = f"{blocks} layers and one fewer at each end cannot be divided into {stages} stages"
            raise Refusal(f"{what}{_instead(blocks, stages)}")
        counts = [(blocks + 2) // stages] * stages
        counts[0] -= 1
        counts[-1] -= 1
        return counts
    if rule == "balanced":
        if costs is None or len(costs) != len(layers):
            raise UsageError(f"balanced stages need the costs of {len(layers)} layers")
        if blocks < stages:
            raise Refusal(f"{blocks} layers are too few for {stages} balanced stages")
        return [*_balanced(tuple(_block_costs(layers, costs)), stages)]
    raise UsageError(f"stages: {unknown(rule, RULES)}, or a list of layers per stage")


def _instead(blocks: int, stages: int) -> str:
    """The rule that divides any number of layers, for messages; nothing if there are too few."""
    return "; stages: balanced takes any number of layers" if blocks >= stages else ""


def _block_costs(layers: Sequence[Layer], costs: Sequence[Cost]) -> list[Cost]:
    """Costs of blocks; the first includes the layers before it, the last those after it."""
    blocks: list[Cost] = []
    before: Cost = 0
    for layer, cost in zip(layers, costs, strict=True):
        if layer.place == "first":
            before += cost
        elif layer.place == "last":
            blocks[-1] += cost
        else:
            blocks.append(cost + before)
            before = 0
    return blocks


def balanced(costs: Sequence[Cost], stages: int) -> list[int]:
    """Number of `costs` per stage, at least one, such that the largest sum of a stage is minimal.

    Exact for integers and fractions; among equals, stages with similar sums are preferred. Dynamic programming over the
    number of stages and the end of the last one, O(stages · n²); costs are not negative, so that a last stage that is
    slower than the best so far ends the search for its first layer.
    """
    sums = list(accumulate(costs, initial=0))
    best: dict[int, _Division] = {end: (sums[end], sums[end] ** 2, (0, end)) for end in range(1, len(sums))}
    for used in range(1, stages):
        best = {end: _best_to(end, used, sums, best) for end in range(used + 1, len(sums))}
    ends = best[len(costs)][2]
    return [end - start for start, end in pairwise(ends)]


@lru_cache(maxsize=64)  # plans of a search often differ in what costs no layer anything
def _balanced(costs: tuple[Cost, ...], stages: int) -> tuple[int, ...]:
    return tuple(balanced(costs, stages))


def _best_to(end: int, used: int, sums: Sequence[Cost], best: Mapping[int, _Division]) -> _Division:
    """The best division of the first layers into one more stage than those that are known."""
    chosen = _with_stage(best[end - 1], sums[end] - sums[end - 1], end)
    for start in reversed(range(used, end - 1)):
        cost = sums[end] - sums[start]
        if cost > chosen[0]:
            break
        chosen = min(chosen, _with_stage(best[start], cost, end))
    return chosen


def _with_stage(division: _Division, cost: Cost, end: int) -> _Division:
    slowest, squares, ends = division
    return max(slowest, cost), squares + cost**2, (*ends, end)


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


def layout_of(counts: Sequence[int | str], predictions: int = 0) -> str:
    """The shortest such layout of stages with these numbers of layers: embedding in the first, loss in the last.

    Modules of multi-token prediction stand before the loss, unless the stages have letters.
    """
    lettered = any(isinstance(count, str) for count in counts)
    ends = "" if lettered else "m" * predictions + "L"
    if len(counts) == 1:
        return f"E{_layers(counts[0])}{ends}"
    first, *middle, last = counts
    text = f"E{_layers(first)}|"
    for count, equal in groupby(middle):
        times = len(list(equal))
        stage = f"{_layers(count)}|"
        text += stage if times == 1 else f"({stage})*{times}"
    return f"{text}{_layers(last)}{ends}"


def _layers(count: int | str) -> str:
    if isinstance(count, str):
        return count
    return "t" * count if count < 3 else f"t*{count}"
