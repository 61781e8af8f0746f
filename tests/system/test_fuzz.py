"""Random cases: a few, and with `HYBRID_DES_TIMES=N` N times as many; and every case that ever failed.

Hypothesis draws what the generators ask for, minimises what fails, and tells failures apart by what is wrong; a
campaign keeps them in `fuzz_cases`.
"""

import csv
import importlib.util
import io
import json
import re
from collections import Counter
from dataclasses import asdict
from functools import cache
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st
from support.campaigns import TIMES
from support.paths import TESTS
from system.fuzzing import generate, kills, valid
from system.fuzzing.judge import complaints
from system.fuzzing.recount import differences
from system.fuzzing.worker import Case, Outcome, Pool, Simulated, gist, refused

from hybrid_des import load, simulate
from hybrid_des.pipeline.order_csv import write_order

pytestmark = pytest.mark.slow

FOLDER = TESTS / "system" / "fuzz_cases"
KEPT = sorted(FOLDER.glob("*.json"))
PARTS = range(TIMES)  # with -n, each worker takes some
RANDOM = st.randoms(use_true_random=False)
DASK = TIMES > 1 and importlib.util.find_spec("distributed") is not None


def few(count):
    """So many examples, the same ones at every run of a part."""
    return settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def pool():
    with Pool() as pool:
        yield pool


@cache
def fault(complaint):
    """A type of its own for each complaint, so that none hides another."""
    return type("Fault", (AssertionError,), {})


def fail(complaint, content):
    """Fail with a complaint; a campaign keeps the case, of which hypothesis tries the smallest last."""
    if TIMES > 1:
        name = re.sub(r"[^a-z0-9]+", "-", complaint.lower()).strip("-")[:80]
        text = json.dumps({"wrong": complaint, **content}, indent=1)
        (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    raise fault(complaint)(complaint)


def outcome_of(pool, case):
    """The outcome, also of a case that took its worker with it."""
    answer = pool.run(case)
    return Outcome(None, stopped=answer) if isinstance(answer, str) else answer


def recounted(pool, values):
    """What a recount of a scenario complains about; None if an algorithm refuses it."""
    answer = pool.run(Simulated(values))
    found = [answer] if isinstance(answer, str) else answer
    return None if refused(found) else [f"recount: {gist(one)}" for one in found]


@pytest.mark.parametrize("part", PARTS)
def test_mutated_cases_end_in_order(pool, part):
    codes = Counter()

    @seed(part)
    @few(120)
    @given(RANDOM.map(generate.case))
    def ends_in_order(case):
        outcome = outcome_of(pool, case)
        codes[outcome.code] += 1
        for complaint in complaints(case, outcome):
            fail(complaint, asdict(case))

    ends_in_order()
    assert min(codes[0], codes[2]) > 0


def test_generated_cases_reach_every_exit_code(pool):
    missing = {0, 1, 2}  # cases are made of shipped scenarios: with another one, other numbers end otherwise
    for number in range(500):
        missing -= {outcome_of(pool, generate.case(Random(number))).code}
        if not missing:
            break
    assert not missing


@pytest.mark.parametrize("part", PARTS)
def test_random_valid_scenarios_are_recounted(pool, part):
    @seed(part)
    @few(20)
    @given(RANDOM.map(valid.scenario))
    def agrees(values):
        found = recounted(pool, values)
        assume(found is not None)
        if found:
            fail(found[0], {"scenario": values})

    agrees()


@pytest.mark.parametrize("number", range(2 * TIMES))
def test_a_killed_run_ends_in_order(number):
    kill = kills.kill_of(number, DASK)
    for complaint in kills.wrong(kill):
        fail(f"kill: {complaint}", {"kill": asdict(kill)})


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_a_case_that_failed_once_is_right(pool, file):
    content = json.loads(file.read_text(encoding="utf-8"))
    wrong = content.pop("wrong")
    if "kill" in content:
        assert not kills.wrong(kills.Kill(**content["kill"]))
    elif "scenario" in content:
        assert wrong not in (recounted(pool, content["scenario"]) or [])
    else:
        case = Case(**content)
        assert wrong not in complaints(case, outcome_of(pool, case))


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
