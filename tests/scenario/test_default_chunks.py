"""Schedules of chunks have several unless told otherwise, and what one chunk does is said, in sweeps too."""

import pytest
from support.scenarios import scenario, values

from hybrid_des import load, run_sweep, simulate
from hybrid_des.pipeline import schedules
from hybrid_des.report.content import content_of
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import scenario_from

FREE = [name for name in schedules.names() if schedules.find(name).facts["many_chunks"]]
MEMORY = {"workload": {"memory": {"activation": "1 GB"}}}


def test_there_are_schedules_whose_chunks_are_free():
    assert {"interleaved-1f1b", "looped-bfs", "hanayo"} <= set(FREE)


@pytest.mark.parametrize("kind", FREE)
def test_free_chunks_are_two_by_default(kind):
    made = scenario(kind, 4, 8)
    assert made.schedule.chunks == 2
    stated = scenario(kind, 4, 8, schedule={"chunks": 2})
    assert simulate(made).summary["step_time_s"] == simulate(stated).summary["step_time_s"]


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_stated_chunks_are_kept_when_written_and_read(chunks):
    made = scenario("interleaved-1f1b", 4, 8, schedule={"chunks": chunks})
    assert made.schedule.chunks == chunks
    assert scenario_from(to_mapping(made)) == made


def test_other_schedules_keep_their_chunks():
    fixed = {name: schedules.find(name).facts["chunks"] for name in schedules.names() if name not in FREE}
    for name, chunks in fixed.items():
        assert load(values(name, 4, 8)).schedule.chunks == (chunks or 1), name


def test_interleaving_one_chunk_keeps_the_bubble_and_more_activations():
    plain, one = (
        simulate(scenario(kind, 4, 8, schedule={"chunks": 1}, **MEMORY)) for kind in ("1f1b", "interleaved-1f1b")
    )
    free = {"cluster": {"nvlink": {"bandwidth": "inf", "latency": 0}}}
    times = [
        simulate(scenario(kind, 4, 8, schedule={"chunks": 1}, **free)).summary["step_time_s"]
        for kind in ("1f1b", "interleaved-1f1b")
    ]
    assert times[0] == times[1]
    assert max(plain.summary["peak_activations"]) == 4  # one per pipeline rank
    assert max(one.summary["peak_activations"]) == 7  # 2(p − 1) + 1, as the warm-up of chunks counts hops twice
    (note,) = [line for line in content_of(one).setup if "chunk" in line]
    assert note == "with one chunk per rank, interleaved-1f1b has 1F1B's bubble and more micro-batches in flight"


def test_a_sweep_has_a_column_of_notes():
    axes = [{"schedule.kind": ["1f1b", "interleaved-1f1b", "zb-h2"]}, {"schedule.chunks": [None, 1]}]
    table = run_sweep({**values("1f1b", 4, 8), "sweep": axes})
    kinds = table["schedule.kind"].tolist()
    said = dict(zip(zip(kinds, table["schedule.chunks"].isna(), strict=True), table["notes"], strict=True))
    assert "1F1B's bubble" in said["interleaved-1f1b", False]
    assert "barrier" in said["zb-h2", True]
    assert not isinstance(said["1f1b", True], str)
    assert not isinstance(said["interleaved-1f1b", True], str)
    assert "notes" not in run_sweep({**values("1f1b", 4, 8), "sweep": [{"schedule.microbatches": [4, 8]}]})


def test_what_a_case_leaves_out_is_among_its_notes():
    base = values("interleaved-1f1b", 4, 8, schedule={"chunks": 4})
    table = run_sweep({**base, "sweep": [{"schedule.kind": ["interleaved-1f1b", "1f1b"]}]})
    assert table["notes"].tolist()[1] == "sweep: schedule.chunks of interleaved-1f1b is left out: 1f1b does not read it"
