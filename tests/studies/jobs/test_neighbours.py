"""Files with several jobs: placement, the report, what each job waits for, and what would help."""

import csv
import json
import re
from dataclasses import replace
from itertools import count
from math import inf

import numpy as np
import pytest
from support.neighbours import BERT, CLUSTER, GPT
from support.scenarios import merged

from hybrid_des.analysis.tasks import in_turn
from hybrid_des.engine import clock
from hybrid_des.interface.cli.main import main
from hybrid_des.measured.imports.exporting import write_traces
from hybrid_des.scenario.jobs import load_jobs
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts import joint_folds
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.jobs import neighbours, remedies
from hybrid_des.studies.jobs.neighbours import Grouping
from hybrid_des.studies.jobs.remedies import Allowance, remedies_of
from hybrid_des.studies.jobs.result import simulate_jobs
from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.runner import sweep_rows


def two(**changes):
    """Two jobs that share the adapters of all four nodes."""
    jobs = {"gpt": {**GPT, "ranks": [0, 4, 8, 12]}, "bert": {**BERT, "ranks": [1, 5, 9, 13]}}
    return merged({"name": "two", "cluster": CLUSTER, "jobs": jobs}, changes)


@pytest.fixture(scope="module")
def found():
    return simulate_jobs(two(jobs={"bert": {"start": "7 ms"}}), remedies=True, tries=100)  # by number, not by time


def test_each_job_is_compared_with_itself_alone(found):
    facts = found.summary["jobs"]
    for name, job in facts.items():
        assert job["slowdown"] == pytest.approx(job["step_time_s"] / job["alone_step_time_s"])
        assert job["slowdown"] > 1 and 0 < job["gpu_utilisation"] < job["alone_gpu_utilisation"]
        assert job["shares_links_with"] == [{"gpt": "bert", "bert": "gpt"}[name]]
    whole = load({**GPT, "cluster": CLUSTER}).placed([0, 4, 8, 12])
    assert facts["gpt"]["alone_step_time_s"] == run(whole).duration / 1e12


def test_jobs_of_library_and_textbook_have_the_same_links():
    """Links reach what NCCL reaches if one of them is NCCL's; a model's job says it for all."""
    jobs = load_jobs(two(jobs={"gpt": {"gradients": {"algorithm": "nccl"}}})).jobs
    alone = load({**GPT, "cluster": CLUSTER, "gradients": {"algorithm": "nccl"}}).link_shares
    assert [one.scenario.link_shares for one in jobs] == [alone] * 2
    assert alone[0] < 1


@pytest.mark.parametrize("parallel", [{"pipeline": 4}, {"data": 4}], ids=["messages", "collectives"])
def test_a_trace_shares_links_like_the_job_it_records(parallel, tmp_path):
    times = {"forward": "1 ms", "backward": "2 ms", "activation": "16 MB", "parameters": 5_000_000}
    job = {"parallel": parallel, "schedule": {"kind": "1f1b", "microbatches": 8}, "workload": times}
    write_traces(load({**job, "cluster": {**CLUSTER, "gpus_per_node": 1}}), tmp_path)
    traced = {"parallel": parallel, "workload": {"trace": str(tmp_path)}}
    one, other = ({"ranks": [first, first + 4, first + 8, first + 12]} for first in (0, 1))

    def jobs_with(second):
        found = simulate_jobs({"cluster": CLUSTER, "jobs": {"a": {**job, **one}, "b": {**second, **other}}}).summary
        return [(each["step_time_s"], each["shares_links_with"]) for each in found["jobs"].values()], found["notes"]

    assert jobs_with(traced) == jobs_with(job)
    assert jobs_with(job)[0][1][1] == ["a"]
    write_traces(load({**job, "cluster": {**CLUSTER, "gpus_per_node": 1}, "sharding": "zero-2"}), tmp_path)
    recorded = "b: collectives with recorded times take as long as alone, and slow nobody"
    assert (recorded in jobs_with(traced)[1]) == ("data" in parallel)


def test_an_exchange_left_out_is_said():
    notes = simulate_jobs(two(jobs={"bert": {"gradients": {"every": 10}}})).summary["notes"]
    assert "bert: the synchronisation of replicas every 10 steps is left out, alone and together" in notes


