"""Costs as text: a table of at most 80 columns where possible, and the formula behind each column in words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.costs import COLLECTIVES, TOTAL
from hybrid_des.analysis.model_figures import AXES, peak_of
from hybrid_des.cluster import gpus as catalogue
from hybrid_des.cost_model.operation_times import ATTENTION_BACKWARD
from hybrid_des.files import read_catalogue
from hybrid_des.report.content import recomputed
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.definition import Scenario
from hybrid_des.units import format_bandwidth
from hybrid_des.workload.models.operations import Attention

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 80


SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "": ((1e9, "10⁹"), (1e6, "10⁶"), (1e3, "10³"), (1.0, "")),
}


HEADS = {  # headings of the columns in the table of stages
    "forward_s": "forward", "input_gradient_s": "input", "weight_gradient_s": "weight", "recomputed_s": "again",
    **{f"{axis}_exposed_s": axis for axis in AXES}, "message_bytes": "message", "parameters": "params",
    "state_bytes": "state", "kept_bytes": "kept", "peak_bytes": "peak",
}  # fmt: skip


def render_stages(frame: pd.DataFrame, scenario: Scenario, width: int | None = None) -> str:
    """The table of stages, laid out for a width, if one is given, and an explanation of each column."""
    shown = {
        name: head for name, head in HEADS.items() if name in frame and (name != "recomputed_s" or frame[name].any())
    }
    whole = [
        "stage",
        *(["pipeline_rank"] if (frame.chunk > 0).any() else []),
        *(["layers"] if "layers" in frame else []),
    ]
    heads = [{"pipeline_rank": "rank"}.get(name, name) for name in whole]
    columns = [["", *map(str, frame[name])] for name in whole]
    longest = frame[[name for name in shown if name.endswith("_s")]].to_numpy().max(initial=0.0)
    for name, head in shown.items():
        values = frame[name].tolist()
        unit, cells = _scaled(name, values, longest if name.endswith("_s") else max(values))
        heads.append(head)
        columns.append([unit, *cells])
    words = formulas(scenario)
    lines = [_words(head, words[head]) for head in shown.values()]
    table = text_table(heads, zip(*columns, strict=True), align=">", close=WIDTH, width=width)
    return "\n".join([table, "", *lines])


def _words(head: str, text: str) -> str:
    return textwrap.fill(f"{head:<8} {text}", WIDTH, subsequent_indent=" " * 9, break_on_hyphens=False)


def _scaled(name: str, values: Sequence[float], most: float) -> tuple[str, list[str]]:
    """The unit that suits the largest value, and some values in it."""
    size, unit = _unit(name.rpartition("_")[2], most)
    return unit, [f"{value / size:.4g}" if value else "0" for value in values]


@cache
def _patterns() -> dict[str, dict[str, str]]:
    """The formulas of a workload and of a model, by heading."""
    patterns: dict[str, dict[str, str]] = read_catalogue(Path(__file__).with_name("cost_words.yaml"))
    return patterns


def formulas(scenario: Scenario) -> dict[str, str]:
    """The formula behind each column, in words; for a workload, the key that gave the number."""
    kind, said = ("workload", _given(scenario)) if scenario.model is None else ("model", _modelled(scenario))
    return {head: pattern.format(**said) for head, pattern in _patterns()[kind].items()}


def _given(scenario: Scenario) -> dict[str, Any]:
    assert scenario.workload is not None
    of_model = "the whole model, divided over ranks and chunks"
    return {
        "each": of_model if scenario.workload.per == "model" else "each rank, divided over its chunks",
        "unless_given": "" if "activation" in scenario.workload.memory.model_fields_set else ": not given",
    }


def _modelled(scenario: Scenario) -> dict[str, Any]:
    efficiency, parallel, overlap = scenario.efficiency, scenario.parallel, scenario.overlap
    assert efficiency is not None
    shared, (more, slower) = parallel.data * parallel.context, ATTENTION_BACKWARD
    return {
        **dict(parallel),
        "rate": f"{peak_of(scenario) / 1e12:.4g} TFLOP/s",
        "gemm": float(efficiency.gemm),
        "bandwidth": format_bandwidth(scenario.cluster.kinds[0].gpu.bandwidth),
        "memory": float(efficiency.memory),
        "attention": _attention(scenario, "FLOP"),
        "attention_backward": _attention(scenario, f"{more} FLOP", f"{slower} · "),
        "recomputed": recomputed(scenario),
        "overlapped": float(overlap.tensor),
        "overlapped_experts": float(overlap.experts),
        "beside_weight": "; input gradients are reduced beside weight" if overlap.weight_gradients else "",
        "divided": ", divided by tensor ranks" if parallel.sequence else "",
        "codec": scenario.gradients.codec,
        "sharding": scenario.sharding,
        "sharing": f"{shared} {'ranks' if shared > 1 else 'rank'}",
        "rest": _rest(scenario),
    }


def _attention(scenario: Scenario, flop: str, slower: str = "") -> str:
    """The formula of flash attention, for models that have it."""
    assert scenario.model is not None
    assert scenario.efficiency is not None
    operations = (operation for layer in scenario.model.network.layers for operation in layer.operations)
    if not any(isinstance(operation, Attention) and operation.flash for operation in operations):
        return ""
    peak = float(scenario.cluster.kinds[0].gpu.peak or 0) / 1e12
    return f", flash attention {flop} / ({slower}{peak:.4g} TFLOP/s · {float(scenario.efficiency.attention):.3g})"


def _rest(scenario: Scenario) -> str:
    """What the catalogue's shares of the peaks rest on; empty where the scenario states its own."""
    gpu, given = scenario.cluster.kinds[0].gpu.name, scenario.efficiency
    shares = catalogue.part(gpu).efficiency if gpu in catalogue.names() else {}
    family = scenario.precision if scenario.precision in shares else scenario.precision.partition("-")[0]
    if given is None or family not in shares or float(given.gemm) != shares[family]["gemm"]:
        return ""
    source = next(one.source for one in catalogue.figures(gpu) if one.name == f"efficiency.{family}")
    return f"; shares of {gpu} in {family}: {source}"


