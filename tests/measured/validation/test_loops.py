"""Published RL runs: what is predicted from one run of a table, and from recipes alone, as docs/background says.

What is set from which row is said where it is done; nothing is fitted to a predicted row. The rows are in `shared/rl`,
which is not part of the project.
"""

import csv
import json
import re
from functools import cache
from math import log
from statistics import NormalDist, mean

import pytest
from support.paths import ROOT, SHARED

from hybrid_des.scenario.loading import load
from hybrid_des.studies.rl.draws import GroupDraws
from hybrid_des.studies.rl.loop import run_loop
from hybrid_des.studies.rl.report import SO_FAR
from hybrid_des.studies.rl.trainer import TrainerTimes
from hybrid_des.studies.rl.whatifs import figures_of
from hybrid_des.units import PICOSECONDS_PER_SECOND

BACKGROUND = ROOT / "docs" / "background"
ROWS = SHARED / "rl"
needs_rows = pytest.mark.skipif(not ROWS.exists(), reason="its rows are not part of this repository")

# the 99th percentile is ten times the median (lengths-11: Laminar, arXiv 2510.12633)
SIGMA = round(log(10) / NormalDist().inv_cdf(0.99), 2)


@cache
def rows(name):
    """A table of published rows, by the numbers of their ids."""
    with (ROWS / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return {row["id"].rpartition("-")[2]: row for row in csv.DictReader(lines)}


def numbers(name, row):
    """The cells of a row that are numbers."""
    cells = rows(name)[row]
    return {key: float(cell) for key, cell in cells.items() if re.fullmatch(r"[\d.]+", cell)}


def table(heading):
    """First cell → the others, of the tables below a heading of accuracy_details.md."""
    text = (BACKGROUND / "accuracy_details.md").read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    lines = [line.strip("| ").split(" | ") for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines}


def percent(share):
    """An error as the tables print it."""
    return f"{100 * share:+.1f} %".replace("-", "−")


def read(cell):
    """An error, or seconds, from a cell."""
    return float(cell.rstrip(" %s").replace("−", "-"))


def simulated(values, **changes):
    scenario = load(values, changes)
    return figures_of(scenario, run_loop(scenario))


def predicted(name, seconds, published):
    """Check that a prediction is what the table prints; its error."""
    error = seconds / published - 1
    assert table("RL loops, row by row")[name] == [f"{published:.4g} s", f"{seconds:.4g} s", percent(error)]
    return error


def verl(row, trainer=None):
    """64 + 64 H20; the mean is set from the run without staleness (loop_steps-07), the trainer's time from each run."""
    run = numbers("loop_steps", row)
    synchronous = numbers("loop_steps", "07")
    rest = synchronous["step_s"] - synchronous["gen_or_wait_s"] - synchronous["update_s"]
    return {
        "cluster": {"gpu": "h20", "nodes": 16},
        "model": {"base": "qwen2.5-math-7b"},
        "parallel": {"context": 4, "data": 16},
        "sharding": "zero-3",
        "schedule": {"kind": "1f1b"},
        "batch": 512,
        "data": {"packing": "balanced", "tokens": 32768},
        "steps": 16,
        "rl": {
            "samples": 16, "updates": 16, "take": 4, "ahead": run["staleness"], "prompt": 150,
            "response": {"kind": "lognormal", "mean": 1800, "sigma": SIGMA, "max": 28672},
            "rollout": {"nodes": "8-15", "tensor": 4},
            "sync": {"time": rest}, "trainer": {"time": run["update_s"] if trainer is None else trainer},
        },
    }  # fmt: skip


@needs_rows
@pytest.mark.slow
@pytest.mark.parametrize(("row", "name", "most"), [
    ("07", "verl, allowance 0 (sets the mean length)", 0.01), ("08", "verl, allowance 0.1", 0.07),
    ("06", "verl, allowance 0.5", 0.07),
])  # fmt: skip
def test_what_staleness_brings_is_predicted_from_none(row, name, most):
    assert abs(predicted(name, simulated(verl(row)).cycle, numbers("loop_steps", row)["step_s"])) <= most


@needs_rows
@pytest.mark.slow
@pytest.mark.parametrize(("row", "name"), [("08", "0.1"), ("06", "0.5")])
def test_training_of_the_run_without_staleness_is_too_short(row, name):
    """Nothing at all is set from the predicted rows: their trainers are slower, for reasons that nobody published."""
    seconds = simulated(verl(row, numbers("loop_steps", "07")["update_s"])).cycle
    published = numbers("loop_steps", row)["step_s"]
    predicted(f"verl, allowance {name}, the trainer's time too from allowance 0", seconds, published)


@needs_rows
@pytest.mark.parametrize(("set_from", "row"), [("01", "02"), ("03", "04")])
def test_seldom_syncs_are_predicted_from_frequent_ones(set_from, row):
    """A sync takes the share of the run with one per update; the rest of an update is the trainer's."""
    often, seldom = numbers("cadence", set_from), numbers("cadence", row)
    updates, share = int(often["updates"]), often["sync_share"]
    values = {
        "cluster": {"gpu": "h100", "nodes": 2}, "model": {"base": "qwen3-0.6b"}, "parallel": {"data": 8},
        "schedule": {"kind": "1f1b"}, "batch": 64,
        "rl": {
            "samples": 8, "prompt": 8, "response": 8, "ahead": 1, "rollout": {"nodes": 1},
            "sync": {"time": share * often["core_s"] / updates},
            "trainer": {"time": (1 - share) * often["core_s"] / updates},
        },
    }  # fmt: skip
    times = {
        every: simulated(values, **{"rl.sync.every": every, "steps": updates // every}).cycle * updates / every
        for every in (int(often["syncs_every"]), int(seldom["syncs_every"]))
    }
    assert times[1] == pytest.approx(often["core_s"])
    workload = rows("cadence")[row]["model"].split()[1].split("/")[0]
    error = predicted(f"marin {workload}, weights sent every 4 updates", times[4], seldom["core_s"])
    assert abs(error) <= 0.01


def lending(tmp_path, **changes):
    """Videos that all take equally long: service and training are set from the runs without lending."""
    alone, more = numbers("lending", "01"), numbers("lending", "03")
    service = alone["step_s"] / 128  # one GPU generates all the time
    steps = tmp_path / "steps.csv"
    steps.write_text(f"sequences,tokens,seconds\n1,0,{service}\n1,1000,{service}\n")
    training = mean(run["step_s"] - run["wait_s"] for run in (alone, more))
    values = {
        "cluster": {"gpu": "h100", "nodes": 4, "gpus_per_node": 1}, "model": {"base": "qwen3-0.6b"},
        "parallel": {"data": 2}, "schedule": {"kind": "1f1b"}, "batch": 128, "steps": 17,
        "rl": {
            "samples": 1, "prompt": 1, "response": 1, "ahead": 1, "sync": {"time": 0}, "trainer": {"time": training},
            "rollout": {"nodes": 2, "concurrency": 1, "efficiency": {"table": str(steps)}},
        },
    }  # fmt: skip
    return simulated(values, **changes).cycle


@needs_rows
def test_lent_gpus_are_predicted_from_runs_without_lending(tmp_path):
    """They generate until all samples of a step are there: in the run, its threshold adapts."""
    alone, lent, more = (numbers("lending", row) for row in ("01", "02", "03"))
    switches = {"below": 1, "to_rollout": lent["to_rollout_s"], "to_trainer": lent["to_trainer_s"]}
    assert lending(tmp_path) == pytest.approx(alone["step_s"], rel=0.001)
    assert lending(tmp_path, **{"rl.rollout.nodes": "2-3"}) == pytest.approx(more["step_s"], rel=0.01)
    seconds = lending(tmp_path, **{"rl.lend": switches})
    assert abs(predicted("verl-omni, lent GPUs", seconds, lent["step_s"])) <= 0.05


def vime(**changes):
    """The GPU is not in the catalogue, and lengths are not published: all responses are as long as the cap."""
    values = {
        "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 2}, "model": {"base": "qwen3-4b"},
        "parallel": {"tensor": 2}, "schedule": {"kind": "1f1b"}, "batch": 256, "steps": 8,
        "rl": {
            "samples": 8, "prompt": 100, "response": 2048, "rollout": {"nodes": 1, "tensor": 2}, "sync": {"time": 0},
            "trainer": {"time": numbers("loop_steps", "69")["update_s"]},
        },
    }  # fmt: skip
    return simulated(values, **changes)


@needs_rows
def test_vime_is_predicted_from_its_synchronous_phases():
    """The engine's speed is set so that the synchronous run generates as long as it did."""
    sync, twin = numbers("loop_steps", "69"), numbers("loop_steps", "70")
    reached = {"rl.rollout.efficiency.reached": vime().wait / sync["gen_or_wait_s"]}
    assert vime(**reached).cycle == pytest.approx(sync["step_s"], rel=0.01)
    seconds = vime(**reached, **{"rl.ahead": 1}).cycle
    assert abs(predicted("vime, fully asynchronous", seconds, twin["step_s"])) <= 0.1


@needs_rows
@pytest.mark.slow
def test_unirl_is_predicted_from_its_recipe():
    run = numbers("loop_steps", "71")
    values = {
        "cluster": {"gpu": "h20", "nodes": 2}, "model": {"base": "qwen3-4b"}, "parallel": {"data": 16},
        "sharding": "zero-3", "schedule": {"kind": "1f1b"}, "batch": 128, "steps": 4,
        "data": {"packing": "balanced", "tokens": 100 + 8192},
        "rl": {
            "samples": 8, "updates": 4, "take": 4, "prompt": 100, "rollout": {"on": "trainer"}, "sync": {"time": 0},
            "response": {"kind": "lognormal", "mean": run["mean_tokens"], "sigma": SIGMA, "max": 8192},
        },
    }  # fmt: skip
    predicted("UniRL, from the recipe", simulated(values).cycle, run["step_s"])


MODELS = {
    "DeepSeek-V3": "deepseek-v3", "Qwen3-30B-A3B": "qwen3-30b-a3b", "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen3-32B": "qwen3-32b", "Llama-3.1-8B": "llama3.1-8b",
}  # fmt: skip
# seconds of a weight sync: in turns on the same GPUs, and to engines of their own (all with pull request 1379)
SYNCS = {
    "Llama-3.1-8B": (5, 0.13),  # docs/blogs/nemo-rl-v0.3, table 1; NVIDIA-NeMo/RL pull request 1052
    "Qwen3-32B": (7, 0),  # the same table
    "Qwen3-30B-A3B": (12, 0),  # the same
    "Qwen3-235B-A22B": (40.2, 5.5),  # pull requests 3294 (on B200s, with engines in MXFP8) and 1379
    "DeepSeek-V3": (47.2, 14),  # docs/blogs/nemo-rl-refit-performance, table 1; pull request 1379
}
RECOMPUTED = {"Llama-3.1-8B", "Qwen3-235B-A22B", "DeepSeek-V3"}  # activation_checkpointing in their recipes
PER_NODE = {"H100": 8, "GB200": 64}  # of the NVLink domains of 72 that these runs use
PROMPT = 100  # tokens


def layout_of(text, gpus):
    """A layout of NeMo-RL's tables: tensor, context, expert, pipeline."""
    if text == "dp":
        return {"parallel": {"data": gpus}, "sharding": "zero-3"}
    if text == "pp2":
        return {"parallel": {"pipeline": 2, "data": gpus // 2}}
    tensor, context, expert, pipeline = json.loads(text)
    data = gpus // (tensor * context * pipeline)
    parallel = {"tensor": tensor, "context": context, "expert": expert, "pipeline": pipeline, "data": data}
    parallel |= {"sequence": True} if tensor > 1 else {}
    parallel |= {"expert_tensor": 1} if min(tensor, expert) > 1 else {}
    parallel |= {"stages": "balanced"} if pipeline > 1 else {}
    return {"parallel": parallel, "sharding": "zero-1"}


def nemo_rl(row):
    """A run of NeMo-RL from its recipe, which computes log-probabilities of the policy and of the reference."""
    cells = rows("loop_steps")[row]
    of_row = numbers("loop_steps", row)
    run = {key: int(number) for key, number in of_row.items() if number == int(number)}
    train, turns = run["gpus_train"], run["colocated"] == 1
    gpus = train if turns else train + run["gpus_rollout"]
    each = min(PER_NODE[cells["gpu"]], train)
    first, last = train // each, gpus // each - 1
    nodes = {"on": "trainer"} if turns else {"nodes": f"{first}-{last}" if first < last else first}
    longest = run["max_response_tokens"]
    in_turns, apart = SYNCS[cells["model"]]
    layout = layout_of(cells["train_layout"], train)
    # a pipeline's micro-batches have one shape (nemo_rl/models/megatron/data.py)
    padded = {"padded": "step"} if layout["parallel"].get("pipeline", 1) > 1 else {}
    mean_length = of_row["mean_tokens"] - PROMPT
    return {
        "cluster": {"gpu": cells["gpu"].lower(), "nodes": gpus // each, "gpus_per_node": each},
        "model": {"base": MODELS[cells["model"]]}, **layout,
        "schedule": {"kind": "1f1b"}, "data": {"packing": "balanced", "tokens": longest, **padded}, "steps": 5,
        "recompute": "full" if cells["model"] in RECOMPUTED else "none",
        "batch": run["prompts_per_step"] * run["samples_per_prompt"] // run["local_updates"],
        "rl": {
            "samples": run["samples_per_prompt"], "updates": run["local_updates"], "take": run["local_updates"],
            "ahead": run["staleness"], "prompt": PROMPT,
            "sync": {"time": in_turns if turns else apart, "running": "continue"},
            "response": {"kind": "lognormal", "mean": mean_length, "sigma": SIGMA, "max": longest - PROMPT},
            # gpu_memory_utilization: 0.6 in examples/configs/grpo_math_1B.yaml, 0.8 in asynchronous recipes
            "rollout": {**nodes, "tensor": run["rollout_tp"], "memory": 0.6 if turns else 0.8},
            "passes": {"old": True, "reference": True},
        },
    }  # fmt: skip


def training_of(values):
    """Seconds of a batch: its first optimizer step and the passes before it, simulated, times the steps."""
    scenario = load(values)
    rl, draws = scenario.rl, GroupDraws(scenario.rl, scenario.seed)
    groups = [draws.next() for _ in range(scenario.batch // rl.samples)]
    tokens = [group.prompt + response for group in groups for response in group.responses]
    times = TrainerTimes(scenario, rl.passes.names).take([tokens])
    return rl.updates * sum(times[0]) / PICOSECONDS_PER_SECOND


def twins(sync, twin):
    """Seconds of both from their recipes, and of the twin where the engine's speed is set from the synchronous run.

    Where engines span several nodes, the difference is attributed to their all-reduces, which no serving row has
    across nodes.
    """
    before, after = nemo_rl(sync), nemo_rl(twin)
    trained, then = ({"rl.trainer": {"time": training_of(values)}, "rl.passes": {}} for values in (before, after))
    alone, apart = simulated(before, **trained).cycle, simulated(after, **then).cycle
    measured = numbers("loop_steps", sync)["step_s"]
    if before["rl"]["rollout"]["tensor"] > before["cluster"]["gpus_per_node"]:
        path = "rl.rollout.efficiency.across"
        value = 1 + (measured - alone) / (simulated(before, **trained, **{path: 2}).cycle - alone)
    else:
        path, known = "rl.rollout.efficiency.reached", trained["rl.trainer"]["time"] + before["rl"]["sync"]["time"]
        value = (alone - known) / (measured - known)
    return alone, apart, simulated(after, **then, **{path: value}).cycle


PAIRS = {
    "8B, H100, 0.4": ("61", "62"), "8B, GB200, 0.5": ("55", "56"), "32B, H100, 0.5": ("53", "54"),
    "32B, GB200, 0.5": ("59", "60"), "30B-A3B, H100, 0.4": ("65", "66"), "30B-A3B, H100, 0.5": ("51", "52"),
    "30B-A3B, H100, 0.6": ("34", "35"), "235B-A22B, GB200, 0.6": ("41", "42"), "671B, H100, 0.5": ("47", "48"),
    "671B, H100, 0.6": ("28", "30"), "235B-A22B, H100, 0.4": ("63", "64"), "235B-A22B, H100, 0.5": ("49", "50"),
}  # fmt: skip


@needs_rows
@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_runs_of_nemo_rl_are_as_far_off_as_printed(name):
    sync, twin = PAIRS[name]
    published = [numbers("loop_steps", row)["step_s"] for row in (sync, twin)]
    alone, apart, from_sync = twins(sync, twin)
    cells = [f"{published[0]:g} s", f"{alone:.3g} s", f"{published[1]:g} s", f"{apart:.3g} s", f"{from_sync:.3g} s"]
    assert table("RL loops, row by row")[name] == [*cells, percent(from_sync / published[1] - 1)]


SMALL = [name for name in PAIRS if name.partition(",")[0] in ("8B", "32B", "30B-A3B")]
LARGE = [name for name in PAIRS if name not in SMALL]
RECIPE, FROM_SYNC = "nothing", "the engine's speed, from the synchronous run"
SUMMARIES = {
    "verl, 0.1 and 0.5 batches of stale samples": (
        "the mean length, from the run without; training of each run",
        ["verl, allowance 0.1", "verl, allowance 0.5"], 2,
    ),
    "the same": (
        "the mean length and training, from the run without",
        [f"verl, allowance {ahead}, the trainer's time too from allowance 0" for ahead in ("0.1", "0.5")], 2,
    ),
    "marin, weights sent every 4 updates": (
        "the time of a sync, from the runs with one at every update",
        [f"marin {name}, weights sent every 4 updates" for name in ("BC", "REG")], 2,
    ),
    "verl-omni, lent GPUs": ("engine and trainer, from the runs without", ["verl-omni, lent GPUs"], 2),
    "vime, asynchronous": ("engine and trainer, from the synchronous run", ["vime, fully asynchronous"], 2),
    "NeMo-RL, asynchronous, 8B to 32B": (FROM_SYNC, SMALL, 5),
    "NeMo-RL, asynchronous, 235B and 671B": (FROM_SYNC, LARGE, 5),
    "UniRL, synchronous": (RECIPE, ["UniRL, from the recipe"], 2),
    "NeMo-RL, synchronous, 8B to 32B": (RECIPE, SMALL, 1),
    "NeMo-RL, asynchronous, 8B to 32B, from the recipe": (RECIPE, SMALL, 3),
    "NeMo-RL, synchronous, 235B and 671B": (RECIPE, LARGE, 1),
    "NeMo-RL, asynchronous, 235B and 671B, from the recipe": (RECIPE, LARGE, 3),
}  # fmt: skip


def errors_of(names, column):
    """Errors of runs of the detailed tables: the last column, or those of a prediction beside what was published."""
    details = table("RL loops, row by row")
    if column in (2, 5):
        return [read(details[name][-1]) / 100 for name in names]
    return [read(details[name][column]) / read(details[name][column - 1]) - 1 for name in names]


def summed_up(errors):
    """Number, mean, bias and worst of some errors, as printed."""
    sizes = [abs(error) for error in errors]
    return [str(len(errors)), f"{100 * mean(sizes):.1f} %", percent(mean(errors)), f"{100 * max(sizes):.0f} %"]


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_summary_is_that_of_the_rows(name):
    text = (BACKGROUND / "accuracy.md").read_text(encoding="utf-8").partition("## RL loops\n")[2]
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} | "))
    what, names, column = SUMMARIES[name]
    assert line.strip("| ").split(" | ")[1:] == [what, *summed_up(errors_of(names, column))]


def test_changes_of_measured_runs_are_met():
    """What was asked for of the rows shown."""
    errors = {name: errors_of(names, column) for name, (_, names, column) in SUMMARIES.items()}
    asynchronous = ("NeMo-RL, asynchronous, 8B to 32B", "NeMo-RL, asynchronous, 235B and 671B", "vime, asynchronous")
    twins_of = [error for name in asynchronous for error in errors[name]]
    assert max(map(abs, errors["verl, 0.1 and 0.5 batches of stale samples"])) <= 0.07
    assert max(map(abs, errors["marin, weights sent every 4 updates"])) <= 0.01
    assert max(map(abs, errors["verl-omni, lent GPUs"])) <= 0.05
    assert mean(map(abs, twins_of)) <= 0.1


def test_reports_say_what_the_tables_say():
    """Each percentage of the sentence is the worst error of its rows, or the least and the worst from recipes."""
    worst = {name: max(map(abs, errors_of(names, column))) for name, (_, names, column) in SUMMARIES.items()}
    measured = [
        name for name, (what, *_) in SUMMARIES.items() if what not in (RECIPE, FROM_SYNC) and name != "the same"
    ]
    recipes = [name for name, (what, *_) in SUMMARIES.items() if what == RECIPE]
    least = min(abs(error) for name in recipes for error in errors_of(*SUMMARIES[name][1:]))
    said = [int(number) for number in re.findall(r"(\d+)(?= %| to)", SO_FAR)]
    assert max(worst[name] for name in measured) <= said[0] / 100
    known = (
        worst["the same"],
        worst["NeMo-RL, asynchronous, 8B to 32B"],
        worst["NeMo-RL, asynchronous, 235B and 671B"],
    )
    assert said[1:] == [round(100 * share) for share in (*known, least, max(worst[name] for name in recipes))]