def test_the_other_job_repeats_until_the_longest_is_done(found):
    gpt, bert = found.runs
    assert (gpt.together.scenario.steps, bert.together.scenario.steps) == (1, 4)
    begins = bert.together.timeline.steps["begin"] + bert.job.start
    assert begins.max() < gpt.together.duration <= bert.together.duration + bert.job.start
    assert bert.together.timeline.ops["start"].min() == 0  # times count from its start


def test_waits_name_the_job_and_the_link(found):
    waits = found.waits
    assert {*zip(waits.job, waits.behind, strict=True)} == {("gpt", "bert"), ("bert", "gpt")}
    assert set(waits.link) <= set(found.summary["shared_links"])
    rows = {one.job.name: one.together.timeline.messages for one in found.runs}
    for name, steps in (("gpt", 1), ("bert", 4)):
        queued = (rows[name]["start"] - rows[name]["asked"]).sum() / 1e12 / steps
        assert 0 < waits[waits.job == name].waited_s.sum() <= queued


def test_no_wait_of_the_report_is_longer_than_a_step():
    """A sum over messages that wait at the same time says nothing about the step: the mean of each does."""
    job = {**BERT, "parallel": {"data": 8}, "gradients": {"algorithm": "parameter-server"}}  # which all reach at once
    jobs = {"gpt": {**job, "ranks": [0, 1, 2, 3, 8, 9, 10, 11]}, "bert": {**job, "ranks": [4, 5, 6, 7, 12, 13, 14, 15]}}
    leaves = {"leaf_size": 2, "oversubscription": 4, "sharing": "fair", "infiniband": {"nics_per_node": 4}}
    found = simulate_jobs({"name": "crowded", "cluster": merged(CLUSTER, leaves), "jobs": jobs})
    block = found.report().partition("messages that wait for others' messages")[2].partition("\n\n")[0]
    rows = [re.split(r"  +", line.strip()) for line in block.splitlines()[2:] if "…" not in line]
    steps = {one.job.name: one.facts[1]["step_time_s"] for one in found.runs}
    units = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    assert rows
    for job, _, _, each, _ in rows:
        number, unit = each.split()
        assert 0 < float(number) * units[unit] <= steps[job]


@pytest.mark.parametrize("sharing", ["fifo", "fair", "priority", "priority-fair"])
def test_bytes_of_links_are_those_of_the_jobs(sharing):
    urgent = {"priorities": {"pipeline": 1, "gradients": 0}} if "priority" in sharing else {}
    seen = simulate_jobs(two(cluster={"sharing": sharing, **urgent}))
    for one in seen.runs:
        rows, channels = one.together.timeline.messages, one.together.timeline.channels
        assert len(rows["bytes"])
        for link in seen.summary["shared_links"][:4]:
            mine = np.array([channel.link == link for channel in channels])[rows["channel"]]
            assert seen.summary["links"][link]["bytes"][one.job.name] == rows["bytes"][mine].sum()
    assert seen.slowdown > 1 and len(seen.waits)
    assert all(sum(one["busy_ratio"].values()) <= 1 for one in seen.summary["links"].values())


def test_jobs_on_nodes_of_their_own_are_alone_and_folded():
    wide = {**BERT, "parallel": {"data": 256}}
    cluster = {"nodes": 64, "gpus_per_node": 8}
    jobs = {name: {**wide, "nodes": nodes} for name, nodes in (("one", "0-31"), ("other", "32-63"))}
    seen = simulate_jobs({"cluster": cluster, "jobs": jobs}, remedies=True)
    assert seen.groups == [["one"], ["other"]]
    assert [one.slowdown for one in seen.runs] == [1.0, 1.0]
    assert all(one.apart and one.together.fold is not None for one in seen.runs)
    assert "do not slow each other down" in seen.report() and "nobody: as alone" in seen.report()


