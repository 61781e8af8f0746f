"""A warning if a change of `parallel.pipeline` silently changes the size of the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybrid_des.scenario.composition import with_base
from hybrid_des.scenario.strict_yaml import Document

PIPELINE = "parallel.pipeline"
TIMES = ("workload.forward", "workload.backward")


def models_differ(path: str | Path, document: Document, overrides: Sequence[str]) -> str | None:
    """One line if a sweep or overrides compare models of different sizes; None if they do not.

    A workload that does not say `per` gives the numbers of one rank: twice as many ranks make twice the model. Lists
    with a number for each rank are refused elsewhere if their lengths do not fit.

    Args:
        path: the scenario's file.
        document: its content, with the overrides.
        overrides: strings such as "parallel.pipeline=8".
    """
    workload, axes = document.value.get("workload"), document.value.get("sweep")
    items = [item for item in axes if isinstance(item, dict)] if isinstance(axes, list) else []
    replaced = {text.partition("=")[0].strip() for text in overrides}
    ranks = next((item[PIPELINE] for item in items if PIPELINE in item), None)
    if ranks is None and PIPELINE in replaced and Path(path).is_file():  # what stdin held is gone
        ranks = [_ranks(document), _ranks(with_base(path))]
    meant = not isinstance(workload, dict) or "per" in workload or isinstance(workload.get("forward"), list)
    meant = meant or bool({"workload.per", *TIMES} & {*replaced, *(path for item in items for path in item)})
    if meant or not isinstance(ranks, list) or len(set(map(str, ranks))) < 2:
        return None
    return (
        f"{document.source}: {PIPELINE} changes the size of the model: the workload's numbers are for each rank; "
        "workload.per=model divides one model, workload.per=rank says that this is meant"
    )


def _ranks(document: Document) -> Any:
    parallel = document.value.get("parallel")
    return parallel.get("pipeline", 1) if isinstance(parallel, dict) else 1