def render_layers(frame: pd.DataFrame, scenario: Scenario) -> str:
    """The table of layers, one block of lines for consecutive layers that are alike, and explanations."""
    numbers = ["forward_s", "input_gradient_s", "weight_gradient_s"]
    size, unit = _unit("s", frame[numbers].to_numpy().max(initial=0.0))
    blocks: list[tuple[list[tuple[int, str]], list[dict[Any, Any]]]] = []
    for layer, rows in groupby(frame.to_dict("records"), key=lambda row: (row["stage"], row["layer"])):
        block = [{key: value for key, value in row.items() if key not in ("stage", "layer")} for row in rows]
        if blocks and str(blocks[-1][1]) == str(block):
            blocks[-1][0].append(layer)
        else:
            blocks.append(([layer], block))
    head = f"{f'times of a micro-batch in {unit}':<53}{'forward':>9}{'input':>9}{'weight':>9}"
    lines = [head]
    for places, block in blocks:
        lines += ["", *_heading(places, block[-1])]
        for row in block:
            name = row["operation"] if row["operation"] == TOTAL else f"{row['operation']}: {row['what']}"
            label, *more = textwrap.wrap(name, 50) or [""]
            cells = "".join(f"{row[number] / size:>9.4g}" if row[number] else f"{'0':>9}" for number in numbers)
            lines += [f"  {label:<51}{cells}", *(f"    {line}" for line in more)]
    words = formulas(scenario)
    axes = [axis for axis in AXES if (frame.operation == f"{axis} {COLLECTIVES}").any()]
    shown = ["forward", "input", "weight", *axes, *(["again"] if scenario.recompute != "none" else []), "total"]
    return "\n".join([*lines, "", *(_words(head, words[head]) for head in shown)])


def _unit(kind: str, most: float) -> tuple[float, str]:
    scales = SCALES.get(kind, SCALES[""])
    return next((one for one in scales if most >= one[0]), scales[-1])


def _heading(places: Sequence[tuple[int, str]], total: dict[Any, Any]) -> list[str]:
    (first, name), (last, other) = places[0], places[-1]
    stages = f"stage {first}" if first == last else f"stages {first} … {last}"
    names = name if len(places) == 1 else f"{name} … {other}, {len(places)} identical layers"
    facts = [
        ("parameters", "parameters"),
        ("state_bytes", "state"),
        ("kept_bytes", "kept"),
        ("message_bytes", "message"),
    ]
    sizes = []
    for key, noun in facts:
        unit, (cell,) = _scaled(key, [total[key]], total[key])
        sizes.append(f"{noun} {cell} {'× ' if unit.startswith('10') else ''}{unit}".rstrip())
    return [f"{names} ({stages})", f"  {', '.join(sizes)}"]
