"""Random calls of the commands that simulate a scenario more than once, or a measured run."""

from __future__ import annotations

from random import Random

from system.fuzzing.case import Case
from system.fuzzing.materials import SMALL, key_paths
from system.fuzzing.mutate import CELLS, any_value, mutated

SLOW = """\
slow:
  - {gpu: 1, factor: 0.5}
  - {stage: 2, factor: 0.9}
  - {link: node0/nic0/out, factor: 0.5, latency: 5 us, from: 1 ms, until: 5 ms}
  - {nic: node1/nic0, flap: 2 ms, from: 3 ms}
"""
JITTER = "jitter: {distribution: lognormal, sigma: 0.02, level: rank-step, noise: {period: 1 ms, detour: 50 us}}\n"
FAULTS = """\
faults:
  horizon: 2 d
  replications: 2
  classes:
    - {what: node, name: node down, mtbf: 100 h}
    - {what: node, name: slow node, mtbf: 200 h, effect: {slow: 0.8, lasts: 3 h}}
    - {what: link, name: link flap, mtbf: 300 h, effect: {flap: 20 s}}
  detect: 5 min
  spares: {nodes: 1, swap: 1 min, repair: 24 h}
  restart: {time: 5 min, can_fail: true}
  checkpoint: {every: optimal, cost: 1 min}
"""
USES = (
    ["explain"], ["explain", "--json"], ["explain", "--what-if", "cluster.nvlink.bandwidth=2x"],
    ["compare", "b.yaml"], ["compare", "b.yaml", "--json"], ["compare", "b.yaml", "--max-regression", "5%"],
    ["spread", "--runs", "3", "--jobs", "1"], ["spread", "--runs", "2", "--jobs", "1", "--with", "schedule.kind=gpipe"],
    ["goodput", "--jobs", "1"], ["goodput", "--jobs", "1", "--json"], ["--json"],
)  # fmt: skip
DURATIONS = "\n".join(
    [
        "replica,stage,step,kind,microbatch,seconds,start_s",
        *(
            f"{replica},{stage},{step},{kind},{m},{(1 if kind == 'F' else 2) + m / 8},{20 * step + 4 * m + stage}"
            for step in (3, 4)
            for replica in range(2)
            for stage in range(2)
            for m in range(3)
            for kind in "FB"
        ),
        "",
    ]
)


def study(rng: Random) -> Case:
    """A small scenario with perturbations or failures, changed, for one of the commands."""
    command, *options = rng.choice(USES)
    failing = command == "goodput" and rng.random() < 0.9
    text = SMALL + (FAULTS if failing else rng.choice(("", SLOW, JITTER, SLOW + JITTER)))
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
        return Case(("replay", "d.csv", *rng.choice(([], ["--json"], ["--schedule", any_value(rng)]))), files)
    files["a.yaml"] = """\
parallel: {pipeline: 2, data: 2}
schedule: {kind: 1f1b, microbatches: 3}
workload: {durations: d.csv}
steps: 2
"""
    return Case(("a.yaml", *rng.choice(([], ["--json"], ["--quiet", "--out", "o"]))), files)
