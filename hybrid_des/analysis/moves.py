"""What differs between two scenarios of one model, in the kinds of settings that people change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from hybrid_des.analysis.bill import samples_per_step
from hybrid_des.scenario.defaults import fill
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.sections.training import Gradients, Overlap

AXES = ("tensor", "context", "pipeline", "data", "expert")
NAMED = {  # fields of a scenario whose changes are of the kinds below, or no change of the run
    "name", "description", "model", "cluster", "precision", "parallel", "schedule", "batch", "recompute",
    "recompute_layers", "sharding", "cuda_graphs", "experts", "overlap", "gradients",
}  # fmt: skip

FOLLOWING: Mapping[str, tuple[type[BaseModel], tuple[str, ...]]] = {
    # what has defaults that follow from other sections, each key after those of its own that it follows from
    "gradients": (Gradients, ("codec", "bucket_rule", "pad", "bucket")),
    "overlap": (Overlap, ("parameters",)),
}


def moves(first: Scenario, second: Scenario) -> tuple[str, ...] | None:
    """The kinds of settings that differ between two scenarios; None if their models do, or one has none.

    A change of the layout is one kind by the axes that it moves GPUs between, such as "data and tensor ranks"; of those
    that have other numbers of GPUs it is "number of GPUs". What follows from another change, such as the encoding of
    gradients from another precision, counts as part of it.
    """
    if first.model is None or first.model != second.model:
        return None
    before, after = first.parallel, second.parallel
    axes = [name for name in AXES if getattr(before, name) != getattr(after, name)]
    scaled = before.ranks != after.ranks
    chip = first.cluster.kinds[0].gpu.name != second.cluster.kinds[0].gpu.name
    differences = {
        "chip": chip,
        "precision": first.precision != second.precision,
        "number of GPUs": scaled,
        f"{' and '.join(axes)} ranks": bool(axes) and not scaled,
        "micro-batch": first.schedule.microbatch_size != second.schedule.microbatch_size,
        "batch": samples_per_step(first) != samples_per_step(second) and not scaled,
        "recomputation": _recomputed(first) != _recomputed(second),
        "sharding": first.sharding != second.sharding,
        "schedule": _schedule(first) != _schedule(second),
        "graphs": first.cuda_graphs != second.cuda_graphs,
        "experts": first.experts != second.experts,
        "network": not chip and not scaled and first.cluster != second.cluster,
    }
    same = not any(differences.values())
    differences["communication"] = any(_is_chosen(name, first, second) for name in FOLLOWING)
    of_catalogue = {"efficiency"} if chip or differences["precision"] else set()  # what a GPU reaches, by precision
    others = any(getattr(first, one) != getattr(second, one) for one in {*Scenario.model_fields} - NAMED - of_catalogue)
    rest = same and not differences["communication"] and _unnamed(first) != _unnamed(second)
    differences["others"] = others or rest
    return tuple(name for name, differs in differences.items() if differs)


def _is_chosen(name: str, first: Scenario, second: Scenario) -> bool:
    """Whether a section differs by more than what follows from other settings by default."""
    actual = [getattr(one, name) for one in (first, second)]
    if actual[0] == actual[1]:
        return False
    kind, following = FOLLOWING[name]
    values: list[dict[str, Any]] = [to_mapping(one) for one in (first, second)]
    given, other = ({key: value for key, value in one[name].items() if key not in following} for one in values)
    if given != other:
        return True
    for key in following:
        filled = [kind.model_validate(fill({**one, name: given})[name]) for one in values]
        usual = [getattr(section, key) for section in filled]
        written = [getattr(section, key) for section in actual]
        if usual != written and written[0] != written[1]:
            return True
        if usual != written:  # the same in both
            given[key] = values[0][name][key]
    return False


def _unnamed(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"name": "", "description": ""})


def _recomputed(scenario: Scenario) -> object:
    return scenario.recompute, scenario.recompute_layers


def _schedule(scenario: Scenario) -> object:
    """All of the schedule but how samples are divided."""
    return scenario.schedule.model_copy(update={"microbatches": 1, "microbatch_size": 1})
