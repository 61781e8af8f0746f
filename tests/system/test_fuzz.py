"""Random cases: a short run with fixed seeds, and every case that ever failed; `fuzz.py` runs more of them."""

from __future__ import annotations

import csv
import io
import json
from random import Random

import pytest
from support.paths import TESTS
from system.fuzzing import campaign, generate, valid
from system.fuzzing.case import Case, Outcome
from system.fuzzing.judge import complaints
from system.fuzzing.pool import Pool
from system.fuzzing.recount import differences
from system.fuzzing.shrink import smaller

from hybrid_des import load, simulate
from hybrid_des.pipeline.order_csv import write_order

KEPT = sorted((TESTS / "system" / "fuzz_cases").glob("*.json"))
CASES = range(300)
RECOUNTS = 40
KILLS = range(3)


@pytest.fixture(scope="module")
def pool():
    with Pool(1) as pool:
        yield pool


def test_mutated_cases_end_in_order(pool):
    failures = campaign.mutate(pool, CASES)
    assert not failures.counts
    assert min(failures.done[f"exit code {code}"] for code in (0, 1, 2)) > 0


def test_random_valid_scenarios_are_recounted(pool):
    failures = campaign.recount(pool, 0, RECOUNTS)
    assert not failures.counts
    assert failures.done["recounted"] >= RECOUNTS


@pytest.mark.parametrize("seed", KILLS)
def test_a_killed_run_ends_in_order(seed):
    assert not campaign.kill([seed], dask=False, patience=60).counts


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_a_case_that_failed_once_is_right(pool, file):
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["wrong"] not in campaign.replayed(pool, content)


def test_a_seed_gives_the_same_case():
    assert [generate.case(seed) for seed in range(50)] == [generate.case(seed) for seed in range(50)]


@pytest.fixture(scope="module")
def recorded():
    """A scenario with its order, timeline and summary; every message and op of it is checked exactly."""
    values = valid.scenario(Random(0))
    values |= {"parallel": {"pipeline": 2, "data": 2}, "schedule": {"kind": "1f1b", "microbatches": 3}, "barrier": True}
    port = {"bandwidth": "1 GB/s", "latency": "1 us"}
    values["cluster"] = {"nodes": 1, "gpus_per_node": 4, "topology": "nodes", "nvlink": port, "infiniband": port}
    values["workload"] = {
        "forward": "1 ms",
        "backward": "2 ms",
        "activation": "1 MB",
        "parameters": 1000,
        "optimizer": "1 ms",
    }
    values["gradients"] = {"algorithm": "ring"}
    result = simulate(load(values))
    return values, write_order(result.plan), result.timeline.to_csv(index=False), result.summary


def test_a_right_timeline_has_no_differences(recorded):
    assert not differences(*recorded)


@pytest.mark.parametrize(
    "column", ["asked_s", "start_s", "end_s", "bytes", "microbatch", "stage", "rank", "peer", "hop"]
)
def test_a_recount_notices_a_changed_row(recorded, column):
    values, order, timeline, summary = recorded
    rows = list(csv.DictReader(io.StringIO(timeline)))
    changes = 0
    for number, row in list(enumerate(rows))[::3]:
        if not row[column] or (column == "microbatch" and row["kind"] == "ring"):
            continue
        changed = {**row, column: str(float(row[column]) + (1e-9 if column.endswith("_s") else 1))}
        assert differences(values, order, _written(rows, number, changed), summary), row
        changes += 1
    assert changes > 2


@pytest.mark.parametrize("number", range(0, 60, 7))
def test_a_recount_notices_a_missing_row(recorded, number):
    values, order, timeline, summary = recorded
    rows = list(csv.DictReader(io.StringIO(timeline)))
    assert differences(values, order, _written(rows, number), summary)


def _written(rows, number, *instead):
    """The table with one row replaced or left out."""
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0].keys())
    writer.writeheader()
    writer.writerows([*rows[:number], *instead, *rows[number + 1 :]])
    return file.getvalue()


@pytest.mark.parametrize(
    ("outcome", "complaint"),
    [
        (
            Outcome(None, raised='  File "/x/hybrid_des/a/b.py", line 1, in c\nKeyError: 1\n'),
            "traceback: KeyError in a/b.py c",
        ),
        (Outcome(None, stopped="hang"), "hang"),
        (Outcome(3, err="a"), "exit code 3"),
        (Outcome(2), "exit code 2 without a message"),
        (Outcome(0, out="a \x1b[31m"), "control character in stdout"),
        (Outcome(2, err="a\n" * 50), "more than 39 lines of errors"),
        (Outcome(2, err="a.yaml:1: b\n1\n2\n3\n"), "an error of more than 3 lines"),
        (Outcome(0, out="[NaN]"), "--json prints no JSON: NaN in JSON"),
        (Outcome(2, err="a\n", made=("o",)), "an error leaves files behind"),
        (Outcome(0, made=(".part-1",)), "a temporary folder is left behind"),
    ],
)
def test_what_is_wrong_with_an_outcome_is_said(outcome, complaint):
    assert complaints(Case(("a.yaml", "--json")), outcome)[0].startswith(complaint)


def test_a_case_is_minimised_to_what_fails():
    case = Case(("a.yaml", "--quiet", "--set", "seed=1"), {"a.yaml": "a: 1\nb: [2, 3]\nc: 4\n", "b.yaml": "a"}, "text")
    small = smaller(case, lambda one: "3" in one.files.get("a.yaml", "") and "a.yaml" in one.argv)
    assert small == Case(("a.yaml",), {"a.yaml": "3"})
