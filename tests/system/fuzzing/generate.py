"""Random calls of the command line."""

import shlex
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import yaml
from support.paths import GOLDEN
from system.fuzzing import valid
from system.fuzzing.materials import DURATIONS, GIVEN, PROFILES, SMALL, key_paths, orders, scenarios
from system.fuzzing.mutate import CELLS, any_value, changed_value, mutated
from system.fuzzing.worker import Case

COMMANDS, STUDIES = ([shlex.split(line) for line in GIVEN[name]] for name in ("commands", "studies"))
ROWS, LAYERS, TABLES = (GIVEN[name] for name in ("rows", "layers", "tables"))
PASTES = [(GOLDEN / name).read_text(encoding="utf-8") for name in ("nccl_tests.txt", "nccl_tests_old.txt")]


def case(rng: Random) -> Case:
    """A call of some kind."""
    kinds, weights = zip(*KINDS.items(), strict=True)
    made = rng.choices(kinds, weights)[0](rng)
    return Case(_alone(tuple(map(_argument, made.argv))), made.files, made.stdin)


def _alone(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments, with one process instead of a few: a daemon runs the case, which may have none of its own."""
    few = [before == "--jobs" and one.isdecimal() and 1 < int(one[:9]) <= 1024 for before, one in pairwise(("", *argv))]
    return tuple("1" if several else one for one, several in zip(argv, few, strict=True))


def _argument(text: str) -> str:
    """An operating system passes no NUL in an argument, nor one that is endless."""
    return text.replace("\0", "")[:20_000]


def _how(rng: Random) -> list[str]:
    """How a scenario is used, with a place for its file."""
    return rng.choice(
        (["@"],) * 3 + (["@", "--json"],) * 7 + (["@", "--quiet"],) * 2
        + (["verify", "@"], ["topology", "@"], ["topology", "@", "--route", "0", "1"])
        + (["costs", "@"], ["costs", "@", "--layers", "--json"])
        + (["collective", "ring", "--scenario", "@", "--min", "1 KiB", "--max", "16 KiB"],)
        + (["@", "--quiet", "--out", "o"],) * (rng.random() < 0.1)
    )  # fmt: skip


def _called(arguments: list[str], file: str = "a.yaml") -> tuple[str, ...]:
    return tuple(file if one == "@" else one for one in arguments)


def scenario_text(rng: Random) -> Case:
    """A shipped scenario, its text changed."""
    files = dict(rng.choice(scenarios()))
    name = rng.choice(list(files)) if rng.random() < 0.3 else "a.yaml"
    files[name] = mutated(files[name], rng)
    if rng.random() < 0.03:
        return Case(_called(_how(rng), "/dev/stdin"), {}, files["a.yaml"])
    return Case(_called(_how(rng)), files)


def scenario_values(rng: Random) -> Case:
    """A random valid scenario, one or two of its values changed."""
    values: Any = valid.scenario(rng)
    if rng.random() < 0.15:
        values["numerics"] = {"layers": rng.choice((2, 8, 16)), "width": 8, "batch": rng.choice((1, 3))}
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        values = changed_value(values, rng)
    return Case(_called(_how(rng)), {"a.yaml": dumped(values)})


def dumped(values: Any) -> str:
    """YAML of it; values that are texts stay without quotes, so that they may be numbers, and sometimes are no YAML."""
    if isinstance(values, dict) and values:
        blocks = []
        for key, value in values.items():
            if isinstance(value, dict) and value:
                inner = dumped(value).rstrip("\n").replace("\n", "\n  ")
                blocks.append(f"{key}:\n  {inner}\n")
            else:
                blocks.append(f"{key}: {_flow(value)}\n")
        return "".join(blocks)
    return f"{_flow(values)}\n"


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value).split("\n")[0]


def overrides(rng: Random) -> Case:
    """A shipped scenario with values set on the command line."""
    files = dict(rng.choice(scenarios()))
    arguments = list(_called(_how(rng)))
    for _ in range(rng.choice((1, 1, 2, 3))):
        path, value = rng.choice(key_paths()), any_value(rng)
        if rng.random() < 0.15:
            path = mutated(path, rng)
        if rng.random() < 0.1:
            value = f"[{value}, {any_value(rng)}]"
        if rng.random() < 0.05:
            value = f"{{{rng.choice(key_paths()).rpartition('.')[2]}: {value}}}"
        arguments += [
            "--set",
            f"{path}={value}" if rng.random() < 0.97 else rng.choice((path, value, f"={value}", f"{path}:{value}")),
        ]
    return Case(tuple(arguments), files)


def order_file(rng: Random) -> Case:
    """A reference order, changed, as a scenario's `schedule.file`."""
    name = rng.choice(list(orders()))
    text = mutated(orders()[name], rng, CELLS)
    ranks = 4 if rng.random() < 0.9 else rng.randint(1, 5)
    values = {
        "parallel": {"pipeline": ranks, "data": rng.choice((1, 1, 2))},
        "schedule": {"file": "o.csv", "microbatches": 8 if rng.random() < 0.9 else rng.randint(1, 9)},
        "workload": {"forward": "1 ms", "backward": "2 ms"},
    }
    return Case(_called(_how(rng)), {"a.yaml": dumped(values), "o.csv": text})


def table_file(rng: Random) -> Case:
    """A measured table, changed, for a link or a collective."""
    files = {"t.csv": mutated(rng.choice(TABLES), rng, CELLS)}
    use = rng.randrange(4)
    if use == 0:
        return Case(("collective", "measured", "--table", "t.csv", "--ranks", rng.choice("248")), files)
    files["a.yaml"] = SMALL
    place = ("gradients.table=t.csv", "cluster.infiniband.table=t.csv", "cluster.nvlink={table: t.csv}")[use - 1]
    return Case((*_called(_how(rng)), "--set", place), files)


def paste(rng: Random) -> Case:
    """Output of nccl-tests, changed, for `measure --from`."""
    text = mutated(rng.choice(PASTES), rng, CELLS)
    options = rng.choice(([], [], ["--link"], ["--link", "--out", "t.csv"], ["--out", "t.csv"]))
    if rng.random() < 0.1:
        return Case(("measure", "--from", "/dev/stdin", *options), {}, text)
    return Case(("measure", "--from", "p.txt", *options), {"p.txt": text})


def layer_table(rng: Random) -> Case:
    """A network as a table of layers, changed."""
    values = {
        "cluster": {"gpus_per_node": 2, "gpu": rng.choice(("h100", "a100-80gb"))},
        "model": {"kind": "layers", "file": "l.csv"},
        "parallel": {"pipeline": rng.choice((1, 2)), "stages": rng.choice(("even", "balanced"))},
        "schedule": {"kind": "1f1b", "microbatches": 4},
    }
    return Case(_called(_how(rng)), {"a.yaml": dumped(values), "l.csv": mutated(LAYERS, rng, CELLS)})


def rows_file(rng: Random) -> Case:
    """Rows of a sweep with their measurements, changed, also by conditions and fits."""
    files = {"a.yaml": GIVEN["corpus"], "rows.csv": mutated(ROWS, rng, CELLS) if rng.random() < 0.8 else ROWS}
    if rng.random() < 0.3:
        return Case(("a.yaml", *rng.choice(([], ["--json"], ["--quiet", "--out", "o"]))), files)
    more = rng.choice(([], ["--json"], ["--by", rng.choice(("split", "schedule.kind", any_value(rng)))]))
    if rng.random() < 0.5:
        condition = rng.choice(GIVEN["conditions"])
        more = [*more, "--where", mutated(condition, rng) if rng.random() < 0.7 else condition]
    if rng.random() < 0.2:
        more = [*more, "--fit", rng.choice(("efficiency.gemm", "efficiency.memory,overlap.tensor", any_value(rng)))]
    return Case(("validate", "a.yaml", "--jobs", "1", *more), files)


def arguments(rng: Random) -> Case:
    """A command line of any command, changed."""
    given = list(rng.choice(COMMANDS))
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        at = rng.randrange(len(given))
        how = rng.randrange(7)
        if how == 0:
            del given[at : at + 1]
        elif how == 1:
            given.insert(at, rng.choice(rng.choice(COMMANDS)))
        elif how == 2:
            given[at] = mutated(given[at], rng)
        elif how == 3:
            other = rng.randrange(len(given))
            given[at], given[other] = given[other], given[at]
        else:
            given[at] = any_value(rng)
        if not given:
            break
    files = {
        "a.yaml": rng.choice((SMALL, SMALL, rng.choice(scenarios())["a.yaml"])),
        "p.txt": PASTES[0],
        "t.csv": TABLES[0],
    }
    return Case(tuple(map(_harmless, given)), {**files, "my.py": GIVEN["plugin"], "bad.py": "1/0\n", "dir.py": "def"})


def study(rng: Random) -> Case:
    """A small scenario with perturbations or failures, changed, for one of the commands."""
    command, *options = rng.choice(STUDIES)
    failing = command == "goodput" and rng.random() < 0.9
    slow, jitter = GIVEN["slow"], GIVEN["jitter"]
    text = SMALL + (GIVEN["faults"] if failing else rng.choice(("", slow, jitter, slow + jitter)))
    changed = mutated(text, rng) if rng.random() < 0.5 else text
    more = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        more += ["--set", f"{rng.choice(key_paths())}={any_value(rng)}"]
    if rng.random() < 0.1 and len(options) > 1:
        options[-1] = any_value(rng)
    argv = ("a.yaml", command) if command.startswith("--") else (command, "a.yaml")
    return Case((*argv, *options, *more), {"a.yaml": changed, "b.yaml": text})


def measured_run(rng: Random) -> Case:
    """Durations of ops, changed, replayed or as the workload of a scenario."""
    files = {"d.csv": mutated(DURATIONS, rng, CELLS) if rng.random() < 0.9 else DURATIONS}
    if rng.random() < 0.6:
        return Case(("import", "d.csv", *rng.choice(([], ["--json"], ["--schedule", any_value(rng)]))), files)
    files["a.yaml"] = """\
parallel: {pipeline: 2, data: 2}
schedule: {kind: 1f1b, microbatches: 3}
workload: {durations: d.csv}
steps: 2
"""
    return Case(("a.yaml", *rng.choice(([], ["--json"], ["--quiet", "--out", "o"]))), files)


def imported(rng: Random) -> Case:
    """A profile, one of its files changed, imported, or run as the trace of a scenario."""
    files = dict(rng.choice(PROFILES))
    name = rng.choice(list(files))
    changed = files[name] if rng.random() < 0.1 else mutated(files[name], rng, CELLS if name == "d.csv" else ())
    files[name] = changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.1 else changed
    if rng.random() < 0.1:
        del files[rng.choice(list(files))]
    if rng.random() < 0.2 and "chakra.0.et" in files:
        files["a.yaml"] = "parallel: {pipeline: 2}\nworkload: {trace: 'chakra.*.et'}\n"
        return Case(
            ("a.yaml", *rng.choice(([], ["--json"], ["--set", f"{rng.choice(key_paths())}={any_value(rng)}"]))), files
        )
    source = "." if rng.random() < 0.7 else rng.choice(["*.json", "*.et", *files])
    command = rng.choice((["import"],) * 6 + (["replay"], ["calibrate", "--from-profile"]))  # old names, until 0.4
    return Case((*command, source, *rng.choice(([], ["--json"]))), files)


def _harmless(argument: str) -> str:
    """No path out of the case's folder, no Dask, no worker processes."""
    if argument.startswith("/") and not argument.startswith("/dev/"):
        return argument.lstrip("/")
    return argument.replace("..", ".").replace("--dask", "--quiet")


KINDS: dict[Callable[[Random], Case], int] = {
    scenario_text: 28, scenario_values: 21, overrides: 13, order_file: 8, table_file: 4, paste: 4, arguments: 13,
    layer_table: 2, rows_file: 3, study: 5, measured_run: 3, imported: 4,
}  # fmt: skip
