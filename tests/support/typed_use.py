"""A user's script that names everything public, for mypy: it must find nothing here. It is not run."""

from pathlib import Path

import hybrid_des as hd

FILE = "scenarios/a100_8x.yaml"
CHANGES = {"schedule.kind": "zb-h1", "steps": 2}


def runs() -> list[float]:
    scenario: hd.Scenario = hd.load(Path(FILE), CHANGES)
    result: hd.Result = hd.simulate(scenario, overrides=["steps=2"], budget_s=60)
    explanation: hd.Explanation = hd.explain(FILE, ["cluster.nvlink.bandwidth=2x"], top=5)
    comparison: hd.Comparison = hd.compare(FILE, overrides=CHANGES)
    hd.draw_comparison(comparison).savefig("both.png")
    print(hd.render_explanation(explanation, width=80), hd.render_comparison(comparison))
    print(
        hd.verify(scenario), hd.costs(FILE, layers=False).forward_s.sum(), hd.collective("ring", ranks=8).time_us.max()
    )
    waits, links = result.wait_table(), result.link_table(windows=50)
    print(waits.groupby("cause").waited_s.sum(), links.utilisation_ratio.max(), result.explain().advice)
    print(result.memory_table().held_bytes.max(), len(result.collective_table()), result.timeline.arrived_s.max())
    jobs = hd.simulate_jobs("scenarios/jobs/two_jobs.yaml", remedies=True, tries=4)
    loop: hd.RlResult = hd.simulate_rl("scenarios/rl/async.yaml", {"steps": 2})
    print(loop.samples.response_tokens.mean(), loop.report(width=80))
    return [result.summary["step_time_s"], *(run.slowdown for run in jobs.runs)]


def many() -> int:
    sweep: hd.Sweep = hd.load_sweep(FILE, {"sweep": [{"schedule.microbatches": [4, 8]}]})
    rows = len(hd.run_sweep(sweep, jobs=2, progress=lambda done, total: None))
    found: hd.SearchResult = hd.search(FILE, ["search.axes=[schedule.kind]"], jobs=2, budget_s=10)
    weeks: hd.Goodput = hd.goodput("scenarios/goodput/gpus_1024.yaml", jobs=2)
    return rows + len(found.ranked) + len(hd.spread(FILE, 3, overrides=["jitter={sigma: 0.1}"])) + len(weeks.failures)


def advised() -> str:
    advice: hd.Advice = hd.advise(FILE, ["schedule.microbatches=8"])
    return "\n".join(hd.applied(FILE, line) for line in advice.lines)


def measured() -> None:
    imported: hd.Imported = hd.import_profile("scenarios/durations/a100_8x_slow_gpu.csv", machine=FILE)
    replayed: hd.Replayed = hd.replay("scenarios/durations/a100_8x_slow_gpu.csv", schedule="1f1b")
    print(
        imported.text(), imported.tables()["steps"], replayed.steps, hd.megatron(FILE).flags, hd.torchtitan(FILE).unsaid
    )
    with hd.record("run.csv", warmup=1):
        pass


def parts() -> None:
    print(hd.parts_of(FILE).plan.stages, hd.fabric_of(FILE).route(0, 1).links, hd.schedules.names(), hd.__version__)
    hd.plots.gantt(hd.simulate(FILE).run, ranks=[0, 2], size="column")


def main() -> None:
    try:
        print(runs(), many(), advised())
        measured()
        parts()
    except hd.Error as error:
        raise SystemExit(error.exit_code) from error