def test_changes_that_help_are_found_by_simulation(found):
    best = found.summary["best_priorities"]
    assert best["slowdown"] < found.summary["slowdown_before_changes"]
    first = max(best["priority"], key=best["priority"].get)
    assert f"best priorities  {first} before" in found.report()
    again = simulate_jobs(
        two(cluster={"sharing": "priority"}, jobs={
            name: {"priority": value, "steps": 4, **({"start": "7 ms"} if name == "bert" else {})}
            for name, value in best["priority"].items()
        })
    )  # fmt: skip
    assert {one.job.name: one.slowdown for one in again.runs} == pytest.approx(best["slowdowns"], rel=0.02)


def test_so_many_changes_are_tried_as_were_asked_for(found):
    few, again = (simulate_jobs(two(jobs={"bert": {"start": "7 ms"}}), remedies=True, tries=2) for _ in range(2))
    assert few.remedies.to_mapping() == again.remedies.to_mapping()
    tried = {"starts": {"changes": 2, "of": 7}, "priorities": {"changes": 0, "of": 2}}
    assert few.summary["changes_tried"] == tried
    assert "2 of 9 changes simulated, more with --budget" in few.report() and "not known (0 of 2 tried)" in few.report()
    assert found.summary["changes_tried"] == {"starts": {"changes": 7, "of": 7}, "priorities": {"changes": 2, "of": 2}}
    assert "9 changes simulated" in found.report()


@pytest.mark.parametrize(("seconds", "changes"), [(3, 0), (4, 1), (14, 4), (1000, 9)])
def test_no_change_begins_that_would_end_late(seconds, changes, found):
    ticks = count()  # a second per look: a change takes one, and change n may begin at 3 n if it ends by then
    groups = Grouping.of(found.jobs)
    allowance = Allowance(inf, seconds, clock=lambda: float(next(ticks)))
    few = remedies_of(replace(found, wall_s=0.0), groups, allowance)
    assert few.tried_starts.changes + few.tried_orders.changes == changes


def test_events_allow_the_same_changes_on_every_machine(found):
    groups, never = Grouping.of(found.jobs), count(0, 10**9)  # a clock that no machine is as slow as
    most = 4 * found.events_together * 5  # of four steps instead of one, each as many events or a little more
    slow = Allowance(most, clock=lambda: float(next(never)))
    tried = [remedies_of(found, groups, allowance).to_mapping() for allowance in (slow, Allowance(most))]
    assert tried[0] == tried[1]
    assert 0 < tried[0]["changes_tried"]["starts"]["changes"] < 7


@pytest.mark.parametrize(("events", "tries"), [(inf, 2), (4e3, inf), (36e3, inf), (800e3, inf), (6e6, inf)])
def test_changes_simulated_ahead_are_those_of_their_turn(found, events, tries):
    allowance, groups, ran = Allowance(events, tries=tries), Grouping.of(found.jobs), list[int]()

    def at_once(tasks):
        ran.append(len(tasks))
        return in_turn(tasks)

    ahead = remedies_of(found, groups, allowance, at_once)
    assert ahead == remedies_of(found, groups, allowance)
    assert ahead.skipped or sum(ran) > 1


def test_changes_are_folded_and_bring_the_same(monkeypatch):
    monkeypatch.setattr(joint_folds, "MESSAGES", 0)
    ran = []

    def spy(*given):
        ran.append(folded_jobs(*given))
        return ran[-1]

    folded_jobs = joint_folds.folded_jobs
    monkeypatch.setattr(neighbours, "folded_jobs", spy)
    fair = two(cluster={"sharing": "fair"}, jobs={"gpt": {"parallel": {"pipeline": 1, "data": 4}}})
    folded = simulate_jobs(fair, remedies=True, tries=9)
    assert len(ran) == 10 and all(each.events > 2 * each.runs[0].events for each in ran)
    whole = simulate_jobs(fair, ["jobs.gpt.fold=off"], remedies=True, tries=9)
    assert ran[10:] == [None] * 10
    assert folded.remedies == whole.remedies


