"""Values of a launch line of Megatron-LM that cannot be read: which of a scenario's they are, and how they are stated.

A flag whose value is a variable without one, or no number, counts as not given, and what it says is `UNKNOWN`. What
`--set` states takes the place of the flags that say it, so that what follows from them, such as the replicas, is right.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid_des.files import read_catalogue
from hybrid_des.interchange.frameworks.launch_line import Given
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN
from hybrid_des.scenario.overrides import Change, changes_of

STATES: Mapping[str, Sequence[str]] = {
    f"--{flag}": paths
    for flag, paths in read_catalogue(Path(__file__).with_name("megatron_flags.yaml"))["states"].items()
}
"""The values that a flag states, by path."""

_OF_LAYERS = (
    "--num-layers-per-virtual-pipeline-stage", "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
)  # fmt: skip
_FOLLOW = ("parallel.data", "batch", "model.vocab", "model.ffn")  # from ranks, micro-batches, the hidden size
_REPLICAS = {
    "cluster.nodes", "cluster.gpus_per_node", "parallel.tensor", "parallel.pipeline", "parallel.context",
}  # fmt: skip


def with_stated(flags: Mapping[str, list[str]], overrides: Sequence[str]) -> dict[str, list[str]]:
    """The flags of a line, with whole numbers of overrides in place of those that say the same."""
    stated = {
        ".".join(change.path): change.value
        for change in changes_of(overrides)
        if isinstance(change, Change) and type(change.value) is int
    }
    kept = {flag: words for flag, words in flags.items() if STATES.get(flag, ("",))[0] not in stated}
    first = {paths[0]: flag for flag, paths in reversed([*STATES.items()])}
    return kept | {first[path]: [str(value)] for path, value in stated.items() if path in first}


def mark_unknown(values: dict[str, Any], given: Given) -> Iterator[str]:
    """Mark what flags say whose values cannot be read; yields a line for each, with what to state."""
    counted = [flag for flag in _OF_LAYERS if flag in given.flags] if "--num-layers" in given.aside else []
    for flag in dict.fromkeys((*given.aside, *counted)):
        why = given.aside.get(flag, "counts from --num-layers")
        paths = [path for path in STATES.get(flag, ()) if not _known(values, path)]
        for path in paths:
            _mark(values, path)
        follows = ", from which the replicas follow" if {*paths} & _REPLICAS else ""
        yield f"{flag}: {why}" + (f"; state {', '.join(paths)} with --set{follows}" if paths else "")


def not_following(
    paths: Sequence[str], flags: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]
) -> Sequence[str]:
    """Of values that differ between two lines, those that follow from no other that differs."""
    differ = [flag for flag in {*flags, *others} if flags.get(flag) != others.get(flag)]
    stated = {path for flag in differ for path in STATES.get(flag, ())}
    return [path for path in paths if path in stated or path not in _FOLLOW] if stated else paths


def _known(values: Mapping[str, Any], path: str) -> bool:
    """Whether another flag says it: numbers of nodes and GPUs have several."""
    return path.startswith("cluster.") and values.get(path) not in (None, UNKNOWN)


def _mark(values: dict[str, Any], path: str) -> None:
    inside = next((one for one, value in values.items() if path.startswith(f"{one}.") and isinstance(value, dict)), "")
    if inside:
        values[inside] = {**values[inside], path.removeprefix(f"{inside}."): UNKNOWN}
    else:
        values[path] = UNKNOWN
