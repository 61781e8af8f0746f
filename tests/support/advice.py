"""Random scenario files, and the advice that commands print about them, each piece followed as a user follows it."""

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import yaml

from hybrid_des import load, simulate
from hybrid_des.analysis.advice import AdviceLine
from hybrid_des.analysis.costs import costs
from hybrid_des.analysis.explanation import explain
from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import HybridDesError
from hybrid_des.interface.cli.commands.search import _listed
from hybrid_des.report.cost_tables import render_stages
from hybrid_des.report.explained import next_change
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import misnamed, read_scenario
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.memory import worst_peak
from hybrid_des.simulation.outcome import Run
from hybrid_des.studies.advice import advise
from hybrid_des.studies.plan_search.best_plan import explore
from hybrid_des.studies.plan_search.scenario_files import scenario_file
from hybrid_des.studies.plan_search.space import kept_in, plans_in
from hybrid_des.studies.plan_search.terms import settings_of
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bytes
from support import spaces

SLOW = ("gpu", "node")


def scenario_values(rng: Random) -> dict[str, Any]:
    """A small scenario that may lack memory, wait for the network, or have a slow part, as a mapping."""
    if rng.random() < 0.6:
        values = spaces.random_model(rng)
        values["schedule"]["microbatch_size"] = rng.choice((1, 2, 4))
        values["cluster"]["gpu"] = {**spaces.CUSTOM, "memory": f"{rng.choice((20, 40, 60, 80, 120, 4000))} MB"}
        if values["gradients"].get("bucket") is None and rng.random() < 0.4:
            values["gradients"]["bucket_rule"] = rng.choice(("stage", "megatron"))
        if values["sharding"] in ("zero-2", "zero-3") and values["parallel"]["pipeline"] == 1:
            values["gradients"].pop("bucket_rule", None)
        if rng.random() < 0.3:
            values["batch"] = _samples(values)
            del values["schedule"]["microbatches"]
    else:
        values = spaces.of_workload(rng.choice((4, 8)))
        values["workload"]["activation"] = rng.choice((0, "4 MB", "40 MB"))
        values["workload"]["parameters"] = rng.choice((4e6, 4e7, 4e8))
        values["gradients"] = {"overlap": rng.random() < 0.5, "bucket": rng.choice(("none", "100 MB"))}
        values["schedule"]["kind"] = rng.choice(("gpipe", "1f1b", "1f1b", "zb-h1"))
        values["schedule"]["p2p"] = rng.choice(("async", "async", "blocking"))
    bandwidth = rng.choice(("1 GB/s", "25 GB/s"))
    values["cluster"]["infiniband"] = {"nics_per_node": rng.choice((1, 4)), "bandwidth": bandwidth}
    if rng.random() < 0.3:
        what = rng.choice(SLOW)
        values["slow"] = [{what: 0, "factor": rng.choice((0.5, 0.8))}]
    return values


def _samples(values: dict[str, Any]) -> int:
    schedule = values["schedule"]
    return int(schedule["microbatches"] * schedule["microbatch_size"] * values["parallel"]["data"])


def followed(number: int, folder: Path) -> Iterator[tuple[str, str]]:
    """The kind and text of every piece of advice about a random scenario, each followed; asserts what it promises."""
    rng = Random(number)
    file = folder / f"{number}.yaml"
    file.write_text(yaml.safe_dump(scenario_values(rng)))
    try:
        scenario = load(file)
        base = run(scenario.model_copy(update={"record": "compute", "on_oom": "warn"}))
    except HybridDesError:  # the draw is impossible, such as a schedule that needs more micro-batches
        return
    yield from _out_of_memory(file, scenario, base)
    yield from _costs(scenario, base)
    yield from _explained(file, scenario, base)
    yield from _searched(file, rng)


def _out_of_memory(file: Path, scenario: Scenario, base: Run) -> Iterator[tuple[str, str]]:
    report = simulate(scenario).report(width=1000)
    assert fits(base) == ("OUT OF MEMORY" not in report.splitlines()[1])
    found = re.search(r"^  would fit +(.*), with (.*)$", report, re.MULTILINE)
    if found is None:  # it fits, nothing is left to change, or no change needs less
        return
    text, held = found.groups()
    only, _, best = text.partition("; the best is ")
    changed = run(load(file, [one.replace(": ", "=", 1) for one in (best or only).split(", ")]))
    assert format_bytes(_peak(changed).held) == held, text
    assert fits(changed) != bool(best), text
    assert _peak(changed).held < _peak(base).held, text
    yield f"out of memory: {'the best of several' if best else 'would fit'}", text


def _costs(scenario: Scenario, base: Run) -> Iterator[tuple[str, str]]:
    frame = costs(scenario)
    assert max(frame.peak_bytes) == max(base.peak_memory)
    text = render_stages(frame, scenario)
    for key in dict.fromkeys(re.findall(r"\b(?:workload|efficiency|model|gradients|schedule)(?:\.[a-z_]+)+", text)):
        assert misnamed(key) is None, key
        yield "costs: names a key", key


def _explained(file: Path, scenario: Scenario, base: Run) -> Iterator[tuple[str, str]]:
    found = explain(scenario, build=lambda overrides: load(file, overrides))
    for one in found.proposals:
        if one.against in ("network", "bubble", "uneven ranks"):
            changed = run(load(file, [one.change]).model_copy(update={"on_oom": "warn"}))
            assert changed.timeline.duration == one.duration, one
            assert fits(changed) or not fits(base), one
    advice = advise(file, run=found.run)
    for line in advice.lines:
        changed = run(load(file, [f"{key}={value}" for key, value in line.overrides.items()]))
        assert changed.timeline.duration / PICOSECONDS_PER_SECOND / changed.scenario.steps == line.step_s, line.change
        assert fits(changed), line.change
        assert f"{_keys(line)} (" in next_change(found.losses, advice)
        yield f"explain: {', '.join(line.kinds)}", line.change


def _keys(line: AdviceLine) -> str:
    return ",".join(f"{key}={value}" for key, value in line.overrides.items())


def _searched(file: Path, rng: Random) -> Iterator[tuple[str, str]]:
    settings = settings_of(read_scenario(file, ["search.top=1"]))
    plans = plans_in(settings)
    listed = _listed(settings, plans)
    if kept_in(settings):
        names = listed.partition("search.axes: ")[2]
        more = plans_in(settings_of(read_scenario(file, [f"search.axes={names}"])))
        assert len(more) >= len(plans), listed
        yield "search: axes to vary", names
    found = explore(settings, rng.sample(plans, min(len(plans), 3)))
    if found.best is None:
        return
    target = file.with_suffix(".best.yaml")
    target.write_text(scenario_file(found, found.best))
    best = run(load(target))
    assert fits(best)
    assert summary(best)["step_time_s"] == found.best.row["step_time_s"]
    yield "search: the best plan", found.sentence


def fits(base: Run) -> bool:
    """Whether no GPU exceeds its memory."""
    return _peak(base).fits


def _peak(base: Run) -> Any:
    return worst_peak(base.ranks, base.peak_memory, base.scenario.cluster.gpus_of(base.ranks))