@pytest.mark.parametrize("sharing", ["fair", "priority-fair"])
def test_folded_jobs_have_the_rows_of_all_ranks(sharing, monkeypatch):
    monkeypatch.setattr(joint_folds, "MESSAGES", 0)
    urgent = {"bert": {"priority": 1, "start": "3 ms"}, "gpt": {"parallel": {"pipeline": 1, "data": 4}}}
    jobs = load_jobs(two(cluster={"sharing": sharing}, jobs=urgent))
    whole, folded = (neighbours.neighbours_of(jobs, folded=fold)[0] for fold in (False, True))
    assert folded.events < whole.events
    for each in (whole.summary, folded.summary):
        del each["wall_s"], each["events"]
    assert folded.summary == whole.summary and folded.waits.equals(whole.waits) and folded.links.equals(whole.links)
    for mine, theirs in zip(folded.runs, whole.runs, strict=True):
        for name in ("ops", "steps", "reductions", "memory"):
            tables = (getattr(each.together.timeline, name).values() for each in (mine, theirs))
            rows, all_rows = (sorted(zip(*(column.tolist() for column in table), strict=True)) for table in tables)
            assert rows == all_rows


def test_a_change_that_hardly_gets_on_waits_its_turn(found, monkeypatch):
    monkeypatch.setattr(remedies, "MOST_TIMES", 1)  # so that some changes take too many events
    monkeypatch.setattr(clock, "BEAT", 8)
    groups = Grouping.of(found.jobs)
    ahead = remedies_of(found, groups, at_once=in_turn)
    assert ahead == remedies_of(found, groups)
    assert ahead != found.remedies  # which has the best of those that do not get on


def test_changes_that_take_more_than_is_left_are_not_tried(found):
    slow, groups = replace(found, wall_s=10.0 * found.events / found.events_together), Grouping.of(found.jobs)
    why = remedies_of(slow, groups, Allowance.of(30)).skipped
    assert why == "one takes about 40 s, 30 s are left for all (--budget TIME gives more)"
    why = remedies_of(found, groups, Allowance(found.events_together)).skipped
    assert why.startswith("one takes about ") and why.endswith("for all (--budget TIME gives more)")


@pytest.mark.parametrize("transfer", ["0.5", "1"])
def test_a_later_start_alone_is_no_remedy(transfer):
    """Jobs that always transfer take turns however they start; the time before the second started counted as a gain."""
    job = {
        "parallel": {"data": 2}, "schedule": {"microbatches": 1}, "gradients": {"algorithm": "recursive-doubling"},
        "workload": {"forward": 0, "backward": "1 us", "parameters": float(transfer) * 1e9 / 4},
    }  # fmt: skip
    adapters = {"nics_per_node": 1, "bandwidth": "1 GB/s", "latency": 0}
    cluster = {"nodes": 2, "gpus_per_node": 2, "sharing": "fair", "infiniband": adapters}
    jobs = {"a": {**job, "ranks": [0, 2]}, "b": {**job, "ranks": [1, 3]}}
    seen = simulate_jobs({"cluster": cluster, "jobs": jobs}, remedies=True)
    assert seen.remedies.tried_starts.changes == 7
    assert seen.remedies.slowdown == pytest.approx(2, abs=1e-5) and seen.remedies.starts is None


def test_priorities_that_need_another_sharing_say_so(found):
    assert found.summary["best_priorities"]["sharing"] == "priority"
    assert " before " in found.report() and " with cluster.sharing=priority: " in found.report()
    same = simulate_jobs(two(cluster={"sharing": "priority"}, jobs={"bert": {"start": "7 ms"}}), remedies=True)
    assert "sharing" not in same.summary["best_priorities"]


def test_background_traffic_slows_a_job_and_is_counted():
    seen = simulate_jobs({
        "cluster": CLUSTER, "jobs": {"gpt": {**GPT, "ranks": [0, 4, 8, 12]}},
        "background": [{"from": "node0", "to": "node1", "rate": "8 GB/s"}],
    })  # fmt: skip
    assert seen.runs[0].slowdown > 1
    assert set(seen.waits.behind) == {"background"}
    sent = seen.summary["links"]["node0/nic0/out"]["bytes"]["background"]
    assert 0 < sent <= 8e9 * seen.end / 1e12 + 4 * 2**20


def test_background_traffic_beside_one_scenario():
    values = {**GPT, "cluster": CLUSTER, "parallel": {"pipeline": 2, "data": 8}}
    flow = {"from": "node2", "to": "node0", "rate": "9 GB/s", "message": "1 MB"}
    quiet, beside = (run(load({**values, "background": flows})) for flows in ([], [flow]))
    assert beside.duration > quiet.duration
    assert beside.messages == quiet.messages
    stopped = run(load({**values, "background": [{**flow, "until": "1 us"}]}))
    assert quiet.duration <= stopped.duration < beside.duration


@pytest.mark.parametrize(
    ("placement", "gpus"),
    [("packed", [[0, 1, 2, 3], [4, 5, 6, 7]]), ("spread", [[0, 4, 8, 12], [1, 5, 9, 13]])],
)
def test_jobs_are_placed_by_policy(placement, gpus):
    jobs = load_jobs({"cluster": CLUSTER, "jobs": {"gpt": GPT, "bert": BERT}, "placement": placement})
    assert [list(one.gpus) for one in jobs.jobs] == gpus


def test_random_placements_follow_the_seed():
    def placed(seed):
        jobs = load_jobs({"cluster": CLUSTER, "jobs": {"gpt": GPT, "bert": BERT}, "placement": "random", "seed": seed})
        return [list(one.gpus) for one in jobs.jobs]

    assert placed(1) == placed(1) != placed(2)
    assert len({gpu for gpus in placed(1) for gpu in gpus}) == 8


def test_named_nodes_are_taken_before_the_others():
    jobs = load_jobs({"cluster": CLUSTER, "jobs": {"gpt": GPT, "bert": {**BERT, "nodes": 0}}})
    assert [list(one.gpus) for one in jobs.jobs] == [[4, 5, 6, 7], [0, 1, 2, 3]]


def test_keys_of_jobs_are_swept():
    values = {**two(), "sweep": [{"jobs.gpt.schedule.kind": ["1f1b", "gpipe"]}, {"placement": ["packed", "spread"]}]}
    for name in values["jobs"]:
        values["jobs"][name].pop("ranks")
    rows = sweep_rows(load_sweep(values))
    assert [row["jobs.gpt.schedule.kind"] for row in rows] == ["1f1b", "1f1b", "gpipe", "gpipe"]
    assert [row["jobs"]["gpt"]["slowdown"] > 1 for row in rows] == [False, True, False, True]


@pytest.fixture
def file(tmp_path):
    """A file of jobs, one of which is in a file of its own."""
    for name, values in (("gpt", GPT), ("bert", BERT)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"cluster": {"nodes": 1}, **values}))
    path = tmp_path / "two.yaml"
    path.write_text(
        f"cluster: {json.dumps(CLUSTER)}\njobs:\n"
        "  gpt: {scenario: gpt.yaml, ranks: [0, 4, 8, 12]}\n"
        "  bert: {scenario: bert.yaml, ranks: [1, 5, 9, 13], start: 7 ms}\n"
    )
    return path


@pytest.mark.slow
def test_the_command_writes_a_folder_per_job(file, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(file), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "2 jobs on 8 of 16 GPUs, topology leaf-spine, sharing fifo" in said
    assert {"gpt", "bert", "summary.json", "fabric.html", "fabric.png", "waits.csv"} <= {
        path.name for path in out.iterdir()
    }
    assert {"summary.json", "timeline.csv", "report.html"} <= {path.name for path in (out / "bert").iterdir()}
    summary = json.loads((out / "summary.json").read_text())
    with (out / "links.csv").open() as rows:
        sums = {(row["link"], row["job"]): int(row["bytes"]) for row in csv.DictReader(rows)}
    assert all(size == summary["links"][link]["bytes"][job] for (link, job), size in sums.items())
    page = (out / "fabric.html").read_text()
    assert "who waits" in page and all(f'"name":"{name}"' in page for name in ("gpt", "bert"))


def test_json_has_each_job_and_link(file, capsys):
    assert main([str(file), "--json", "--set", "jobs.gpt.schedule.kind=gpipe"]) == 0
    facts = json.loads(capsys.readouterr().out)
    keys = {"step_time_s", "alone_step_time_s", "slowdown", "gpu_utilisation"}
    assert all(keys <= job.keys() for job in facts["jobs"].values())
    assert facts["links"]["node0/nic0/out"]["bytes"].keys() == {"gpt", "bert"}
